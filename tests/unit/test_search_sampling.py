"""Draws follow the distribution that the rules leave, exactly, however many candidates were seen."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman_server.core.search_options import SamplingOptions
from dragoman_server.decoding.sampling import FIRST_CANDIDATES, Draw, RandomNumbers, Sampler

Array = NDArray[np.float64]


def left_by_the_rules(probabilities: Array, options: SamplingOptions) -> Array:
    """What remains of a distribution, renormalised after each rule: the definitions, on the whole vocabulary."""
    left: Array = probabilities / probabilities.sum()
    order = np.argsort(-left, kind="stable")
    if options.top_k is not None:
        left[order[options.top_k :]] = 0
        left /= left.sum()
    if options.top_p is not None:
        before = np.cumsum(left[order]) - left[order]
        left[order[before >= options.top_p]] = 0
        left /= left.sum()
    if options.min_p is not None:
        left[left < options.min_p * left.max()] = 0
        left /= left.sum()
    if options.typical_p is not None:
        possible = np.flatnonzero(left)
        surprise = -np.log(left[possible])
        distance = np.abs(surprise - (left[possible] * surprise).sum())
        nearest = np.argsort(distance, kind="stable")
        needed = int((np.cumsum(left[possible][nearest]) < options.typical_p).sum())
        furthest = distance[nearest[min(needed, len(nearest) - 1)]]
        left[possible[distance > furthest]] = 0
        left /= left.sum()
    return left


def distribution(seed: int, size: int, spread: float) -> Array:
    """Best first. The greater the spread, the more peaked."""
    logits = np.random.default_rng(seed).normal(scale=spread, size=size)
    probabilities = np.exp(logits - logits.max())
    best_first: Array = np.sort(probabilities / probabilities.sum())[::-1]
    return best_first


def logs(probabilities: Array) -> list[float]:
    """As a step delivers them."""
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
    "all, saying nothing": SamplingOptions(0, top_k=30, top_p=1.0, min_p=0.0, typical_p=1.0),
}


def chi_square_bound(freedom: int) -> float:
    """What chi-square exceeds with a probability of 1e-5 (Wilson and Hilferty 1931)."""
    part = 2 / (9 * freedom)
    bound: float = freedom * (1 - part + 4.265 * math.sqrt(part)) ** 3
    return bound


def chi_square(counts: Counter[int], expected: Array, draws: int) -> float:
    wanted: list[float] = (draws * expected).tolist()
    return sum((counts[place] - number) ** 2 / number for place, number in enumerate(wanted) if number)


@pytest.mark.parametrize("rule", RULES)
def test_draws_follow_the_distribution_that_the_rules_leave(rule: str) -> None:
    probabilities, draws = distribution(1, 20, 1.0), 20_000
    sampler = Sampler(RULES[rule], 20)
    numbers = RandomNumbers(7, 0)
    log_probabilities = logs(probabilities)
    counts: Counter[int] = Counter()
    for _ in range(draws):
        drawn = sampler.draw(log_probabilities, numbers.next())
        assert drawn is not None
        counts[drawn.rank] += 1
    expected = left_by_the_rules(probabilities, RULES[rule])
    assert {place for place in counts if not expected[place]} == set()
    freedom = int((expected > 0).sum()) - 1
    assert freedom > 0
    assert chi_square(counts, expected, draws) < chi_square_bound(freedom)
    if not rule.endswith("nothing") and rule != "none":  # the test would notice if the rules were not applied
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
def test_candidates_that_suffice_give_what_the_whole_vocabulary_gives(
    options: SamplingOptions, seed: int, size: int, spread: float, number: float
) -> None:
    log_probabilities = logs(distribution(seed, size, spread))
    sampler = Sampler(options, size)
    whole = sampler.draw(log_probabilities, number)
    assert whole is not None
    expected = left_by_the_rules(np.exp(np.array(log_probabilities)), options)
    # The place where the cumulative distribution passes the number; rounding may matter in the last digits.
    passed = np.cumsum(expected)
    assert passed[whole.rank] > number - 1e-6
    assert whole.rank == 0 or passed[whole.rank - 1] <= number + 1e-6
    # Sums that round to 1 leave out what is too small to be added to them.
    assert expected[whole.rank] > 0 or np.exp(log_probabilities[whole.rank]) < 1e-6
    for candidates in range(1, size + 1):
        drawn = sampler.draw(log_probabilities[:candidates], number)
        assert drawn is None or drawn.rank == whole.rank
        assert drawn is None or drawn.rank < drawn.used <= candidates


def test_few_candidates_suffice_for_what_is_peaked() -> None:
    """Else every sample would have the whole vocabulary delivered, and the tests above would show nothing."""
    size, numbers = 2000, np.random.default_rng(0).random(200)
    rules = {
        "none": SamplingOptions(0),
        "top_p": SamplingOptions(0, top_p=0.95),
        "min_p": SamplingOptions(0, min_p=0.05),
        "typical_p": SamplingOptions(0, typical_p=0.9),
        "top_p, then typical_p": SamplingOptions(0, top_p=0.95, typical_p=0.9),
    }
    for rule, options in rules.items():
        sampler = Sampler(options, size)
        enough = 0
        for seed, number in enumerate(numbers):
            log_probabilities = logs(distribution(seed, size, 6.0))
            enough += sampler.draw(log_probabilities[: sampler.candidates], float(number)) is not None
        assert enough > 180, rule


def test_candidates_that_do_not_suffice_give_nothing() -> None:
    flat = logs(np.full(1000, 1e-3))
    for options in RULES.values():
        sampler = Sampler(options, 1000)
        if options.top_k is None or options.top_k > FIRST_CANDIDATES:
            assert sampler.draw(flat[:FIRST_CANDIDATES], 0.5) is None
    assert Sampler(SamplingOptions(0, top_k=30), 1000).draw(flat[:29], 0.0) is None
    assert Sampler(SamplingOptions(0), 1000).draw(flat[:64], 0.01) == Draw(10, 11)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (SamplingOptions(0, top_k=1), 1),
        (SamplingOptions(0, top_k=3), 3),
        (SamplingOptions(0, top_p=0.5), 1),  # the one that reaches it exactly is the last
        (SamplingOptions(0, top_p=0.51), 2),
        (SamplingOptions(0, top_p=1e-9), 1),
        (SamplingOptions(0, min_p=0.5), 2),
        (SamplingOptions(0, min_p=0.51), 1),
        (SamplingOptions(0, min_p=1.0), 1),
        (SamplingOptions(0, top_k=2, top_p=0.6), 1),  # two thirds are more than 0.6
    ],
)
def test_borders_of_the_rules(options: SamplingOptions, left: int) -> None:
    log_probabilities = [math.log(p) for p in (0.5, 0.25, 0.125, 0.125)]
    sampler = Sampler(options, 4)
    places = {drawn.rank for n in range(1000) if (drawn := sampler.draw(log_probabilities, n / 1000))}
    assert places == set(range(left))


def test_typical_p_keeps_the_nearest_to_the_entropy_not_the_best() -> None:
    """Entropy 1.36: the surprises of 0.5 (0.69) and 0.1 (2.3) are further from it than those of 0.2 (1.61)."""
    log_probabilities = [math.log(p) for p in (0.5, 0.2, 0.2, 0.1)]
    sampler = Sampler(SamplingOptions(0, typical_p=0.3), 4)
    places = {drawn.rank for n in range(100) if (drawn := sampler.draw(log_probabilities, n / 100))}
    assert places == {1, 2}


@pytest.mark.parametrize("options", RULES.values())
def test_what_is_impossible_is_never_drawn(options: SamplingOptions) -> None:
    log_probabilities = [*(math.log(p) for p in (0.5, 0.25, 0.2499)), -math.inf, -math.inf]
    sampler = Sampler(options, 5)
    for number in (0.0, 0.3, 0.99995, 1 - 2.0**-53):
        drawn = sampler.draw(log_probabilities, number)
        assert drawn is not None
        assert drawn.rank < 3
        # What follows an impossible candidate is impossible too, so that no more of them need to be seen.
        assert sampler.draw(log_probabilities[:4], number) == drawn


def test_candidates_asked_for_at_first() -> None:
    assert Sampler(SamplingOptions(0), 32_000).candidates == FIRST_CANDIDATES
    assert Sampler(SamplingOptions(0), 30).candidates == 30
    assert Sampler(SamplingOptions(0, top_k=5, top_p=0.9), 32_000).candidates == 5
    assert Sampler(SamplingOptions(0, top_k=500), 32_000).candidates == 500
    assert Sampler(SamplingOptions(0, top_k=500), 100).candidates == 100


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
def test_numbers_are_those_of_philox(seed: int, sample: int) -> None:
    """So a seed means the same for ever."""
    numbers = RandomNumbers(seed, sample)
    words = [word for counter in (1, 2, 3) for word in philox(seed, sample, counter)]
    assert [numbers.next() for _ in words] == [(word >> 11) / 2**53 for word in words]
