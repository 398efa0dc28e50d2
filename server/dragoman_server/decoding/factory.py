"""Creates the search for a request's options."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from dragoman_server.bundle.manifest import SpecialTokens
from dragoman_server.bundle.shortlist import Shortlist
from dragoman_server.core.search import Search
from dragoman_server.core.search_options import OWN_CONVENTIONS, UNCONSTRAINED, SearchOptions
from dragoman_server.decoding.beam import BeamSearch
from dragoman_server.decoding.beam_plan import BeamPlan, plan_of
from dragoman_server.decoding.greedy import GreedySearch
from dragoman_server.decoding.shared_prefix import SharedPrefixSearch
from dragoman_server.decoding.single_hypothesis import SingleHypothesisSearch
from dragoman_server.decoding.stop_sequences import StopTracker
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.decoding.token_rules import TokenRules


def make_search(
    options: SearchOptions,
    tokens: SpecialTokens,
    vocabulary_size: int,
    decoder: TargetDecoder,
    source_ids: Sequence[int] = (),
) -> Search:
    """Creates a search.

    Args:
        options: Options of the request.
        tokens: Special tokens of the bundle.
        vocabulary_size: Size of the target vocabulary.
        decoder: Converts tokens to the text that is searched for stop sequences.
        source_ids: Source of the request.
    """
    if is_plain_greedy(options):
        return GreedySearch(tokens.end, options.max_new_tokens, options.constraints.vocabulary)
    count = options.num_hypotheses if options.sampling is not None or options.alternatives else 1
    constraints, conventions = options.constraints, options.conventions
    rules = (
        _unconstrained(tokens.end)
        if constraints is UNCONSTRAINED and conventions is OWN_CONVENTIONS
        else TokenRules(constraints, tokens.end, conventions, source_ids, vocabulary_size)
    )
    stops = StopTracker(decoder, constraints) if constraints.stop_sequences else None
    searches: list[Search]
    if options.beam is None:
        searches = [
            SingleHypothesisSearch(options, tokens.end, vocabulary_size, rules, stops and stops.copy(), index)
            for index in range(count)
        ]
    else:
        plans = [_plan(options, tokens.end, vocabulary_size, rank) for rank in range(count)]
        searches = [BeamSearch(plan, rules, stops and stops.copy()) for plan in plans]
    return SharedPrefixSearch(searches, options.alternatives) if count > 1 else searches[0]


def narrowed(options: SearchOptions, shortlist: Shortlist, source_ids: Sequence[int]) -> SearchOptions:
    """Returns the options with the tokens that a lexical shortlist finds for a source, and those of the prefix.

    The tokens that a request allows itself come first: they are exact, and stay.

    Args:
        options: Options of the request.
        shortlist: The shortlist of the bundle.
        source_ids: Source of the request.
    """
    constraints = options.constraints
    if constraints.vocabulary is not None:
        return options
    candidates = shortlist.candidates(source_ids, constraints.prefix)
    return replace(options, constraints=replace(constraints, vocabulary=candidates))


def is_plain_greedy(options: SearchOptions) -> bool:
    """Returns whether the options ask for the most probable token every time and, but for a shortlist, for no more."""
    conventions, constraints = options.conventions, options.constraints
    return (
        not (options.beam or options.sampling or options.alternatives or options.top_tokens)
        and (constraints is UNCONSTRAINED or replace(constraints, vocabulary=None) == UNCONSTRAINED)
        and (
            conventions is OWN_CONVENTIONS or not (conventions.forced_first is not None or conventions.begin_suppressed)
        )
    )


def _plan(options: SearchOptions, end: int, vocabulary_size: int, rank: int) -> BeamPlan:
    if rank or options.constraints.vocabulary is not None:  # a shortlist is often of one request
        return BeamPlan(options, end, vocabulary_size, rank)
    return plan_of(options, end, vocabulary_size)


@cache
def _unconstrained(end: int) -> TokenRules:
    return TokenRules(UNCONSTRAINED, end)
