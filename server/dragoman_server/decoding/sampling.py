"""Drawing a token at random, out of as few candidates as will do."""

import math
from bisect import bisect_left, bisect_right
from itertools import accumulate
from operator import neg
from typing import NamedTuple

import numpy as np

from dragoman_server.core.search_options import SamplingOptions

FIRST_CANDIDATES = 64
ROUNDING = 1e-4  # more than the entropies of one distribution differ by, in nats, where its float32 is summed in parts


class Drawn(NamedTuple):
    """A choice among candidates.

    Attributes:
        place: of the token among them.
        reach: how many of the candidates had to be looked at, best first.
    """

    place: int
    reach: int


class RandomNumbers:
    """Uniform numbers of one sample, in [0, 1): Philox 4x64 (Salmon et al. 2011), with seed and sample as its key.

    NumPy keeps the streams of its bit generators as they are, so that a seed means the same in every version.
    """

    def __init__(self, seed: int, sample: int) -> None:
        self._philox = np.random.Philox(key=np.array([seed, sample], dtype=np.uint64))

    def next(self) -> float:
        """The upper 53 bits of the next 64."""
        return (int(self._philox.random_raw()) >> 11) * 2.0**-53


class Sampler:
    """The truncation rules, and the draw, which inverts the cumulative distribution of what they leave.

    The rules apply in the order top_k, top_p, min_p, typical_p, each to what the one before it left, renormalised.

    Candidates come best first, and what is not among them is no more probable than the last. That is mostly enough to
    know which tokens the rules leave, and which of them is drawn: the answer is then the one that the whole vocabulary
    would give, to the bit, since all sums run from the best token down. Where it is not enough, there is no answer.

    Args:
        options: the rules.
        vocabulary_size: tokens that may be chosen.

    Attributes:
        candidates: how many to look at first.
    """

    def __init__(self, options: SamplingOptions, vocabulary_size: int) -> None:
        self._top_k = options.top_k
        self._top_p = options.top_p
        self._min_p = options.min_p
        self._typical_p = options.typical_p
        self._vocabulary_size = vocabulary_size
        self.candidates = min(FIRST_CANDIDATES if options.top_k is None else options.top_k, vocabulary_size)

    def draw(self, log_probabilities: list[float], number: float) -> Drawn | None:
        """Chooses a candidate.

        Args:
            log_probabilities: of the candidates, best first; at least one is possible.
            number: uniform in [0, 1).

        Returns:
            None where these candidates do not suffice.
        """
        probabilities = list(map(math.exp, log_probabilities))
        masses = list(accumulate(probabilities))
        whole = len(probabilities) >= self._vocabulary_size or probabilities[-1] == 0.0
        left, mass = len(probabilities), 1.0  # the best `left` tokens, together so probable; more where not `whole`
        if self._top_k is not None:
            if self._top_k <= left:
                left, whole = self._top_k, True
                mass = masses[left - 1]
            elif not whole:
                return None
        if self._top_p is not None and self._top_p < 1.0:
            crossing = bisect_left(masses, self._top_p * mass, 0, left)
            if crossing < left:
                left, whole = crossing + 1, True
                mass = masses[crossing]
            elif not whole:
                return None
        if self._min_p is not None and self._min_p > 0.0:
            fewer = bisect_right(probabilities, -self._min_p * probabilities[0], 0, left, key=neg)
            if fewer < left:
                left, whole = fewer, True
                mass = masses[left - 1]
            elif not whole:
                return None
        if self._typical_p is not None and self._typical_p < 1.0:
            typical = self._typical(log_probabilities[:left], probabilities, mass, whole)
            if typical is None:
                return None
            masses = list(accumulate(probabilities[place] for place in typical))
            return Drawn(typical[_invert(masses, len(masses), number * masses[-1])], typical[-1] + 1)
        if not whole and masses[-1] <= number:
            return None
        place = _invert(masses, left, number * mass)
        return Drawn(place, left if left < len(masses) else place + 1)

    def _typical(
        self, log_probabilities: list[float], probabilities: list[float], mass: float, whole: bool
    ) -> list[int] | None:
        """The candidates that typical_p leaves (Meister et al. 2022): the nearest to the entropy by their surprise.

        Where there are more tokens than candidates, the entropy is known within bounds only: what the rest adds is
        least where each is as probable as the last candidate, and most where all are equally probable. The window of
        tokens nearest to the entropy moves one way as that grows: what both bounds leave, so does what is between.

        Args:
            log_probabilities: of the candidates that the other rules left.
            mass: of the distribution that they belong to.
            whole: whether they are all of it.
        """
        surprises = [math.log(mass) - value for value in log_probabilities]
        entropy = sum(p / mass * surprise for p, surprise in zip(probabilities, surprises, strict=False) if p > 0.0)
        if whole:
            return self._nearest(surprises, probabilities, mass, entropy, math.inf)
        outside = surprises[-1]  # a token that is no candidate has this surprise or more
        unseen = self._vocabulary_size - len(surprises)
        rest = max(mass - sum(probabilities), 0.0)
        low = entropy + rest * outside - ROUNDING
        high = entropy + (rest * math.log(unseen / rest) if rest else 0.0) + ROUNDING
        one, other = (self._nearest(surprises, probabilities, mass, bound, outside) for bound in (low, high))
        return one if one == other else None

    def _nearest(
        self, surprises: list[float], probabilities: list[float], mass: float, entropy: float, outside: float
    ) -> list[int] | None:
        """Places of the candidates that typical_p leaves, best first; None where other tokens may be among them."""
        assert self._typical_p is not None
        distances = [abs(surprise - entropy) for surprise in surprises]
        order = sorted(range(len(distances)), key=distances.__getitem__)
        masses = list(accumulate(probabilities[place] for place in order))
        crossing = bisect_left(masses, self._typical_p * mass)
        if crossing < len(order):
            furthest = distances[order[crossing]]
        elif outside == math.inf:
            furthest = math.inf
        else:
            return None
        if furthest >= outside - entropy and outside < math.inf:
            return None
        return [place for place, distance in enumerate(distances) if distance <= furthest]


def _invert(masses: list[float], left: int, mass: float) -> int:
    """The first of the best `left` candidates that together have more than `mass`.

    Sums of all may fall short of it by rounding; then it is the last one that is possible.
    """
    place = bisect_right(masses, mass, 0, left)
    return place if place < left else bisect_left(masses, masses[left - 1], 0, left)
