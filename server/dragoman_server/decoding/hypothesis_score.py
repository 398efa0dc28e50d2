"""What a hypothesis of a beam search is worth, and what one that goes on can still become worth."""

import math
import sys

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.search_options import BeamOptions, LengthNormalization

# Attention of exactly 0, which has no logarithm, counts as the least that there is.
LEAST = float(np.finfo(np.float32).tiny)


class Scoring:
    """RowScores of hypotheses: sum of log-probabilities / divisor(|Y|) + coverage.

    |Y| counts generated tokens, the end token included where it was chosen.

    Args:
        options: of the beam search.
        longest: the greatest |Y| there can be.
    """

    def __init__(self, options: BeamOptions, longest: int) -> None:
        self._normalization = options.length_normalization
        self._exponent = options.length_penalty
        self._coverage_penalty = options.coverage_penalty
        # Sums are at most 0, so the greater its divisor the better a hypothesis.
        self._longer_is_better = options.length_penalty > 0
        self._best_divisor = self.divisor(longest)

    def divisor(self, length: int) -> float:
        """|Y|^A, or ((5 + |Y|) / 6)^A (Wu et al. 2016, equation 14), or 1. Always more than 0."""
        if self._normalization is LengthNormalization.NONE:
            return 1.0
        base = float(length) if self._normalization is LengthNormalization.LENGTH else (5 + length) / 6
        try:
            return max(math.pow(base, self._exponent), sys.float_info.min)
        except OverflowError:
            return math.inf

    def score(self, total: float, length: int, coverage: NDArray[np.float64] | None) -> float:
        """Of a hypothesis that ended; of one that has no token yet, 0.

        Args:
            total: sum of its log-probabilities.
            length: its |Y|.
            coverage: attention that each source token got from all its steps, if that counts: [source].
        """
        if length == 0:
            return 0.0
        return total / self.divisor(length) + self._covered(coverage)

    def bound(self, total: float, length: int, coverage: NDArray[np.float64] | None) -> float:
        """The best score that a running hypothesis can still reach.

        Its sum falls from here, or stays at best. Of the lengths that it can still end with, the longest is the best
        for a positive A, the shortest for a negative one. What it covers grows: the coverage term goes towards 0, from
        below where B > 0 and from above where B < 0.

        Args:
            total: sum of its log-probabilities.
            length: generated tokens so far; it ends with one more at least.
            coverage: as for `score`.
        """
        if self._longer_is_better:
            best = total / self._best_divisor
        else:
            best = total / self.divisor(length + 1)
        return best + self._covered(coverage) if self._coverage_penalty < 0 else best

    def _covered(self, coverage: NDArray[np.float64] | None) -> float:
        """B * sum over source tokens of log(min(attention they got, 1))."""
        if coverage is None:
            return 0.0
        return self._coverage_penalty * float(np.log(np.clip(coverage, LEAST, 1.0)).sum())
