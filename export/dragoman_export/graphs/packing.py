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
        self._part_indices: dict[int, list[Tensor]] = {}  # [rows, longest] each, the same ones for all layers

    def pack(self, x: Tensor) -> Tensor:
        """[rows, longest] -> [tokens], or [rows, longest, width] -> [tokens, width]."""
        return (
            x.flatten().gather(0, self.padded_index)
            if x.dim() == 2
            else gather_rows(x.flatten(0, 1), self.padded_index)
        )

    def pad_parts(self, x: Tensor, parts: int) -> list[Tensor]:
        """[tokens, parts * width] -> parts times [rows, longest, width]; to pad and split at once copies only once."""
        if parts not in self._part_indices:
            first = self.packed_index * parts
            self._part_indices[parts] = [first + part for part in range(parts)]
        matrix = _rows_of_parts(x, parts)
        return [gather_rows(matrix, index) for index in self._part_indices[parts]]

    def pad_heads(self, x: Tensor, planes: int, heads: int) -> list[Tensor]:
        """[tokens, planes * heads * d_head] -> planes times [rows, heads, longest, d_head]."""
        first = (self.packed_index * (planes * heads))[:, None]  # [rows, 1, longest]
        matrix = _rows_of_parts(x, planes * heads)
        parts = torch.arange(heads)[None, :, None]  # [1, heads, 1]
        return [gather_rows(matrix, first + (plane * heads + parts)) for plane in range(planes)]

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

    def pad_parts(self, x: Tensor, parts: int) -> list[Tensor]:
        """[rows * longest, parts * width] -> parts times [rows, longest, width]."""
        return list(self.pad(x).chunk(parts, -1))


def _rows_of_parts(x: Tensor, parts: int) -> Tensor:
    """[tokens, parts * width] -> [tokens * parts, width]."""
    return x.unflatten(1, (parts, -1)).flatten(0, 1)  # type: ignore[no-any-return,no-untyped-call]


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
