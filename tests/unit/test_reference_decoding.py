"""The reference decoder, checked against results that can be computed by hand."""

from collections.abc import Sequence
from dataclasses import replace
from math import log
from typing import Any

import numpy as np
import pytest

from dragoman_server.core.requests import FinishReason
from dragoman_server.core.search_options import (
    BeamOptions,
    Constraints,
    LengthNormalization,
    SamplingOptions,
    SearchOptions,
    Stopping,
)
from tests.reference.beam import normalized
from tests.reference.decoding import Decoded, decode
from tests.reference.model import Forward, Matrix
from tests.reference.sampling import RandomStream, draw, truncated
from tests.reference.step import Margins, distribution

END = 0
A, B, C = 1, 2, 3
LETTERS = " abcdefgh"


def text(ids: list[int]) -> str:
    return "".join(LETTERS[i] for i in ids)


def table(vocabulary: int, seed: int) -> Forward:
    """Returns a model with random logits that depend on all tokens so far."""

    def run(rows: Sequence[Sequence[int]]) -> tuple[Matrix, Matrix]:
        draws = [np.random.default_rng([seed, *(i + 1 for i in ids)]) for ids in rows]
        attention = np.array([draw.dirichlet([0.5] * 3) for draw in draws])
        return np.array([draw.normal(0, 1.5, vocabulary) for draw in draws]), attention

    return run


def script(probabilities: dict[str, dict[str, float]]) -> Forward:
    """Returns a model with these probabilities after each text; "." is the end token."""

    def run(rows: Sequence[Sequence[int]]) -> tuple[Matrix, Matrix]:
        logits = np.full((len(rows), len(LETTERS)), -np.inf)
        for row, ids in zip(logits, rows, strict=True):
            for letter, probability in probabilities[text(list(ids))].items():
                row[END if letter == "." else LETTERS.index(letter)] = log(probability)
        return logits, np.full((len(rows), 2), 0.5)

    return run


def texts(decoded: Decoded) -> list[str]:
    return [text(h.ids) for h in decoded.hypotheses]


def run(model: Forward, max_new_tokens: int, **more: Any) -> Decoded:
    return decode(model, SearchOptions(max_new_tokens, **more), END, text)


def test_length_normalization() -> None:
    assert normalized(-6.0, 4, BeamOptions(1, LengthNormalization.LENGTH, 2.0)) == -6 / 16
    assert normalized(-6.0, 7, BeamOptions(1, LengthNormalization.GNMT, 2.0)) == -6 / 4
    assert normalized(-6.0, 7, BeamOptions(1, LengthNormalization.NONE, 2.0)) == -6


SHORT_FIRST = script(
    {
        "": {".": 0.4, "a": 0.35, "b": 0.25},
        "a": {"b": 0.99, ".": 0.01},
        "ab": {"c": 0.99, ".": 0.01},
        "abc": {".": 1.0},
        "b": {".": 0.45, "c": 0.55},
        "bc": {".": 1.0},
    }
)


def test_greedy_search_takes_the_most_probable_token() -> None:
    [h] = run(SHORT_FIRST, 5).hypotheses
    assert not h.ids
    assert h.reason is FinishReason.EOS
    assert h.score == pytest.approx(log(0.4))


def test_a_longer_hypothesis_may_win_after_a_short_one_has_finished() -> None:
    beam = BeamOptions(2)
    assert texts(run(SHORT_FIRST, 5, num_hypotheses=2, beam=beam)) == ["abc", "bc"]
    assert texts(run(SHORT_FIRST, 5, beam=replace(beam, stopping=Stopping.EARLY, patience=0.5))) == [""]
    assert texts(run(SHORT_FIRST, 5, beam=replace(beam, length_penalty=0.0))) == [""]


def test_groups_choose_different_tokens_and_keep_true_scores() -> None:
    beam = BeamOptions(2, length_penalty=0.0, groups=2, diversity_penalty=5.0)
    constraints = Constraints(min_new_tokens=1)
    found = run(SHORT_FIRST, 5, num_hypotheses=2, beam=beam, constraints=constraints).hypotheses
    assert [text(h.ids) for h in found] == ["abc", "bc"]
    assert found[1].score == pytest.approx(log(0.25 / 0.6) + log(0.55))


