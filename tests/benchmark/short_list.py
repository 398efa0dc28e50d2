"""Greedy search among a few tokens of a large vocabulary, beside the same among all of them."""

import random
from contextlib import ExitStack

from server.bundle.load import Bundle
from server.search.options import Constraints, SearchOptions
from tests.benchmark.beam_search import engine_contender, start_engines
from tests.benchmark.effort import Effort, Notify, take_samples
from tests.benchmark.outcome import ShortLists
from tests.benchmark.workload import SEED, Workload

TOKENS = 1000
BATCHES = (8, 32)


def measure_short_lists(bundle: Bundle, workload: Workload, effort: Effort, notify: Notify) -> ShortLists | None:
    """The engines in a loop. None where the vocabulary is no larger than a few lists.

    There is one list for all, as for a domain, and one drawn at random for each input. Lists made for sentences of one
    language have many tokens in common, which makes them cheaper than that.
    """
    manifest = bundle.manifest
    vocabulary = manifest.shape.target_vocabulary
    if vocabulary < 4 * TOKENS:
        return None
    draw = random.Random(SEED)

    def search() -> SearchOptions:
        tokens = {*draw.sample(range(vocabulary), TOKENS - 1), manifest.tokens.end}
        constraints = Constraints(vocabulary=tuple(sorted(tokens)))
        return SearchOptions(workload.max_new_tokens, constraints=constraints)

    searches = {
        "whole": [SearchOptions(workload.max_new_tokens)],
        "shared": [search()],
        "own": [search() for _ in workload.source_ids],
    }
    with ExitStack() as stack:
        notify("short lists: starting the engines")
        engines = start_engines(stack, bundle, workload, searches, max(BATCHES))
        contenders = [engine_contender(engines, name, name, size) for size in BATCHES for name in searches]
        series = take_samples(contenders, effort, notify)
    return ShortLists(workload.max_new_tokens, series, tokens=TOKENS, vocabulary=vocabulary)
