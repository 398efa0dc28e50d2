"""Rows of different length as one sequence of tokens, so that nothing is computed for padding but attention itself."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman_training.model.transformer import Encoder


class Packing:
    """Where the tokens of a padded batch stand in the packed sequence, and the other way round.

    Args:
        lengths: int64 [rows], each at least 1
        longest: positions of a padded row
    """

    def __init__(self, lengths: Tensor, longest: int) -> None:
        place = torch.arange(longest)
        beyond = lengths.cumsum(0)
        own = lengths[:, None]
        self.lengths = lengths
        self.padded_index = (place < own).flatten().nonzero().squeeze(1)  # [tokens]
        # A padding position stands for its row's last token: it is never looked at, but must be a number.
        nearest = torch.minimum(place, own - 1)  # [rows, longest]
        self.packed_index = (beyond[:, None] - own) + nearest
        self.positions = self.pack(nearest)  # [tokens], of each in its row
        self.last_index = beyond[:, None] - 1  # [rows, 1]

    def pack(self, x: Tensor) -> Tensor:
        """[rows, longest] -> [tokens], or [rows, longest, width] -> [tokens, width]."""
        return x.flatten().gather(0, self.padded_index) if x.dim() == 2 else rows_of(x.flatten(0, 1), self.padded_index)

    def pad(self, x: Tensor) -> Tensor:
        """[tokens, width] -> [rows, longest, width]."""
        return rows_of(x, self.packed_index)

    def last(self, x: Tensor) -> Tensor:
        """Each row's last token: [tokens, width] -> [rows, 1, width]."""
        return rows_of(x, self.last_index)


class Unpacked:
    """Stands in for `Packing` where the padding stays: rows one after the other, all of the same length.

    Args:
        lengths: int64 [rows]
    """

    def __init__(self, lengths: Tensor) -> None:
        self.lengths = lengths

    def pack(self, x: Tensor) -> Tensor:
        """[rows, longest, width] -> [rows * longest, width]."""
        return x.flatten(0, 1)

    def pad(self, x: Tensor) -> Tensor:
        """[rows * longest, width] -> [rows, longest, width]."""
        return x.unflatten(0, (self.lengths.shape[0], -1))  # type: ignore[no-any-return,no-untyped-call]


def rows_of(x: Tensor, index: Tensor) -> Tensor:
    """Rows of a matrix: x [n, width], index int64 of any shape -> [*index, width].

    It is what an embedding does, which is exported as a single `Gather`; indexing is not.
    """
    return functional.embedding(index, x)


class PackedEncoder(nn.Module):
    """A folded encoder that takes a padded batch and gives the packed tokens of it.

    Its layers hand the packing to their self-attention in the place of a mask.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.embedding, self.layers, self.norm = encoder.embedding, encoder.layers, encoder.norm
        self.relative = encoder.relative

    def forward(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensor, Packing]:
        """Args: ids int64 [rows, source]; lengths int32 [rows]. Returns [tokens, d_model] and the packing."""
        packing = Packing(source_lengths.long(), source_ids.shape[1])
        x = self.embedding(packing.pack(source_ids), packing.positions)
        places = torch.arange(source_ids.shape[1])
        biases = [each(places[None], places) for each in self.relative]  # [1, heads, source, source] each
        for i, layer in enumerate(self.layers):
            x = layer(x, packing, biases[i % len(biases)] if biases else None)
        return self.norm(x), packing
