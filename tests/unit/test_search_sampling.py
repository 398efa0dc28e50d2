"""Draws follow the truncated distribution exactly, however many candidates the sampler sees."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman_server.core.search_options import SamplingOptions
from dragoman_server.decoding.sampling import FIRST_CANDIDATES, Draw, RandomNumbers, Sampler
from tests.reference.sampling import truncated
from tests.reference.step import Margins

Array = NDArray[np.float64]


def after_rules(probabilities: Array, options: SamplingOptions) -> Array:
    """Returns a distribution, best first, after the reference has applied the rules."""
    with np.errstate(divide="ignore"):
        candidates = truncated(np.log(probabilities), options, Margins())
    kept = np.zeros(len(probabilities))
    kept[candidates.ids] = candidates.probabilities
    return kept


def distribution(seed: int, size: int, spread: float) -> Array:
    """Returns probabilities, best first; the larger the spread, the more peaked."""
    logits = np.random.default_rng(seed).normal(scale=spread, size=size)
    probabilities = np.exp(logits - logits.max())
    best_first: Array = np.sort(probabilities / probabilities.sum())[::-1]
    return best_first


def logs(probabilities: Array) -> list[float]:
    """Returns float32 log-probabilities, as a step does."""
    with np.errstate(divide="ignore"):
        values: list[float] = np.log(probabilities).astype(np.float32).tolist()
    return values


RULES: dict[str, SamplingOptions] = {
    "none": SamplingOptions(0),
    "top_k": SamplingOptions(0, top_k=5),
    "top_p": SamplingOptions(0, top_p=0.8),
    "min_p": SamplingOptions(0, min_p=0.5),
    "typical_p": SamplingOptions(0, typical_p=0.7),
    "typical_p without the best": SamplingOptions(0, typical_p=0.2),
    "top_k, then top_p": SamplingOptions(0, top_k=8, top_p=0.8),
    "top_p, then min_p": SamplingOptions(0, top_p=0.9, min_p=0.2),
    "min_p, then typical_p": SamplingOptions(0, min_p=0.02, typical_p=0.5),
    "all": SamplingOptions(0, top_k=12, top_p=0.95, min_p=0.05, typical_p=0.9),
    "all, without effect": SamplingOptions(0, top_k=30, top_p=1.0, min_p=0.0, typical_p=1.0),
}


def chi_square_bound(freedom: int) -> float:
    """Returns what chi-square exceeds with a probability of 1e-5 (Wilson and Hilferty 1931)."""
    part = 2 / (9 * freedom)
    bound: float = freedom * (1 - part + 4.265 * math.sqrt(part)) ** 3
    return bound


def chi_square(counts: Counter[int], expected: Array, draws: int) -> float:
    means: list[float] = (draws * expected).tolist()
    return sum((counts[rank] - mean) ** 2 / mean for rank, mean in enumerate(means) if mean)


@pytest.mark.parametrize("rule", RULES)
def test_draws_follow_the_truncated_distribution(rule: str) -> None:
    probabilities, draws = distribution(1, 20, 1.0), 20_000
    sampler = Sampler(RULES[rule], 20)
    numbers = RandomNumbers(7, 0)
    log_probabilities = logs(probabilities)
    counts: Counter[int] = Counter()
    for _ in range(draws):
        drawn = sampler.draw(log_probabilities, numbers.next())
        assert drawn is not None
        counts[drawn.rank] += 1
    expected = after_rules(probabilities, RULES[rule])
    assert not any(expected[rank] == 0 for rank in counts)
    freedom = int((expected > 0).sum()) - 1
    assert freedom > 0
    assert chi_square(counts, expected, draws) < chi_square_bound(freedom)
    if not rule.endswith("effect") and rule != "none":  # the rules make a difference
        assert chi_square(counts, probabilities, draws) > chi_square_bound(19)


SOME_RULES = st.builds(
    SamplingOptions,
    seed=st.just(0),
    top_k=st.none() | st.integers(1, 300),
    top_p=st.none() | st.floats(0.01, 1.0),
    min_p=st.none() | st.floats(0.0, 1.0),
    typical_p=st.none() | st.floats(0.01, 1.0),
)


@settings(deadline=None, max_examples=300)
@given(
    options=SOME_RULES,
    seed=st.integers(0, 10_000),
    size=st.integers(1, 300),
    spread=st.sampled_from([0.3, 1.0, 3.0, 8.0]),
    number=st.floats(0, 1, exclude_max=True),
)
@example(options=SamplingOptions(0, typical_p=1.0), seed=0, size=300, spread=8.0, number=1 - 2**-53)
def test_candidates_that_suffice_give_the_draw_from_the_whole_vocabulary(
    options: SamplingOptions, seed: int, size: int, spread: float, number: float
) -> None:
    log_probabilities = logs(distribution(seed, size, spread))
    sampler = Sampler(options, size)
    complete = sampler.draw(log_probabilities, number)
    assert complete is not None
    expected = after_rules(np.exp(np.array(log_probabilities)), options)
    # The rank where the cumulative distribution passes the number, apart from rounding.
    passed = np.cumsum(expected)
    assert passed[complete.rank] > number - 1e-6
    assert complete.rank == 0 or passed[complete.rank - 1] <= number + 1e-6
    # Sums that round to 1 lack what is too small to be added.
    assert expected[complete.rank] > 0 or np.exp(log_probabilities[complete.rank]) < 1e-6
    for candidates in range(1, size + 1):
        drawn = sampler.draw(log_probabilities[:candidates], number)
        assert drawn is None or drawn.rank == complete.rank
        assert drawn is None or drawn.rank < drawn.used <= candidates


@pytest.mark.parametrize(
    "options",
    [
        SamplingOptions(0),
        SamplingOptions(0, top_p=0.95),
        SamplingOptions(0, min_p=0.05),
        SamplingOptions(0, typical_p=0.9),
        SamplingOptions(0, top_p=0.95, typical_p=0.9),
    ],
)
def test_few_candidates_suffice_for_peaked_distributions(options: SamplingOptions) -> None:
    """Otherwise every sample would request the whole vocabulary, and the tests above would prove nothing."""
    sampler, numbers = Sampler(options, 2000), np.random.default_rng(0).random(200)
    candidates = [logs(distribution(seed, 2000, 6.0)[: sampler.candidates]) for seed in range(200)]
    draws = [sampler.draw(some, float(number)) for some, number in zip(candidates, numbers, strict=True)]
    assert sum(drawn is not None for drawn in draws) > 180


def test_there_is_no_draw_from_too_few_candidates() -> None:
    flat = logs(np.full(1000, 1e-3))
    for options in RULES.values():
        sampler = Sampler(options, 1000)
        if options.top_k is None or options.top_k > FIRST_CANDIDATES:
            assert sampler.draw(flat[:FIRST_CANDIDATES], 0.5) is None
    assert Sampler(SamplingOptions(0, top_k=30), 1000).draw(flat[:29], 0.0) is None
    assert Sampler(SamplingOptions(0), 1000).draw(flat[:64], 0.01) == Draw(10, 11)


HALVES, TYPICAL = (0.5, 0.25, 0.125, 0.125), (0.5, 0.2, 0.2, 0.1)


@pytest.mark.parametrize(
    ("probabilities", "options", "kept"),
    [
        (HALVES, SamplingOptions(0, top_k=1), {0}),
        (HALVES, SamplingOptions(0, top_k=3), {0, 1, 2}),
        (HALVES, SamplingOptions(0, top_p=0.5), {0}),  # the token that reaches it exactly is the last
        (HALVES, SamplingOptions(0, top_p=0.51), {0, 1}),
        (HALVES, SamplingOptions(0, top_p=1e-9), {0}),
        (HALVES, SamplingOptions(0, min_p=0.5), {0, 1}),
        (HALVES, SamplingOptions(0, min_p=0.51), {0}),
        (HALVES, SamplingOptions(0, min_p=1.0), {0}),
        (HALVES, SamplingOptions(0, top_k=2, top_p=0.6), {0}),  # two thirds are more than 0.6
        # Entropy 1.22: the surprise of 0.2 (1.61) is nearer to it than those of 0.5 (0.69) and 0.1 (2.3).
        (TYPICAL, SamplingOptions(0, typical_p=0.3), {1, 2}),
    ],
)
def test_tokens_at_the_borders_of_the_rules(
    probabilities: tuple[float, ...], options: SamplingOptions, kept: set[int]
) -> None:
    log_probabilities = [math.log(p) for p in probabilities]
    sampler = Sampler(options, 4)
    assert {drawn.rank for n in range(1000) if (drawn := sampler.draw(log_probabilities, n / 1000))} == kept


@pytest.mark.parametrize("options", RULES.values())
def test_impossible_tokens_are_never_drawn(options: SamplingOptions) -> None:
    log_probabilities = [*(math.log(p) for p in (0.5, 0.25, 0.2499)), -math.inf, -math.inf]
    sampler = Sampler(options, 5)
    for number in (0.0, 0.3, 0.99995, 1 - 2.0**-53):
        drawn = sampler.draw(log_probabilities, number)
        assert drawn is not None
        assert drawn.rank < 3
        # All tokens after an impossible candidate are impossible, so no more candidates are needed.
        assert sampler.draw(log_probabilities[:4], number) == drawn


@pytest.mark.parametrize(
    ("options", "vocabulary_size", "candidates"),
    [
        (SamplingOptions(0), 32_000, FIRST_CANDIDATES),
        (SamplingOptions(0), 30, 30),
        (SamplingOptions(0, top_k=5, top_p=0.9), 32_000, 5),
        (SamplingOptions(0, top_k=500), 32_000, 500),
        (SamplingOptions(0, top_k=500), 100, 100),
    ],
)
def test_candidates_requested_first(options: SamplingOptions, vocabulary_size: int, candidates: int) -> None:
    assert Sampler(options, vocabulary_size).candidates == candidates


def philox(seed: int, sample: int, counter: int) -> list[int]:
    """Philox4x64-10, Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"."""
    mask = 2**64 - 1
    key, words = [seed, sample], [counter, 0, 0, 0]
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * words[0], 0xCA5A826395121157 * words[2]
        words = [
            (second >> 64) ^ words[1] ^ key[0],
            second & mask,
            (first >> 64) ^ words[3] ^ key[1],
            first & mask,
        ]
        key = [(key[0] + 0x9E3779B97F4A7C15) & mask, (key[1] + 0xBB67AE8584CAA73B) & mask]
    return words


@settings(deadline=None)
@given(seed=st.integers(0, 2**64 - 1), sample=st.integers(0, 1000))
def test_random_numbers_are_those_of_philox(seed: int, sample: int) -> None:
    """A seed then means the same for ever."""
    numbers = RandomNumbers(seed, sample)
    words = [word for counter in (1, 2, 3) for word in philox(seed, sample, counter)]
    assert [numbers.next() for _ in words] == [(word >> 11) / 2**53 for word in words]
