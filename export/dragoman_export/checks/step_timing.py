"""Times encoder runs and decoder steps."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from dragoman_export.checks.serving_simulation import draw_sources
from dragoman_server.runtime.runtime import Runtime

ROUNDS = 30
FEWEST_ROUNDS = 3
MOST_SECONDS = 3.0  # of rounds beyond the fewest
TIMED_ROWS = (1, 8, 32)
SHORT_SOURCE = 16


def fill_with_short_sources(runtimes: Sequence[Runtime], rows: int, seed: int) -> list[list[int]]:
    """Encodes the same short sources in all runtimes, moves the rows to the middle of their targets, returns them."""
    rng = np.random.default_rng(seed)
    sources = draw_sources(runtimes[0].manifest, rows, min(SHORT_SOURCE, runtimes[0].source_capacity), rng)
    for runtime in runtimes:
        runtime.encode(sources, 0)
        runtime.positions[:] = runtime.target_capacity // 2
    return sources


def median_times(runtime: Runtime) -> dict[str, dict[str, float]]:
    """Returns median milliseconds of encoding and of a step by number of rows: a rough guide, on whatever machine."""
    result: dict[str, dict[str, float]] = {"encode": {}, "step": {}}
    timed = [rows for rows in TIMED_ROWS if rows <= runtime.max_rows]
    sources = fill_with_short_sources([runtime], max(timed), seed=2)
    for rows in timed:
        result["encode"][str(rows)] = _median_milliseconds(partial(runtime.encode, sources[:rows], 0), 10)
    runtime.positions[:] = runtime.target_capacity // 2
    for rows in timed:
        result["step"][str(rows)] = _median_milliseconds(partial(runtime.top, rows, 1), ROUNDS)
    return result


def fastest_steps(runtimes: Sequence[Runtime], rows: int) -> list[float]:
    """Returns the seconds of the fastest step of each runtime."""
    return fastest([partial(runtime.top, rows, 1) for runtime in runtimes])


def fastest(works: Sequence[Callable[[], Any]]) -> list[float]:
    """Returns the seconds of the fastest run of each.

    They take turns, as the load of the machine changes.
    """
    least = [float("inf")] * len(works)
    for _ in _rounds(ROUNDS):
        for i, work in enumerate(works):
            start = time.perf_counter()
            work()
            least[i] = min(least[i], time.perf_counter() - start)
    return least


def _rounds(most: int) -> Iterator[int]:
    """Counts to `most`, but stops early where that would take long."""
    start = time.perf_counter()
    for done in range(most):
        if done >= FEWEST_ROUNDS and time.perf_counter() - start > MOST_SECONDS:
            return
        yield done


def _median_milliseconds(work: Callable[[], Any], times: int) -> float:
    work()
    spent = []
    for _ in _rounds(times):
        start = time.perf_counter()
        work()
        spent.append(1e3 * (time.perf_counter() - start))
    return round(median(spent), 3)
