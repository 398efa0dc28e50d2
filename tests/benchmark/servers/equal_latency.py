"""Throughput at equal latency: what each server gives while its p99 stays within the same bound."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from tests.benchmark.servers.results import Point

_STEPS = (1, 2, 5)


def rate_within(points: Sequence[Point], p99: float) -> float | None:
    """Tokens per second at the highest load that keeps to a p99; None where not even the lowest does.

    Between two measured loads, one of which keeps to it and the next does not, rate and p99 are taken to change
    together, linearly.

    Args:
        points: of one system, by rising load.
        p99: seconds.
    """
    rates = [point.rate for point in points if point.p99 <= p99]
    for one, other in pairwise(points):
        if one.p99 <= p99 < other.p99:
            share = (p99 - one.p99) / (other.p99 - one.p99)
            rates.append(one.rate + share * (other.rate - one.rate))
    return max(rates, default=None)


def bounds(curves: Iterable[Sequence[Point]]) -> list[float]:
    """Round numbers of seconds, 1, 2, 5, 10 ..., within which all of these curves have a point, and not all of it."""
    lowest = max(min(point.p99 for point in curve) for curve in curves)
    highest = min(max(point.p99 for point in curve) for curve in curves)
    return [
        value for exponent in range(-4, 3) for step in _STEPS if lowest <= (value := step * 10.0**exponent) <= highest
    ]
