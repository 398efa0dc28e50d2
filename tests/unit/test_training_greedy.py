"""The reference decoder: the same answers alone and in any batch, cut where told, in the callers' terms."""

from pathlib import Path

import pytest
import torch

from dragoman_training.data.pairs import Pair
from dragoman_training.data.tokenizers import BEGIN_ID, END_ID, train_tokenizer
from dragoman_training.evaluation.evaluate import measure
from dragoman_training.evaluation.greedy import answer, greedy
from dragoman_training.model import ModelConfig, Transformer
from dragoman_training.recipe import TokenizerConfig

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(4)
    config = ModelConfig(
        d_model=16, heads=2, d_ff=32, encoder_layers=1, decoder_layers=1, max_source_length=12, max_target_length=8
    )
    return Transformer(config, 12, 12, pad=0).eval()


def test_each_row_is_the_most_probable_token_after_token(model: Transformer) -> None:
    source = [5, 7, 9, 3]
    [row] = greedy(model, [source], 8)
    prefix = [BEGIN_ID]
    for token in [*row, END_ID][:8]:
        assert model(torch.tensor([source]), torch.tensor([prefix]))[0, -1].argmax() == token
        prefix.append(token)


def test_batch_mates_change_nothing(model: Transformer) -> None:
    sources = [[4 + (i * j) % 8 for j in range(1, 1 + i % 7)] + [3] for i in range(30)]
    together = greedy(model, sources, 8)
    assert together == [greedy(model, [source], 8)[0] for source in sources]
    assert all(END_ID not in row and len(row) <= 8 for row in together)


def test_cut_at_the_limit(model: Transformer) -> None:
    full = greedy(model, [[5, 7, 9, 3]], 8)[0]
    assert greedy(model, [[5, 7, 9, 3]], 2)[0] == full[:2]


def test_answers_to_texts(model: Transformer) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="characters"), ["abcdefgh"])
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1

    answers = answer(model, tokenizer, tokenizer, ["ab", "abc", "ab", "hgf"], before_batch=count)
    assert answers.keys() == {"ab", "abc", "hgf"}
    assert calls == 1
    rows = greedy(model, [tokenizer.encode("abc").ids], 8)
    assert answers["abc"] == tokenizer.decode(rows[0])


def test_answers_and_references_are_compared_as_the_tokenizer_reads_them(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"ab": "d e", "abc": "f"}
    monkeypatch.setattr("dragoman_training.evaluation.evaluate.answer", lambda *_, before_batch: answers)
    tokenizer = train_tokenizer(TokenizerConfig(kind="characters", lowercase=True), ["abcdef h"])
    pairs = [Pair(source, f" \u200b{text.upper()} ".replace(" ", "  "), Path(), 1) for source, text in answers.items()]
    other = Pair("A\u00adB", "h", Path(), 2)  # another reference to a source in another spelling
    scores = measure(model, tokenizer, tokenizer, [*pairs, other], ["exact_match", "word_error_rate"])
    assert {name: score.value for name, score in scores.items()} == {"exact_match": 100, "word_error_rate": 0}
