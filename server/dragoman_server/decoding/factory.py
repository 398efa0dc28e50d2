"""From what a request wants to the search that finds it."""

from functools import cache

from dragoman_server.bundle.manifest import SpecialTokens
from dragoman_server.core.search import Search
from dragoman_server.core.search_options import UNCONSTRAINED, SearchOptions
from dragoman_server.decoding.beam import BeamSearch
from dragoman_server.decoding.fork import Fork
from dragoman_server.decoding.greedy import GreedySearch
from dragoman_server.decoding.sequence import SequenceSearch
from dragoman_server.decoding.stop_sequences import StopTracker
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.decoding.token_rules import TokenRules


def make_search(options: SearchOptions, tokens: SpecialTokens, vocabulary_size: int, decoder: TargetDecoder) -> Search:
    """A new search.

    Args:
        vocabulary_size: of the target.
        decoder: makes the text in which stop sequences are looked for.
    """
    if _is_greedy(options):
        return GreedySearch(tokens.end, options.max_new_tokens)
    several = options.num_hypotheses if options.sampling is not None or options.alternatives else 1
    if several > 1:
        searches = [_make_one(options, tokens.end, vocabulary_size, decoder, index) for index in range(several)]
        return Fork(searches, options.alternatives)
    return _make_one(options, tokens.end, vocabulary_size, decoder, 0)


def _is_greedy(options: SearchOptions) -> bool:
    """Whether it wants the most probable token every time and nothing else."""
    return not (options.beam or options.sampling or options.alternatives or options.top_tokens) and (
        options.constraints is UNCONSTRAINED or options.constraints == UNCONSTRAINED
    )


@cache
def _unconstrained(end: int) -> TokenRules:
    """For most requests, which need not make their own."""
    return TokenRules(UNCONSTRAINED, end)


def _make_one(options: SearchOptions, end: int, vocabulary_size: int, decoder: TargetDecoder, index: int) -> Search:
    """Of the samples or alternatives, that of this index; without such, the only one."""
    free = options.constraints is UNCONSTRAINED
    rules = _unconstrained(end) if free else TokenRules(options.constraints, end)
    stops = StopTracker(decoder, options.constraints) if options.constraints.stop_sequences else None
    if options.beam is None:
        return SequenceSearch(options, end, vocabulary_size, rules, stops, index)
    return BeamSearch(options, end, vocabulary_size, rules, stops, index)
