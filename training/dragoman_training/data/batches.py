"""Batches of pairs of similar length that fit a token budget."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman_training.data.plain import PlainPairs, find_places, pad_places
from dragoman_training.data.tokenizers import OWN_IDS, SpecialIds
from dragoman_training.model.loss import IGNORED


@dataclass(frozen=True)
class EncodedPair:
    """The token ids of a source and its target, both with the end token.

    Attributes:
        plain: The pair before its random changes, if teachers read that.
    """

    source: list[int]
    target: list[int]
    plain: "EncodedPair | None" = None


@dataclass(frozen=True)
class Batch:
    """The padded tensors of one batch.

    Attributes:
        source: Source ids [batch, source].
        target_input: Decoder input ids [batch, target], starting with the begin token.
        target_output: Ids to predict [batch, target], ending with the end token; IGNORED at padding.
        target_tokens: Number of ids in `target_output` without padding.
        number: Place among the batches of a step, which the batch's random numbers depend on.
        plain: The pairs before their random changes, if teachers read those.
    """

    source: Tensor
    target_input: Tensor
    target_output: Tensor
    target_tokens: int
    number: int = 0
    plain: PlainPairs | None = None

    def to(self, device: torch.device) -> "Batch":
        """Returns the batch on a device."""
        if device.type == "cpu":
            return self
        moved = [t.to(device, non_blocking=True) for t in (self.source, self.target_input, self.target_output)]
        plain = None if self.plain is None else self.plain.to(device)
        return Batch(moved[0], moved[1], moved[2], self.target_tokens, self.number, plain)

    def without_targets(self) -> "Batch":
        """Returns the first pair alone, with nothing to predict: its loss and its gradients are zero."""
        ignored = torch.full_like(self.target_output[:1], IGNORED)
        return Batch(self.source[:1], self.target_input[:1], ignored, 0, self.number)


def pad(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    """Pads rows of different length to int64 [len(rows), longest]."""
    out = np.full((len(rows), max(map(len, rows))), filler, dtype=np.int64)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return torch.from_numpy(out)


def collate(pairs: Sequence[EncodedPair], number: int = 0, special: SpecialIds = OWN_IDS) -> Batch:
    """Makes a padded batch of pairs, with its number in a step."""
    return Batch(
        source=pad([p.source for p in pairs], special.pad),
        target_input=pad([[special.begin, *p.target[:-1]] for p in pairs], special.pad),
        target_output=pad([p.target for p in pairs], IGNORED),
        target_tokens=sum(len(p.target) for p in pairs),
        number=number,
        plain=_plain(pairs, special),
    )


def _plain(pairs: Sequence[EncodedPair], special: SpecialIds) -> PlainPairs | None:
    """Returns what teachers read: the plain pairs, but a changed one whose target has not just grown."""
    if any(pair.plain is None for pair in pairs):
        return None
    read: list[EncodedPair] = []
    places: list[Sequence[int]] = []
    for pair in pairs:
        assert pair.plain is not None
        found = find_places(pair.target, pair.plain.target)
        read.append(pair if found is None else pair.plain)
        places.append(range(len(pair.target)) if found is None else found)
    target_input = pad([[special.begin, *pair.target[:-1]] for pair in read], special.pad)
    source = pad([pair.source for pair in read], special.pad)
    return PlainPairs(source, target_input, pad_places(places, target_input.size(1)))


class Position(NamedTuple):
    """A place in the training data.

    Attributes:
        epoch: Passes over the corpus before this one.
        block: Number of the block in the epoch, see `EpochPairs`.
        position: Batches of the block that come before.
    """

    epoch: int = 0
    block: int = 0
    position: int = 0


class EncodedPairs(Protocol):
    """Encoded pairs by number; not all of them need to be in memory."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> EncodedPair: ...

    def lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the token counts of the sources and of the targets, each [pairs], with end tokens."""


class EpochPairs(Protocol):
    """The training pairs of each epoch, as a function of the seed, the epoch and the block alone.

    An epoch is made of blocks, so that those of a large corpus need not be in memory: each block is bucketed by length
    on its own. A corpus of the usual size has one.
    """

    def blocks(self, epoch: int) -> int:
        """Returns the number of blocks of an epoch, at least 1."""

    def block(self, epoch: int, block: int) -> EncodedPairs:
        """Returns the pairs of a block."""


class PairList:
    """Pairs in memory, which are also one block of every epoch."""

    def __init__(self, pairs: Sequence[EncodedPair]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int, /) -> EncodedPair:
        return self.pairs[index]

    def lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the token counts of the sources and of the targets, each [pairs]."""
        return (
            np.array([len(pair.source) for pair in self.pairs], np.int64),
            np.array([len(pair.target) for pair in self.pairs], np.int64),
        )

    def blocks(self, epoch: int) -> int:
        """Returns 1."""
        return 1

    def block(self, epoch: int, block: int) -> "PairList":
        """Returns the pairs, the same in every epoch."""
        return self


