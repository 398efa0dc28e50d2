"""Scores of beam search and their bounds."""

import math

import numpy as np
import pytest

from dragoman_server.core.search_options import BeamOptions, LengthNormalization
from dragoman_server.decoding.hypothesis_score import HypothesisScore

NONE, LENGTH, GNMT = LengthNormalization.NONE, LengthNormalization.LENGTH, LengthNormalization.GNMT


@pytest.mark.parametrize(
    ("normalization", "length_penalty", "divisor"),
    [
        (NONE, 3.0, 1.0),
        (LENGTH, 0.0, 1.0),
        (LENGTH, 1.0, 4.0),
        (LENGTH, 2.0, 16.0),
        (LENGTH, 0.5, 2.0),
        (LENGTH, -1.0, 0.25),
        (GNMT, 1.0, 1.5),
        (GNMT, 2.0, 2.25),
        (GNMT, 0.0, 1.0),
    ],
)
def test_divisors(normalization: LengthNormalization, length_penalty: float, divisor: float) -> None:
    scoring = HypothesisScore(BeamOptions(1, normalization, length_penalty), 9)
    assert scoring.divisor(4) == pytest.approx(divisor, rel=1e-15)
    assert scoring.score(-3.0, 4, None) == pytest.approx(-3.0 / divisor, rel=1e-15)


@pytest.mark.parametrize("length_penalty", [1e9, 700.0, -700.0, -1e9])
@pytest.mark.parametrize("normalization", [LENGTH, GNMT])
def test_no_penalty_is_too_much(normalization: LengthNormalization, length_penalty: float) -> None:
    scoring = HypothesisScore(BeamOptions(1, normalization, length_penalty), 1000)
    for length in (1, 2, 999, 1000):
        assert scoring.score(-20.0, length, None) <= 0.0
        assert scoring.upper_bound(-20.0, length - 1, None) <= 0.0
        assert scoring.score(0.0, length, None) == 0.0


def test_nothing_generated_has_no_length() -> None:
    assert HypothesisScore(BeamOptions(1, LENGTH, 1.0), 5).score(0.0, 0, None) == 0.0
    assert HypothesisScore(BeamOptions(1, LENGTH, -1.0, 0.5), 5).score(0.0, 0, None) == 0.0


def test_coverage_is_of_use_up_to_1() -> None:
    scoring = HypothesisScore(BeamOptions(1, NONE, coverage_penalty=2.0), 5)
    assert scoring.score(-1.0, 3, np.array([0.5, 1.0, 1.5])) == pytest.approx(-1.0 + 2 * math.log(0.5))
    unseen = scoring.score(-1.0, 3, np.array([0.0, 3.0]))
    assert unseen < -100
    assert math.isfinite(unseen)


@pytest.mark.parametrize("coverage_penalty", [0.0, 0.4, -0.4])
@pytest.mark.parametrize(
    ("normalization", "length_penalty"),
    [(NONE, 1.0), (LENGTH, 0.0), (LENGTH, 1.3), (LENGTH, -1.3), (GNMT, 1), (GNMT, -1)],
)
def test_the_bound_is_the_best_of_all_ends(
    normalization: LengthNormalization, length_penalty: float, coverage_penalty: float
) -> None:
    scoring = HypothesisScore(BeamOptions(1, normalization, length_penalty, coverage_penalty), 8)
    coverage = np.array([0.2, 0.9, 1.4])
    # The sum may stay as it is; the coverage term may stay as it is, or become 0.
    ends = [
        scoring.score(-2.5, length, covered)
        for length in range(5, 9)
        for covered in (coverage, np.array([1.0, 1.0, 1.0]))
    ]
    assert scoring.upper_bound(-2.5, 4, coverage) == pytest.approx(max(ends), rel=1e-12)
