"""Batches: every pair once an epoch, within the budget, as a function of seed and epoch; and their tensors."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dragoman_training.data.batches import IGNORED, BatchSampler, EncodedPair, collate

PAIRS = [
    EncodedPair([4] * random.Random(i).randint(1, 20), [5] * random.Random(-i - 1).randint(1, 20)) for i in range(500)
]
lengths = st.integers(1, 30)


@given(st.lists(st.tuples(lengths, lengths), min_size=1, max_size=80), st.integers(1, 200), st.integers(0, 5))
def test_each_pair_once_and_within_the_budget(shape: list[tuple[int, int]], budget: int, epoch: int) -> None:
    pairs = [EncodedPair([4] * source, [5] * target) for source, target in shape]
    batches = BatchSampler(pairs, budget, seed=1).epoch(epoch)
    assert sorted(i for batch in batches for i in batch) == list(range(len(pairs)))
    for batch in batches:
        width = max(len(pairs[i].source) for i in batch) + max(len(pairs[i].target) for i in batch)
        # A pair that alone is over the budget is a batch of its own.
        assert len(batch) * width <= budget or len(batch) == 1


def test_batches_hold_pairs_of_one_length() -> None:
    padded = used = 0
    for indices in BatchSampler(PAIRS, 300, seed=1).epoch(0):
        batch = collate([PAIRS[i] for i in indices])
        padded += batch.source.numel()
        used += sum(len(PAIRS[i].source) for i in indices)
    assert used / padded > 0.9


def test_order_depends_on_seed_and_epoch_alone() -> None:
    sampler = BatchSampler(PAIRS, 300, seed=1)
    assert sampler.epoch(3) == BatchSampler(PAIRS, 300, seed=1).epoch(3)
    assert sampler.epoch(3) != sampler.epoch(4)
    assert sampler.epoch(3) != BatchSampler(PAIRS, 300, seed=2).epoch(3)


@pytest.mark.parametrize("skip", [1, 40, 200])
def test_a_stream_goes_on_where_it_was_left(skip: int) -> None:
    sampler = BatchSampler(PAIRS, 300, seed=1)
    stream = sampler.stream(0, 0)
    for _ in range(skip):
        epoch, position, _ = next(stream)
    again = sampler.stream(epoch, position)
    for _ in range(50):
        (*place, batch), (*other_place, other) = next(stream), next(again)
        assert place == other_place
        assert torch.equal(batch.source, other.source)
        assert torch.equal(batch.target_output, other.target_output)


def test_collate() -> None:
    batch = collate([EncodedPair([7, 8, 3], [9, 3]), EncodedPair([7, 3], [9, 10, 11, 3])])
    assert batch.source.tolist() == [[7, 8, 3], [7, 3, 0]]
    assert batch.target_input.tolist() == [[2, 9, 0, 0], [2, 9, 10, 11]]
    assert batch.target_output.tolist() == [[9, 3, IGNORED, IGNORED], [9, 10, 11, 3]]
    assert batch.target_tokens == 6
