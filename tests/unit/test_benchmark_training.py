"""The comparison of trainers: the same work for all of them, and what is said of numbers that are known."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.benchmark.training.report import Comparison, Piece, Results, Series, finding, markdown
from tests.benchmark.training.trainers import Contender, Marian, OfTorch, Other, Ours, Steps
from tests.benchmark.training.work import Precision, Work, base_work, drawn_lengths, pairs_of, small_work
from tests.described_machine import MACHINE
from training.data.tokenizers import END_ID, SPECIAL_TOKENS


@pytest.fixture(scope="module")
def trainers() -> Iterator[list[Contender]]:
    """Of the small work, made so small that a step takes milliseconds; without dropout."""
    threads = torch.get_num_threads()
    shape = {"d_model": 16, "heads": 2, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    settings = {"batch_tokens": 300, "learning_rate": 0.01, "warmup_steps": 1}
    work = small_work("fp32")
    work = replace(
        work,
        model=work.model.model_copy(update=shape),
        training=work.training.model_copy(update=settings),
        pairs=work.pairs[:200],
    )
    yield [Ours(work, 1), OfTorch(work, 1), Marian(work, 1)]
    torch.set_num_threads(threads)


def test_all_trainers_have_as_many_weights(trainers: list[Contender]) -> None:
    ours, torchs, marians = trainers
    assert isinstance(ours, Ours)
    assert isinstance(torchs, Other)
    assert isinstance(marians, Other)
    models = ours.trainer.model, torchs.model, marians.model
    counts = [sum(p.numel() for p in model.parameters() if p.requires_grad) for model in models]
    assert counts[0] == ours.work.parameters() == counts[2]
    assert counts[1] - counts[0] == 4 * ours.work.model.d_model  # nn.Transformer ends both stacks with one more norm


def test_all_trainers_learn_the_same_batches(trainers: list[Contender]) -> None:
    tokens = set()
    for trainer in trainers:
        first = trainer.measure(1, "plain")
        trainer.measure(12, "plain")
        trainer.go_to(0)
        again = trainer.measure(1, "plain")
        assert again.loss < first.loss
        assert trainer.peak_bytes() > 0
        tokens.add(first[2:4])
    assert len(tokens) == 1


def test_tokens_are_drawn_with_the_lengths_given() -> None:
    lengths = np.array([[3, 5], [2, 2], [9, 4]])
    pairs = pairs_of(lengths, 50, 20)
    assert [(len(pair.source), len(pair.target)) for pair in pairs] == [(3, 5), (2, 2), (9, 4)]
    for pair in pairs:
        for row, vocabulary in ((pair.source, 50), (pair.target, 20)):
            assert row[-1] == END_ID
            assert all(len(SPECIAL_TOKENS) <= token < vocabulary for token in row[:-1])


@pytest.mark.parametrize("make", [small_work, base_work])
def test_lengths_fit_the_model(make: Callable[[Precision], Work]) -> None:
    work = make("fp32")
    assert max(len(pair.source) for pair in work.pairs) <= work.model.max_source_length
    assert max(len(pair.target) for pair in work.pairs) <= work.model.max_target_length
    assert max(max(pair.source) for pair in work.pairs) < work.vocabularies[0]


def test_drawn_lengths_are_as_asked_and_go_together() -> None:
    lengths = drawn_lengths(14.1, 13.6, 4.1, 46)
    assert lengths.mean(0) == pytest.approx([14.1, 13.6], abs=0.2)
    assert np.corrcoef(lengths.T)[0, 1] > 0.8
    assert lengths.min() >= 2
    assert lengths.max() <= 46


def comparison(ours: float, other: float) -> Comparison:
    def series(trainer: str, attention: str, seconds: float, peak: int) -> Series:
        return Series(trainer, attention, [Steps(seconds * n, 2, 900, 1000, 3.0) for n in (1, 2, 1)], peak)

    return Comparison(
        "base",
        "sentences",
        "fp32",
        77_000_000,
        2,
        [
            series("dragoman", "own", ours, 2**30),
            series("nn.Transformer", "fused", other * 2, 2**31),
            series("nn.Transformer", "plain", other, 2**31),
        ],
    )


def test_findings() -> None:
    reached = finding(comparison(1.0, 2.0))
    assert reached.startswith("Reached: base, fp32: dragoman trains 2.00 times as many tokens a second (2.00–2.00)")
    assert "nn.Transformer with attention by plain products" in reached
    assert "with 0.50 times its memory" in reached
    assert finding(comparison(1.0, 1.4)).startswith("**Missed:** base, fp32: dragoman trains 1.40 times")


def test_page_and_numbers(tmp_path: Path) -> None:
    compared = comparison(1.0, 2.0)
    results = Results(pieces={"base, fp32": Piece(machine=MACHINE, comparison=compared)})
    page = markdown(results)
    assert finding(compared) in page
    assert "| dragoman" in page
    assert "commit abc" in page
    results.write(tmp_path / "training.json")
    assert Results.model_validate_json((tmp_path / "training.json").read_text()) == results
