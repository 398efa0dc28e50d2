"""The caches of decoding: keys and values that a step computes once and later steps attend to."""

from collections.abc import Iterable

import torch
from torch import Tensor

FIRST_CAPACITY = 16  # positions of a new cache; it doubles when it is full


class LayerCache:
    """Keys and values of one decoder layer.

    Several rows may share a source: row r belongs to source r // (rows / sources).

    Args:
        memory: Keys and values of the cross-attention [sources, heads, source, d_head].
        rows: Number of target rows.
    """

    def __init__(self, memory: tuple[Tensor, Tensor], rows: int) -> None:
        self.memory = memory
        heads, d_head = memory[0].size(1), memory[0].size(3)
        shape = (rows, heads, FIRST_CAPACITY, d_head)
        self._keys, self._values = memory[0].new_empty(shape), memory[1].new_empty(shape)

    def append(self, key: Tensor, value: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Adds one position to all rows.

        Args:
            key: Keys [rows, heads, 1, d_head].
            value: Values [rows, heads, 1, d_head].
            position: Their position; earlier ones are in the cache.

        Returns:
            The keys and values of all positions so far [rows, heads, position + 1, d_head].
        """
        if position == self._keys.size(2):
            self._keys, self._values = (
                torch.cat([old, torch.empty_like(old)], 2) for old in (self._keys, self._values)
            )
        end = position + 1
        self._keys[:, :, position:end], self._values[:, :, position:end] = key, value
        return self._keys[:, :, :end], self._values[:, :, :end]

    def select(self, rows: Tensor, sources: Tensor | None) -> None:
        """Keeps these rows, in this order; see `DecoderState.select`."""
        self._keys, self._values = self._keys.index_select(0, rows), self._values.index_select(0, rows)
        if sources is not None:
            key, value = self.memory
            self.memory = key.index_select(0, sources), value.index_select(0, sources)


class DecoderState:
    """What a decoder knows of its rows between two steps. All rows are at the same position.

    Args:
        layers: Cache of each layer.
        memory_mask: Bool [sources, 1, 1, source], False at source padding; None if there is no padding.

    Attributes:
        position: Number of steps done.
    """

    def __init__(self, layers: Iterable[LayerCache], memory_mask: Tensor | None) -> None:
        self.layers = list(layers)
        self.memory_mask = memory_mask
        self.position = 0

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keeps some rows and sources and drops the others.

        Args:
            rows: Indices of the rows to keep [rows], grouped by source; a row may occur several times.
            sources: Indices of the sources to keep, in the order of their rows [sources]; None for all.
        """
        for layer in self.layers:
            layer.select(rows, sources)
        if sources is not None and self.memory_mask is not None:
            self.memory_mask = self.memory_mask.index_select(0, sources)
