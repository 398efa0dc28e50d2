"""How long the steps of several runtimes take, to be compared."""

import time
from collections.abc import Sequence

from dragoman_server.runtime.runtime import Runtime

ROUNDS = 30


def least_seconds(runtimes: Sequence[Runtime], rows: int) -> list[float]:
    """Of a step of each: the least of several, in turns, since what else the machine does changes."""
    least = [float("inf")] * len(runtimes)
    for _ in range(ROUNDS):
        for i, runtime in enumerate(runtimes):
            start = time.perf_counter()
            runtime.top(rows, 1)
            least[i] = min(least[i], time.perf_counter() - start)
    return least