def test_length_limits_are_exact() -> None:
    model = table(4, seed=3)
    for minimum, maximum in ((0, 1), (2, 2), (3, 6)):
        for options in ({}, {"beam": BeamOptions(3)}, {"sampling": SamplingOptions(1)}):
            [h] = run(
                model, maximum, constraints=Constraints(min_new_tokens=minimum, prefix=(A, A)), **options
            ).hypotheses
            assert h.ids[:2] == [A, A]
            assert minimum <= len(h.ids) - 2 <= maximum
            assert (h.reason is FinishReason.LENGTH) == (len(h.ids) - 2 == maximum)
            assert len(h.log_probabilities) == len(h.ids) - 2 + (h.reason is FinishReason.EOS)


def test_constraints_change_the_distribution_before_it_is_normalized() -> None:
    logits = np.array([0.5, 1.0, -2.0, 0.25])

    def probabilities(ids: list[int], **constraints: Any) -> Any:
        return np.exp(distribution(logits, ids, Constraints(**constraints), END)).tolist()

    def of(*odds: float) -> Any:
        return pytest.approx([o / sum(odds) for o in odds])

    e = np.exp
    plain = (e(0.5), e(1.0), e(-2.0), e(0.25))
    assert probabilities([]) == of(*plain)
    assert probabilities([A, B, A], repetition_penalty=2.0) == of(e(0.5), e(0.5), e(-4.0), e(0.25))
    assert probabilities([A], min_new_tokens=2) == of(0, *plain[1:])
    assert probabilities([A], min_new_tokens=1, prefix=(A,)) == of(0, *plain[1:])
    assert probabilities([A], min_new_tokens=1) == of(*plain)
    assert probabilities([], suppressed=(A, C)) == of(plain[0], 0, plain[2], 0)
    assert probabilities([], vocabulary=(END, B)) == of(plain[0], 0, plain[2], 0)
    assert probabilities([C, A], suppressed_sequences=((C, A, B), (A, C), (B, A))) == of(*plain[:2], 0, 0)
    assert probabilities([A, B, C, A], no_repeat_ngram_size=2) == of(*plain[:2], 0, plain[3])
    assert probabilities([A, B], no_repeat_ngram_size=1) == of(plain[0], 0, 0, plain[3])
    assert probabilities([A, B], no_repeat_ngram_size=3) == of(*plain)


def test_a_soft_prefix_is_preferred_until_the_hypothesis_leaves_it() -> None:
    logits = np.log([0.1, 0.2, 0.3, 0.4])
    soft = Constraints(prefix=(A, B), prefix_bias=0.5)

    def probabilities(*ids: int) -> Any:
        return np.exp(distribution(logits, ids, soft, END)).tolist()

    assert probabilities() == pytest.approx([0.05, 0.1 + 0.5, 0.15, 0.2])
    assert probabilities(A) == pytest.approx([0.05, 0.1, 0.15 + 0.5, 0.2])
    assert probabilities(B) == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert probabilities(A, B) == pytest.approx([0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        ({}, {3: 0.4, 0: 0.25, 2: 0.25, 4: 0.07, 1: 0.03}),
        ({"top_k": 2}, {3: 0.4, 0: 0.25}),
        ({"top_k": 9}, {3: 0.4, 0: 0.25, 2: 0.25, 4: 0.07, 1: 0.03}),
        ({"top_p": 0.41}, {3: 0.4, 0: 0.25}),
        ({"top_p": 0.39}, {3: 0.4}),
        ({"top_p": 0.01}, {3: 0.4}),
        ({"min_p": 0.5}, {3: 0.4, 0: 0.25, 2: 0.25}),
        ({"min_p": 1.0}, {3: 0.4}),
        # Of the three that top_k leaves, 0.44 + 0.28 reach 0.7; of 0.62 and 0.38 the latter has 0.62 of the former.
        ({"top_k": 3, "top_p": 0.7, "min_p": 0.62}, {3: 0.4, 0: 0.25}),
        ({"top_k": 3, "top_p": 0.7, "min_p": 0.63}, {3: 0.4}),
        # Entropy 1.35: the surprise of 0.25 is 1.39, that of 0.4 0.92; then come 0.07 (2.66) and 0.03 (3.51).
        ({"typical_p": 0.3}, {0: 0.25, 2: 0.25}),
        ({"typical_p": 0.6}, {3: 0.4, 0: 0.25, 2: 0.25}),
    ],
)
def test_tokens_left_by_truncation(rules: dict[str, Any], left: dict[int, float]) -> None:
    found = truncated(np.log([0.25, 0.03, 0.25, 0.4, 0.07]), SamplingOptions(0, **rules), Margins())
    total = sum(left.values())
    assert dict(zip(found.ids, found.probabilities, strict=True)) == pytest.approx(
        {token: probability / total for token, probability in left.items()}
    )
    assert found.ids == list(left)