class PlannedBatch(NamedTuple):
    """A batch that is not read yet.

    Attributes:
        position: Where the stream of batches goes on after this one.
        pairs: The pairs of its block.
        indices: Its own among them [rows].
        tokens: Number of source and target tokens with padding: what it costs.
        target_tokens: Number of target tokens without padding.
        special: Special tokens of the model.
    """

    position: Position
    pairs: EncodedPairs
    indices: NDArray[np.int64]
    tokens: int
    target_tokens: int
    special: SpecialIds = OWN_IDS

    def read(self, number: int = 0) -> Batch:
        """Reads the batch, with its number in a step."""
        return collate([self.pairs[i] for i in self.indices.tolist()], number, self.special)


class BatchSampler:
    """Splits the training pairs into new batches for each epoch, as a function of seed and epoch alone.

    The pairs of a block are sorted by source and target length (ties in random order) and cut where the next pair would
    exceed the budget, rows x (longest source + longest target). The batches of the block are then shuffled.

    Args:
        pairs: Training pairs of each epoch.
        batch_tokens: Token budget of a batch.
        seed: Seed of ties and of the order.
        special: Special tokens of the model.
    """

    def __init__(self, pairs: EpochPairs, batch_tokens: int, seed: int, special: SpecialIds = OWN_IDS) -> None:
        self.pairs = pairs
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.special = special

    def block(self, epoch: int, block: int = 0) -> list[PlannedBatch]:
        """Returns the batches of a block."""
        pairs = self.pairs.block(epoch, block)
        source, target = pairs.lengths()
        # NOTE: The first block draws from default_rng([seed, epoch]): a SeedSequence ignores zeros at its end.
        rng = np.random.default_rng([self.seed, epoch, 0, block])
        order = np.lexsort((rng.random(len(pairs)), target, source))
        ends = _cut(source[order], target[order], self.batch_tokens)
        parts = np.split(order, ends[:-1])
        planned: list[PlannedBatch] = []
        for position, part in enumerate(rng.permutation(len(ends)).tolist(), 1):
            indices = parts[part]
            sources, targets = source[indices], target[indices]
            tokens = len(indices) * int(sources.max() + targets.max())
            place = Position(epoch, block, position)
            planned.append(PlannedBatch(place, pairs, indices, tokens, int(targets.sum()), self.special))
        return planned

    def plan(self, start: Position = Position()) -> Iterator[PlannedBatch]:  # noqa: B008, it is immutable
        """Yields batches forever, from a position on, without reading them: the same in all processes."""
        epoch, block, position = start
        while True:
            while block < self.pairs.blocks(epoch):
                # NOTE: No name for them: they hold the block, which would stay in memory while the next one is made.
                yield from self.block(epoch, block)[position:]
                block, position = block + 1, 0
            epoch, block = epoch + 1, 0


def _cut(source: NDArray[np.int64], target: NDArray[np.int64], budget: int) -> list[int]:
    """Cuts sorted pairs into batches; returns where each ends.

    Args:
        source: Source lengths in ascending order [pairs].
        target: Their target lengths [pairs].
        budget: Most tokens of a batch with more than one pair.
    """
    ends: list[int] = []
    start = 0
    while start < len(source):
        most = max(1, budget // int(source[start] + target[start]))
        width = source[start : start + most] + np.maximum.accumulate(target[start : start + most])
        # Rows x width never falls, so that the rows within the budget are the first ones.
        rows = int(np.searchsorted(np.arange(1, len(width) + 1) * width, budget, "right"))
        start += max(1, rows)
        ends.append(start)
    return ends
