"""The comparison of trainers: the same work for all of them."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from dragoman_training.data.tokenizers import END_ID, SPECIAL_TOKENS
from tests.benchmark.training.trainers import Contender, Marian, OfTorch, Other, Ours
from tests.benchmark.training.work import base_work, drawn_lengths, pairs_of, small_work


@pytest.fixture(scope="module")
def trainers() -> Iterator[list[Contender]]:
    """The trainers on the small work, made so small that a step takes milliseconds, without dropout."""
    threads = torch.get_num_threads()
    shape = {"d_model": 16, "heads": 2, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    work = small_work("fp32")
    settings = {"batch_tokens": 300, "learning_rate": 0.01, "warmup_steps": 1}
    training = work.training.model_copy(update=settings)
    work = replace(work, model=work.model.model_copy(update=shape), training=training, pairs=work.pairs[:200])
    yield [Ours(work, 1), OfTorch(work, 1), Marian(work, 1)]
    torch.set_num_threads(threads)


def test_all_trainers_have_as_many_weights(trainers: list[Contender]) -> None:
    ours, torchs, marians = trainers
    assert isinstance(ours, Ours)
    assert isinstance(torchs, Other)
    assert isinstance(marians, Other)
    models = ours.trainer.learner.model, torchs.model, marians.model
    counts = [sum(p.numel() for p in model.parameters() if p.requires_grad) for model in models]
    assert counts[0] == ours.work.parameters() == counts[2]
    assert counts[1] - counts[0] == 4 * ours.work.model.d_model  # nn.Transformer ends both stacks with one more norm


def test_all_trainers_learn_the_same_batches(trainers: list[Contender]) -> None:
    tokens = set()
    for trainer in trainers:
        first = trainer.measure(0, "plain")
        for _ in range(3):
            trainer.measure(1, "plain")
        again = trainer.measure(0, "plain")
        assert again.loss < first.loss
        assert trainer.peak_bytes() > 0
        tokens.add(first.target_tokens)
    assert len(tokens) == 1


def test_tokens_are_drawn_with_lengths_that_fit_the_models() -> None:
    pairs = pairs_of(np.array([[3, 5], [2, 2], [9, 4]]), 50, 20)
    assert [(len(pair.source), len(pair.target)) for pair in pairs] == [(3, 5), (2, 2), (9, 4)]
    for pair in pairs:
        for row, vocabulary in ((pair.source, 50), (pair.target, 20)):
            assert row[-1] == END_ID
            assert all(len(SPECIAL_TOKENS) <= token < vocabulary for token in row[:-1])
    lengths = drawn_lengths(14.1, 13.6, 4.1, 46)
    assert lengths.mean(0) == pytest.approx([14.1, 13.6], abs=0.2)
    assert np.corrcoef(lengths.T)[0, 1] > 0.8
    for work in (small_work("fp32"), base_work("fp32")):
        assert max(len(pair.source) for pair in work.pairs) <= work.model.max_source_length
        assert max(len(pair.target) for pair in work.pairs) <= work.model.max_target_length