def test_each_token_is_drawn_with_its_probability() -> None:
    probabilities = [0.2, 0.05, 0.45, 0.3]
    grid = (np.arange(2000) + 0.5) / 2000
    drawn = [draw(np.log(probabilities), SamplingOptions(0), u, Margins()) for u in grid]
    np.testing.assert_allclose(np.bincount(drawn) / 2000, probabilities, atol=1e-3)


def test_each_sample_has_its_own_random_numbers() -> None:
    def numbers(seed: int, sample: int) -> list[float]:
        draws = RandomStream(seed, sample)
        return [draws.next() for _ in range(3)]

    assert numbers(7, 1) == numbers(7, 1)
    assert len({*numbers(7, 0), *numbers(7, 1), *numbers(8, 0), *numbers(2**64 - 1, 0)}) == 12
    several = run(table(6, seed=2), 6, num_hypotheses=3, sampling=SamplingOptions(9)).hypotheses
    assert len({tuple(h.ids) for h in several}) == 3


@pytest.mark.parametrize("beam", [None, BeamOptions(2, length_penalty=0.0)])
def test_alternatives_start_with_the_best_tokens(beam: BeamOptions | None) -> None:
    found = run(SHORT_FIRST, 5, num_hypotheses=4, beam=beam, alternatives=True)
    assert texts(found) == ["", "abc", "bc"]  # there are only three first tokens


SPELLED = script({text[:i]: {"abcdabcd."[i]: 1.0} for text in ["abcdabcd"] for i in range(9)})


@pytest.mark.parametrize(
    ("constraints", "ids", "kept"),
    [
        ({"stop_sequences": ("cd",)}, "abcd", "ab"),
        ({"stop_sequences": ("cd",), "include_stop_sequence": True}, "abcd", "abcd"),
        ({"stop_sequences": ("d", "bcd")}, "abcd", "a"),
        ({"stop_sequences": ("da", "cdabc")}, "abcda", "abc"),
        ({"stop_sequences": ("abcd",), "prefix": (1, 2, 3, 4)}, "abcdabcd", "abcd"),
        ({"stop_sequences": ("bcda",), "prefix": (1, 2, 3, 4)}, "abcda", "a"),
    ],
)
@pytest.mark.parametrize("beam", [None, BeamOptions(2)])
def test_stop_sequences_cut_across_tokens(
    constraints: dict[str, Any], ids: str, kept: str, beam: BeamOptions | None
) -> None:
    [h] = run(SPELLED, 8, constraints=Constraints(**constraints), beam=beam).hypotheses
    assert text(h.ids) == ids
    assert h.reason is FinishReason.STOP_SEQUENCE
    assert ids[: h.characters] == kept


def test_a_hypothesis_without_a_possible_token_is_a_dead_end() -> None:
    constraints = Constraints(vocabulary=(END, A, B), no_repeat_ngram_size=1, min_new_tokens=3)
    for options in ({}, {"beam": BeamOptions(2)}, {"sampling": SamplingOptions(1)}):
        [h] = run(table(4, seed=1), 6, constraints=constraints, **options).hypotheses
        assert sorted(h.ids) == [A, B]
        assert h.reason is FinishReason.DEAD_END
        assert len(h.log_probabilities) == 2


def test_close_decisions_have_small_margins() -> None:
    close = script({"": {"a": 0.5 + 1e-6, "b": 0.5 - 1e-6}, "a": {".": 1.0}, "b": {".": 1.0}})
    assert run(close, 3).margin < 1e-5
    assert run(close, 3, beam=BeamOptions(1)).margin < 1e-5
    assert run(close, 3, beam=BeamOptions(2)).margin < 1e-5
    assert run(SHORT_FIRST, 5).margin > 0.1
    assert run(SHORT_FIRST, 5, beam=BeamOptions(2)).margin > 0.01
