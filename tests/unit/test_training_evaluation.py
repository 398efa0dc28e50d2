"""Answers to texts, and metrics against values counted by hand."""

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dragoman_training.data.encode import Tokenizers
from dragoman_training.data.pairs import Pair
from dragoman_training.data.tokenizers import train_tokenizer
from dragoman_training.evaluation.answers import answer
from dragoman_training.evaluation.evaluate import measure
from dragoman_training.evaluation.metrics import METRICS, Score, better, edit_distance
from dragoman_training.model import ModelConfig, Transformer
from dragoman_training.recipe import Metric, TokenizerConfig
from tests.reference.greedy import greedy


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(4)
    config = ModelConfig(
        d_model=16, heads=2, d_ff=32, encoder_layers=1, decoder_layers=1, max_source_length=12, max_target_length=8
    )
    return Transformer(config, 12, 12, pad=0).eval()


def test_answers_to_texts(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="characters"), ["abcdefgh"])
    done: list[tuple[int, int]] = []
    texts = ["ab", "abc", "ab", "hgf", "abcdefgh"]
    monkeypatch.setattr("dragoman_training.evaluation.answers.BATCH_TOKENS", 9)
    answers = answer(model, Tokenizers(tokenizer, tokenizer), texts, answered=lambda *counts: done.append(counts))
    assert answers.keys() == {"ab", "abc", "hgf", "abcdefgh"}
    assert done == [(1, 4), (3, 4), (4, 4)], "the longest alone, two of four tokens, the rest"
    assert all(answers[text] == tokenizer.decode(greedy(model, [tokenizer.encode(text).ids], 8)[0]) for text in texts)


def test_answers_and_references_are_compared_in_canonical_form(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"ab": "d e", "abc": "f"}
    monkeypatch.setattr("dragoman_training.evaluation.evaluate.answer", lambda *_, **__: answers)
    tokenizer = train_tokenizer(TokenizerConfig(kind="characters", lowercase=True), ["abcdef h"])
    pairs = [Pair(source, f" \u200b{text.upper()} ".replace(" ", "  "), Path(), 1) for source, text in answers.items()]
    other = Pair("A\u00adB", "h", Path(), 2)  # another reference, to a source in another spelling
    scores = measure(
        model, Tokenizers(tokenizer, tokenizer), [*pairs, other], ["exact_match", "word_error_rate"]
    ).scores
    assert {name: score.value for name, score in scores.items()} == {"exact_match": 100, "word_error_rate": 0}


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
def test_metrics_with_several_references(metric: Metric, value: float) -> None:
    assert METRICS[metric](ANSWERS, REFERENCES) == Score(pytest.approx(value))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "references", "value"),
    [
        # Two edits from the first, one from the second, though relative to its length the first is nearer.
        ("a b c d", ["a b c d e f", "a z"], 2 / 6),
        ("a", ["a b c d e f", "a z"], 1 / 2),
        ("b", ["b c d", "c"], 1 / 1),
    ],
)
def test_nearest_reference_is_by_edits_then_by_length(answer: str, references: list[str], value: float) -> None:
    assert METRICS["word_error_rate"]({"x": answer}, {"x": references}).value == pytest.approx(100 * value)


def test_references_without_words_count_as_one() -> None:
    score = METRICS["word_error_rate"]({"x": "a b"}, {"x": [""]})
    assert score.with_interval(20).interval == (200, 200)
    assert METRICS["word_error_rate"]({"x": ""}, {"x": [""]}).value == 0


@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter"])
def test_sacrebleu_with_uneven_references(metric: Metric) -> None:
    references = {
        "1": ["the cat sat on the mat today"],
        "2": ["a dog barks at the moon", "the dog is barking at the moon"],
    }
    perfect = METRICS[metric]({s: r[-1] for s, r in references.items()}, references)
    assert perfect.value == pytest.approx(0 if metric == "ter" else 100)
    assert perfect.signature is not None
    assert "version:" in perfect.signature
    worse = METRICS[metric]({"1": "the cat sat on a mat", "2": "a dog barks at the sun"}, references)
    assert 20 < worse.value < 100


@pytest.mark.parametrize("metric", list(METRICS))
def test_intervals_hold_the_score_and_narrow_with_more_sources(metric: Metric) -> None:
    draw = random.Random(7)
    widths: list[float] = []
    for count in (30, 480):
        references = {str(i): [" ".join(draw.choices("abcdef", k=9))] for i in range(count)}
        answers = {
            source: target if draw.random() < 0.5 else f"{target[:9]} {target[::-1][:9]}"
            for source, (target,) in references.items()
        }
        plain = METRICS[metric](answers, references)
        assert plain.interval is None
        score = plain.with_interval(count)
        assert score.value == plain.value
        assert score.interval is not None
        low, high = score.interval
        assert low < score.value < high
        assert score == plain.with_interval(count), "the seed is fixed"
        widths.append(high - low)
    assert widths[1] < 0.5 * widths[0], "with 16 times the sources, a quarter is expected"


words = st.lists(st.sampled_from("abc"), max_size=8)


@given(words, words, words)
def test_edit_distance_is_a_metric(a: list[str], b: list[str], c: list[str]) -> None:
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, b) == edit_distance(b, a)
    assert abs(len(a) - len(b)) <= edit_distance(a, b) <= max(len(a), len(b))
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)


def test_edit_distance_counts_edits() -> None:
    assert edit_distance("kitten", "sitting") == 3
    rng = random.Random(1)
    text = [rng.choice("abcdefgh") for _ in range(40)]
    assert edit_distance([*text[:10], "new", *text[10:20], *text[21:]], text) == 2


def test_better() -> None:
    assert better("bleu", 30, 20)
    assert not better("bleu", 20, 20)
    assert better("word_error_rate", 20, 30)
    assert better("loss", 1.0, 1.1)


def test_the_interval_of_chrf_when_hardly_an_answer_has_a_match() -> None:
    """Some samples have no match at all."""
    references = {str(i): ["abcdefgh"] for i in range(4)}
    answers = {source: "abc" if source == "0" else "xyz" for source in references}
    score = METRICS["chrf"](answers, references).with_interval(4)
    assert score.interval is not None
    assert score.interval[0] < score.value < score.interval[1]
