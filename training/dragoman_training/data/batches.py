"""Batches of pairs of similar length that fit a token budget."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dragoman_training.data.tokenizers import BEGIN_ID, PAD_ID
from dragoman_training.model.loss import IGNORED


@dataclass(frozen=True)
class EncodedPair:
    """The token ids of a source and its target, both with the end token."""

    source: list[int]
    target: list[int]


@dataclass(frozen=True)
class Batch:
    """The padded tensors of one batch.

    Attributes:
        source: Source ids [batch, source].
        target_input: Decoder input ids [batch, target], starting with the begin token.
        target_output: Ids to predict [batch, target], ending with the end token; IGNORED at padding.
        target_tokens: Number of ids in `target_output` without padding.
        number: Place among the batches of a step, which the batch's random numbers depend on.
    """

    source: Tensor
    target_input: Tensor
    target_output: Tensor
    target_tokens: int
    number: int = 0

    def to(self, device: torch.device) -> "Batch":
        """Returns the batch on a device."""
        if device.type == "cpu":
            return self
        moved = [t.to(device, non_blocking=True) for t in (self.source, self.target_input, self.target_output)]
        return Batch(moved[0], moved[1], moved[2], self.target_tokens, self.number)

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


class PlannedBatch(NamedTuple):
    """A batch that is not read yet.

    Attributes:
        epoch, position: Where the stream of batches goes on after this one.
        pairs: The pairs of its epoch.
        indices: Its own among them.
        tokens: Number of source and target tokens with padding: what it costs.
    """

    epoch: int
    position: int
    pairs: Sequence[EncodedPair]
    indices: list[int]
    tokens: int

    def read(self, number: int = 0) -> Batch:
        """Reads the batch, with its number in a step."""
        return collate([self.pairs[i] for i in self.indices], number)


def collate(pairs: Sequence[EncodedPair], number: int = 0) -> Batch:
    """Makes a padded batch of pairs, with its number in a step."""
    return Batch(
        source=pad([p.source for p in pairs], PAD_ID),
        target_input=pad([[BEGIN_ID, *p.target[:-1]] for p in pairs], PAD_ID),
        target_output=pad([p.target for p in pairs], IGNORED),
        target_tokens=sum(len(p.target) for p in pairs),
        number=number,
    )


class BatchSampler:
    """Splits the training pairs into new batches for each epoch, as a function of seed and epoch alone.

    Pairs are sorted by source and target length (ties in random order) and cut where the next pair would exceed the
    budget, rows x (longest source + longest target). The batches are then shuffled.

    Args:
        pairs: Training pairs, or the function from an epoch to its pairs.
        batch_tokens: Token budget of a batch.
        seed: Seed of ties and of the order.
    """

    def __init__(
        self,
        pairs: Sequence[EncodedPair] | Callable[[int], Sequence[EncodedPair]],
        batch_tokens: int,
        seed: int,
    ) -> None:
        self.pairs = pairs
        self.batch_tokens = batch_tokens
        self.seed = seed

    def epoch(self, epoch: int) -> list[list[int]]:
        """Returns the batches of an epoch as indices into its pairs."""
        return self._batches(self._pairs(epoch), epoch)

    def plan(self, epoch: int, position: int) -> Iterator[PlannedBatch]:
        """Yields batches forever, from a position of an epoch on, without reading them: the same in all processes."""
        while True:
            pairs = self._pairs(epoch)
            for indices in self._batches(pairs, epoch)[position:]:
                position += 1
                longest = max(len(pairs[i].source) for i in indices) + max(len(pairs[i].target) for i in indices)
                yield PlannedBatch(epoch, position, pairs, indices, len(indices) * longest)
            epoch, position = epoch + 1, 0

    def _pairs(self, epoch: int) -> Sequence[EncodedPair]:
        return self.pairs(epoch) if callable(self.pairs) else self.pairs

    def _batches(self, pairs: Sequence[EncodedPair], epoch: int) -> list[list[int]]:
        source_lengths = np.array([len(p.source) for p in pairs])
        target_lengths = np.array([len(p.target) for p in pairs])
        rng = np.random.default_rng([self.seed, epoch])
        ties = rng.random(len(pairs))
        order = np.lexsort((ties, target_lengths, source_lengths))
        batches: list[list[int]] = []
        batch: list[int] = []
        longest_source = longest_target = 0
        for i in order.tolist():
            source = max(longest_source, int(source_lengths[i]))
            target = max(longest_target, int(target_lengths[i]))
            if batch and (len(batch) + 1) * (source + target) > self.batch_tokens:
                batches.append(batch)
                batch, source, target = [], int(source_lengths[i]), int(target_lengths[i])
            batch.append(i)
            longest_source, longest_target = source, target
        if batch:
            batches.append(batch)
        return [batches[i] for i in rng.permutation(len(batches))]
