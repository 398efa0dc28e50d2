"""Creates the search for a request's options."""

from functools import cache

from dragoman_server.bundle.manifest import SpecialTokens
from dragoman_server.core.search import Search
from dragoman_server.core.search_options import UNCONSTRAINED, SearchOptions
from dragoman_server.decoding.beam import BeamSearch
from dragoman_server.decoding.greedy import GreedySearch
from dragoman_server.decoding.shared_prefix import SharedPrefixSearch
from dragoman_server.decoding.single_hypothesis import SingleHypothesisSearch
from dragoman_server.decoding.stop_sequences import StopTracker
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.decoding.token_rules import TokenRules


def make_search(options: SearchOptions, tokens: SpecialTokens, vocabulary_size: int, decoder: TargetDecoder) -> Search:
    """Creates a search.

    Args:
        options: Options of the request.
        tokens: Special tokens of the bundle.
        vocabulary_size: Size of the target vocabulary.
        decoder: Converts tokens to the text that is searched for stop sequences.
    """
    if _is_plain_greedy(options):
        return GreedySearch(tokens.end, options.max_new_tokens)
    count = options.num_hypotheses if options.sampling is not None or options.alternatives else 1
    searches = [_make_search(options, tokens.end, vocabulary_size, decoder, index) for index in range(count)]
    return SharedPrefixSearch(searches, options.alternatives) if count > 1 else searches[0]


def _is_plain_greedy(options: SearchOptions) -> bool:
    """Returns whether the options ask for the most probable token every time and for nothing else."""
    return not (options.beam or options.sampling or options.alternatives or options.top_tokens) and (
        options.constraints is UNCONSTRAINED or options.constraints == UNCONSTRAINED
    )


@cache
def _unconstrained(end: int) -> TokenRules:
    return TokenRules(UNCONSTRAINED, end)


def _make_search(options: SearchOptions, end: int, vocabulary_size: int, decoder: TargetDecoder, index: int) -> Search:
    """Creates the search of one sample or alternative, by index, or the only search of a request."""
    constraints = options.constraints
    rules = _unconstrained(end) if constraints is UNCONSTRAINED else TokenRules(constraints, end)
    stops = StopTracker(decoder, constraints) if constraints.stop_sequences else None
    kind = SingleHypothesisSearch if options.beam is None else BeamSearch
    return kind(options, end, vocabulary_size, rules, stops, index)
