"""Truncation of a distribution, and the draw from what is left of it."""

from typing import NamedTuple

import numpy as np

from dragoman_server.core.search_options import SamplingOptions
from tests.reference.step import Margins, Vector, ranked


class Candidates(NamedTuple):
    """Tokens and their probabilities, which sum to 1, the most probable first."""

    ids: list[int]
    probabilities: Vector

    def keep(self, ranks: list[int]) -> "Candidates":
        """Returns the tokens of these ranks, renormalized."""
        kept = sorted(ranks)
        rest = self.probabilities[kept]
        return Candidates([self.ids[i] for i in kept], rest / rest.sum())

    def first(self, count: int) -> "Candidates":
        return self.keep(list(range(min(count, len(self.ids)))))


class RandomStream:
    """The random numbers of one sample: uniform in [0, 1), one for each generated token."""

    def __init__(self, seed: int, sample: int) -> None:
        self._bits = np.random.Philox(key=np.array([seed, sample], np.uint64))

    def next(self) -> float:
        return int(self._bits.random_raw()) / 2**64


def draw(log_probabilities: Vector, options: SamplingOptions, uniform: float, margins: Margins) -> int:
    """Returns the token whose share of [0, 1) contains `uniform`, the shares side by side, most probable first."""
    left = truncated(log_probabilities, options, margins)
    borders = np.cumsum(left.probabilities)
    rank = min(int(np.searchsorted(borders, uniform, side="right")), len(left.ids) - 1)
    for border in (rank - 1, rank):
        if 0 <= border < len(left.ids) - 1:
            margins.note(uniform - borders[border])
            margins.note(np.log(left.probabilities[border] / left.probabilities[border + 1]))
    return left.ids[rank]


def truncated(log_probabilities: Vector, options: SamplingOptions, margins: Margins) -> Candidates:
    """Returns what the rules leave, each of what the one before it left."""
    ids = [token for token in ranked(log_probabilities) if np.exp(log_probabilities[token]) > 0]
    left = Candidates(ids, np.exp(log_probabilities[ids])).first(len(ids))
    if options.top_k is not None:
        margins.cut(np.log(left.probabilities).tolist(), options.top_k)
        left = left.first(options.top_k)
    if options.top_p is not None and options.top_p < 1:
        left = left.keep(_crossing(list(range(len(left.ids))), left.probabilities, options.top_p, margins))
    if options.min_p:
        least = options.min_p * left.probabilities[0]
        for probability in left.probabilities[1:]:
            margins.note(np.log(probability) - np.log(least))
        left = left.keep([i for i, p in enumerate(left.probabilities) if i == 0 or p >= least])
    if options.typical_p is not None and options.typical_p < 1:
        information = -np.log(left.probabilities)
        distance = np.abs(information - (left.probabilities * information).sum())
        order = [int(i) for i in np.argsort(distance, kind="stable")]
        kept = _crossing(order, left.probabilities, options.typical_p, margins)
        margins.cut((-distance[order]).tolist(), len(kept))
        furthest = distance[kept[-1]]
        left = left.keep([i for i, d in enumerate(distance) if d <= furthest])
    return left


def _crossing(order: list[int], probabilities: Vector, mass: float, margins: Margins) -> list[int]:
    """Returns the shortest start of `order` that together has this probability."""
    reached = np.cumsum(probabilities[order])
    for border in reached[:-1]:
        margins.note(border - mass)
    count = min(int(np.searchsorted(reached, mass, side="left")) + 1, len(order))
    if order == sorted(order):  # by probability: which of two equal ones crosses is chance
        margins.cut(np.log(probabilities[order]).tolist(), count)
    return order[:count]
