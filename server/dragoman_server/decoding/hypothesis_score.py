"""Scores of beam search hypotheses: length normalization and coverage (Wu et al. 2016), and bounds on them."""

import math
import sys

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.search_options import BeamOptions, LengthNormalization

# Attention of exactly 0 has no logarithm; it counts as the smallest positive float32.
MIN_ATTENTION = float(np.finfo(np.float32).tiny)


class HypothesisScore:
    """Scores hypotheses: sum of log-probabilities / divisor(|Y|) + coverage term.

    |Y| counts generated tokens, the end token included if it was chosen.

    Args:
        options: Options of the beam search.
        max_length: Largest possible |Y|.

    Attributes:
        max_length_divisor: Divisor at the largest |Y|.
    """

    def __init__(self, options: BeamOptions, max_length: int) -> None:
        self._normalization = options.length_normalization
        self._exponent = options.length_penalty
        self._coverage_penalty = options.coverage_penalty
        # Sums are at most 0, so a larger divisor means a better score.
        self._longer_is_better = options.length_penalty > 0
        self.max_length_divisor = self.divisor(max_length)

    def divisor(self, length: int) -> float:
        """Returns |Y|^A, or ((5 + |Y|) / 6)^A (Wu et al. 2016, equation 14), or 1. Always greater than 0."""
        if self._normalization is LengthNormalization.NONE:
            return 1.0
        base = float(length) if self._normalization is LengthNormalization.LENGTH else (5 + length) / 6
        try:
            return max(math.pow(base, self._exponent), sys.float_info.min)
        except OverflowError:
            return math.inf

    def score(self, total: float, length: int, coverage: NDArray[np.float64] | None) -> float:
        """Returns the score of a finished hypothesis; 0 for one without tokens.

        Args:
            total: Sum of its log-probabilities.
            length: Its |Y|.
            coverage: Attention to each source token, summed over its steps, [source]; None without coverage penalty.
        """
        if length == 0:
            return 0.0
        return total / self.divisor(length) + self._coverage_term(coverage)

    def at_max_length(self, total: float) -> float:
        """Returns the score of a sum of log-probabilities at the largest |Y|."""
        return total / self.max_length_divisor

    def upper_bound(self, total: float, length: int, coverage: NDArray[np.float64] | None) -> float:
        """Returns the best score that a running hypothesis can still reach.

        Its sum cannot rise. Of the lengths that it can still end with, the longest is the best for a positive A, the
        shortest for a negative one. Coverage only grows, so the coverage term tends to 0: from below where B > 0, from
        above where B < 0.

        Args:
            total: Sum of its log-probabilities.
            length: Number of tokens generated so far; it ends with at least one more.
            coverage: As for `score`.
        """
        bound = total / self.bound_divisor(length)
        return bound + self._coverage_term(coverage) if self._coverage_penalty < 0 else bound

    def bound_divisor(self, length: int) -> float:
        """Returns the divisor of the best length that a hypothesis with `length` tokens so far can end with."""
        return self.max_length_divisor if self._longer_is_better else self.divisor(length + 1)

    def _coverage_term(self, coverage: NDArray[np.float64] | None) -> float:
        """Returns B * sum over source tokens of log(min(coverage, 1)) (Wu et al. 2016, equation 14)."""
        if coverage is None:
            return 0.0
        return self._coverage_penalty * float(np.log(np.clip(coverage, MIN_ATTENTION, 1.0)).sum())
