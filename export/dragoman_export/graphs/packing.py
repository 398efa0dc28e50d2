"""Packs rows of different length into one sequence of tokens, so that only attention computes padding."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman_training.model.transformer import Encoder


class Packing:
    """Maps the tokens of a padded batch to the packed sequence and back.

    Args:
        lengths: int64 [rows], each at least 1.
        longest: Positions of a padded row.
    """

    def __init__(self, lengths: Tensor, longest: int) -> None:
        place = torch.arange(longest)
        ends = lengths.cumsum(0)
        own = lengths[:, None]
        self.lengths = lengths
        self.padded_index = (place < own).flatten().nonzero().squeeze(1)  # [tokens]
        # A padding position repeats its row's last token: nothing attends to it, but it must be a number.
        nearest = torch.minimum(place, own - 1)  # [rows, longest]
        self.packed_index = (ends[:, None] - own) + nearest
        self.positions = self.pack(nearest)  # [tokens], the position of each token in its row
        self.last_index = ends[:, None] - 1  # [rows, 1]

    def pack(self, x: Tensor) -> Tensor:
        """[rows, longest] -> [tokens], or [rows, longest, width] -> [tokens, width]."""
        return (
            x.flatten().gather(0, self.padded_index)
            if x.dim() == 2
            else gather_rows(x.flatten(0, 1), self.padded_index)
        )

    def pad(self, x: Tensor) -> Tensor:
        """[tokens, width] -> [rows, longest, width]."""
        return gather_rows(x, self.packed_index)

    def last(self, x: Tensor) -> Tensor:
        """Returns each row's last token: [tokens, width] -> [rows, 1, width]."""
        return gather_rows(x, self.last_index)


class Unpacked:
    """Replaces `Packing` where the padding stays: rows one after the other, all of the same length.

    Args:
        lengths: int64 [rows].
    """

    def __init__(self, lengths: Tensor) -> None:
        self.lengths = lengths

    def pack(self, x: Tensor) -> Tensor:
        """[rows, longest, width] -> [rows * longest, width]."""
        return x.flatten(0, 1)

    def pad(self, x: Tensor) -> Tensor:
        """[rows * longest, width] -> [rows, longest, width]."""
        return x.unflatten(0, (self.lengths.shape[0], -1))  # type: ignore[no-any-return,no-untyped-call]


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Gathers rows of a matrix: x [n, width], index int64 of any shape -> [*index, width].

    An embedding lookup is exported as a single `Gather`; indexing is not.
    """
    return functional.embedding(index, x)


class PackedEncoder(nn.Module):
    """A folded encoder that takes a padded batch and returns its packed tokens.

    Its layers pass the packing to their self-attention in place of a mask.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.embedding, self.layers, self.norm = encoder.embedding, encoder.layers, encoder.norm
        self.relative = encoder.relative

    def forward(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensor, Packing]:
        """Encodes ids int64 [rows, source] with lengths int32 [rows]; returns [tokens, d_model] and the packing."""
        packing = Packing(source_lengths.long(), source_ids.shape[1])
        x = self.embedding(packing.pack(source_ids), packing.positions)
        places = torch.arange(source_ids.shape[1])
        biases = [relative(places[None], places) for relative in self.relative]  # [1, heads, source, source] each
        for i, layer in enumerate(self.layers):
            x = layer(x, packing, biases[i % len(biases)] if biases else None)
        return self.norm(x), packing
