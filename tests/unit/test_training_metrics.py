"""Metrics on answers counted by hand, with several references to a source."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_training.evaluation.metrics import METRICS, Score, better, edit_distance

REFERENCES = {
    "tomato": ["T AH M EY T OW", "T AH M AA T OW"],
    "cat": ["K AE T"],
    "read": ["R IY D", "R EH D"],
    "a": ["AH", "EY"],
}
ANSWERS = {"tomato": "T AH M AA T OW", "cat": "K AE", "read": "R EH D Z", "a": ""}


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("exact_match", 100 * 1 / 4),
        ("sequence_error_rate", 100 * 3 / 4),
        ("word_error_rate", 100 * (0 + 1 + 1 + 1) / (6 + 3 + 3 + 1)),
    ],
)
def test_several_references(metric: str, value: float) -> None:
    assert METRICS[metric](ANSWERS, REFERENCES) == Score(pytest.approx(value))  # type: ignore[index,arg-type]


def test_nearest_reference_is_by_edits_and_then_by_length() -> None:
    references = {"x": ["a b c d e f", "a z"]}
    # Two edits from the first, one from the second, though relative to its length the first would be nearer.
    assert METRICS["word_error_rate"]({"x": "a b c d"}, references).value == pytest.approx(100 * 2 / 6)
    assert METRICS["word_error_rate"]({"x": "a"}, references).value == pytest.approx(100 * 1 / 2)
    assert METRICS["word_error_rate"]({"x": "b"}, {"x": ["b c d", "c"]}).value == pytest.approx(100 * 1 / 1)


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_sacrebleu_with_signature_and_uneven_references(metric: str) -> None:
    references = {
        "1": ["the cat sat on the mat today"],
        "2": ["a dog barks at the moon", "the dog is barking at the moon"],
    }
    perfect = METRICS[metric]({s: r[-1] for s, r in references.items()}, references)  # type: ignore[index]
    assert perfect.value == pytest.approx(100)
    assert perfect.signature is not None
    assert "version:" in perfect.signature
    worse = METRICS[metric]({"1": "the cat sat on a mat", "2": "a dog barks at the sun"}, references)  # type: ignore[index]
    assert 20 < worse.value < 100


words = st.lists(st.sampled_from("abc"), max_size=8)


@given(words, words, words)
def test_edit_distance_is_a_distance(a: list[str], b: list[str], c: list[str]) -> None:
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, b) == edit_distance(b, a)
    assert abs(len(a) - len(b)) <= edit_distance(a, b) <= max(len(a), len(b))
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)


def test_edit_distance_counts_the_edits_made() -> None:
    assert edit_distance("kitten", "sitting") == 3
    rng = random.Random(1)
    text = [rng.choice("abcdefgh") for _ in range(40)]
    assert edit_distance([*text[:10], "new", *text[10:20], *text[21:]], text) == 2


def test_better() -> None:
    assert better("bleu", 30, 20)
    assert not better("bleu", 20, 20)
    assert better("word_error_rate", 20, 30)
    assert better("loss", 1.0, 1.1)
