"""Rows of different length as one sequence of tokens, so that nothing is computed for padding but attention itself."""

import torch
from torch import Tensor, nn

from training.model.transformer import Encoder


class Packing:
    """Where the tokens of a padded batch stand in the packed sequence, and the other way round.

    Args:
        lengths: int64 [rows], each at least 1
        longest: positions of a padded row
    """

    def __init__(self, lengths: Tensor, longest: int) -> None:
        place = torch.arange(longest)
        first = lengths.cumsum(0) - lengths
        self.lengths = lengths
        # A padding position stands for its row's last token: it is never looked at, but must be a number.
        self.packed_index = first[:, None] + torch.minimum(place, lengths[:, None] - 1)  # [rows, longest]
        self.padded_index = (place < lengths[:, None]).flatten().nonzero().squeeze(1)  # [tokens]
        self.last_index = first + lengths - 1  # [rows]

    def pack(self, x: Tensor) -> Tensor:
        """[rows, longest, ...] -> [tokens, ...]."""
        return x.flatten(0, 1)[self.padded_index]

    def pad(self, x: Tensor) -> Tensor:
        """[tokens, ...] -> [rows, longest, ...]."""
        return x[self.packed_index]

    def last(self, x: Tensor) -> Tensor:
        """Each row's last token: [tokens, width] -> [rows, 1, width]."""
        return x[self.last_index][:, None]


class PackedEncoder(nn.Module):
    """A folded encoder that takes a padded batch and gives the packed tokens of it.

    Its layers hand the packing to their self-attention in the place of a mask.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.embedding, self.layers, self.norm = encoder.embedding, encoder.layers, encoder.norm

    def forward(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensor, Packing]:
        """Args: ids int64 [rows, source]; lengths int32 [rows]. Returns [tokens, d_model] and the packing."""
        packing = Packing(source_lengths.long(), source_ids.shape[1])
        positions = torch.arange(source_ids.shape[1]).expand_as(source_ids)
        x = self.embedding(packing.pack(source_ids), packing.pack(positions))
        for layer in self.layers:
            x = layer(x, packing)
        return self.norm(x), packing
