"""Sampling: truncation rules and random draws, from as few candidates as suffice."""

import math
from bisect import bisect_left, bisect_right
from itertools import accumulate
from operator import neg
from typing import NamedTuple

import numpy as np

from dragoman_server.core.search_options import SamplingOptions

FIRST_CANDIDATES = 64
ENTROPY_ERROR = 1e-4  # nats; more than entropies of one distribution differ by when its float32 is summed in parts


class Draw(NamedTuple):
    """A random choice among candidates.

    Attributes:
        rank: Index of the chosen token among the candidates.
        used: Number of best candidates that the choice depended on.
    """

    rank: int
    used: int


class RandomNumbers:
    """Uniform numbers in [0, 1) of one sample: Philox 4x64 (Salmon et al. 2011), keyed by seed and sample index.

    NumPy guarantees the streams of its bit generators, so a seed means the same in every version.
    """

    def __init__(self, seed: int, sample: int) -> None:
        self._philox = np.random.Philox(key=np.array([seed, sample], dtype=np.uint64))

    def next(self) -> float:
        """Returns the upper 53 bits of the next 64, as a fraction."""
        return (int(self._philox.random_raw()) >> 11) * 2.0**-53


class Sampler:
    """The truncation rules, and draws by inversion of the cumulative distribution of the tokens that they keep.

    The rules apply in the order top_k, top_p (Holtzman et al. 2020), min_p (Nguyen et al. 2024), typical_p (Meister et
    al. 2022), each to what the one before it kept, renormalized.

    Candidates come best first, and no other token is more probable than the last of them. That mostly suffices to know
    which tokens the rules keep, and which of them is drawn: the draw is then, to the bit, the one from the whole
    vocabulary, since all sums run from the best token down. Where it does not suffice, there is no draw.

    Args:
        options: The rules.
        vocabulary_size: Number of tokens that may be chosen.

    Attributes:
        candidates: Number of candidates to request first.
    """

    def __init__(self, options: SamplingOptions, vocabulary_size: int) -> None:
        self._top_k = options.top_k
        self._top_p = options.top_p
        self._min_p = options.min_p
        self._typical_p = options.typical_p
        self._vocabulary_size = vocabulary_size
        self.candidates = min(FIRST_CANDIDATES if options.top_k is None else options.top_k, vocabulary_size)

    def draw(self, log_probabilities: list[float], number: float) -> Draw | None:
        """Chooses a candidate.

        Args:
            log_probabilities: Log-probabilities of the candidates, best first; at least one is possible.
            number: Uniform random number in [0, 1).

        Returns:
            The choice, or None where these candidates do not suffice.
        """
        probabilities = list(map(math.exp, log_probabilities))
        masses = list(accumulate(probabilities))
        # The best `kept` candidates are left, with a probability of `mass` in all. Unless `complete`, the rules may
        # also keep tokens that are no candidates.
        complete = len(probabilities) >= self._vocabulary_size or probabilities[-1] == 0.0
        kept, mass = len(probabilities), 1.0
        if self._top_k is not None:
            if self._top_k <= kept:
                kept, complete = self._top_k, True
                mass = masses[kept - 1]
            elif not complete:
                return None
        if self._top_p is not None and self._top_p < 1.0:
            crossing = bisect_left(masses, self._top_p * mass, 0, kept)
            if crossing < kept:
                kept, complete = crossing + 1, True
                mass = masses[crossing]
            elif not complete:
                return None
        if self._min_p is not None and self._min_p > 0.0:
            fewer = bisect_right(probabilities, -self._min_p * probabilities[0], 0, kept, key=neg)
            if fewer < kept:
                kept, complete = fewer, True
                mass = masses[kept - 1]
            elif not complete:
                return None
        if self._typical_p is not None and self._typical_p < 1.0:
            typical = self._typical(log_probabilities[:kept], probabilities, mass, complete)
            if typical is None:
                return None
            masses = list(accumulate(probabilities[rank] for rank in typical))
            return Draw(typical[_invert(masses, len(masses), number * masses[-1])], typical[-1] + 1)
        if not complete and masses[-1] <= number:
            return None
        rank = _invert(masses, kept, number * mass)
        return Draw(rank, kept if kept < len(masses) else rank + 1)

    def _typical(
        self, log_probabilities: list[float], probabilities: list[float], mass: float, complete: bool
    ) -> list[int] | None:
        """Returns the ranks that typical_p keeps (Meister et al. 2022): those with a surprise nearest to the entropy.

        Where there are more tokens than candidates, only bounds of the entropy are known: the other tokens add least
        if each is as probable as the last candidate, and most if all are equally probable. The window of tokens
        nearest to the entropy moves one way as the entropy grows: what both bounds keep, any entropy between them
        keeps.

        Args:
            log_probabilities: Log-probabilities of the candidates that the other rules kept.
            probabilities: Probabilities of all candidates.
            mass: Probability of all tokens that the other rules kept.
            complete: Whether the candidates are all of those tokens.

        Returns:
            Ranks, ascending, or None where these candidates do not suffice.
        """
        surprises = [math.log(mass) - value for value in log_probabilities]
        entropy = sum(p / mass * surprise for p, surprise in zip(probabilities, surprises, strict=False) if p > 0.0)
        if complete:
            return self._nearest(surprises, probabilities, mass, entropy, math.inf)
        outside = surprises[-1]
        unseen = self._vocabulary_size - len(surprises)
        rest = max(mass - sum(probabilities), 0.0)
        low = entropy + rest * outside - ENTROPY_ERROR
        high = entropy + (rest * math.log(unseen / rest) if rest else 0.0) + ENTROPY_ERROR
        at_low, at_high = (self._nearest(surprises, probabilities, mass, bound, outside) for bound in (low, high))
        return at_low if at_low == at_high else None

    def _nearest(
        self, surprises: list[float], probabilities: list[float], mass: float, entropy: float, outside: float
    ) -> list[int] | None:
        """Returns the ranks that typical_p keeps for a given entropy; None where it may keep other tokens, too.

        Args:
            surprises: Surprises of the candidates, ascending.
            outside: Lower bound of the surprise of all other tokens; infinity where there are none.
        """
        assert self._typical_p is not None
        distances = [abs(surprise - entropy) for surprise in surprises]
        order = sorted(range(len(distances)), key=distances.__getitem__)
        masses = list(accumulate(probabilities[rank] for rank in order))
        crossing = bisect_left(masses, self._typical_p * mass)
        if crossing < len(order):
            furthest = distances[order[crossing]]
        elif outside == math.inf:
            furthest = math.inf
        else:
            return None
        if furthest >= outside - entropy and outside < math.inf:
            return None
        return [rank for rank, distance in enumerate(distances) if distance <= furthest]


def _invert(masses: list[float], kept: int, mass: float) -> int:
    """Returns the first of the best `kept` ranks up to which the candidates have more than `mass`.

    Sums of all may fall short of it by rounding; then it is the last rank that is possible.
    """
    rank = bisect_right(masses, mass, 0, kept)
    return rank if rank < kept else bisect_left(masses, masses[kept - 1], 0, kept)
