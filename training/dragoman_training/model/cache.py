"""The caches of decoding: keys and values that a step computes once and later steps attend to."""

from collections.abc import Iterable

import torch
from torch import Tensor

GROWTH = 8  # positions after which keys that no row needs any more are removed, and room is made for as many more


class LayerCache:
    """Keys and values of one decoder layer.

    Several rows may share a source: row r belongs to source r // width. What a row writes is there for all rows of its
    source; `DecoderState.past` tells which of it is a row's own past. So nothing moves when rows change places, as in
    each step of a beam search, and hypotheses that have a past in common have it once.

    Args:
        memory: Keys and values of the cross-attention [sources, heads, source, d_head].
        width: Target rows of each source.
    """

    def __init__(self, memory: tuple[Tensor, Tensor], width: int) -> None:
        self.memory = memory
        self.width = width
        sources, heads, _, d_head = memory[0].shape
        shape = (sources, heads, 0, d_head)
        self._keys, self._values = memory[0].new_empty(shape), memory[1].new_empty(shape)

    def append(self, key: Tensor, value: Tensor, filled: int) -> tuple[Tensor, Tensor]:
        """Adds what all rows write at a position.

        Args:
            key: Keys [rows, heads, 1, d_head].
            value: Values [rows, heads, 1, d_head].
            filled: Keys of each source in the cache.

        Returns:
            The keys and values [sources, heads, filled + width, d_head].
        """
        end = filled + self.width
        self._keys, self._values = self._written(self._keys, key, end), self._written(self._values, value, end)
        return self._keys[:, :, :end], self._values[:, :, :end]

    def keep(self, sources: Tensor) -> None:
        """Keeps these sources, in this order [sources]."""
        self._keys, self._values = self._keys.index_select(0, sources), self._values.index_select(0, sources)
        key, value = self.memory
        self.memory = key.index_select(0, sources), value.index_select(0, sources)

    def compact(self, kept: Tensor) -> None:
        """Keeps these keys of each source, in this order [sources, keys]."""
        count = kept.size(1)
        index = kept[:, None, :, None].expand(-1, self._keys.size(1), -1, self._keys.size(3))
        for name in ("_keys", "_values"):
            old = getattr(self, name)
            new = old.new_empty(*old.shape[:2], count + GROWTH * self.width, old.size(3))
            torch.gather(old, 2, index, out=new[:, :, :count])
            setattr(self, name, new)

    def _written(self, cache: Tensor, new: Tensor, end: int) -> Tensor:
        if end > cache.size(2):
            more = cache.new_empty(*cache.shape[:2], max(GROWTH * self.width, cache.size(2) // 2), cache.size(3))
            cache = torch.cat([cache, more], 2)
        cache[:, :, end - self.width : end] = new.view(-1, self.width, *new.shape[1:]).squeeze(3).transpose(1, 2)
        return cache


class DecoderState:
    """What a decoder knows of its rows between two steps. All rows are at the same position.

    Args:
        layers: Cache of each layer.
        memory_mask: Bool [sources, 1, 1, source], False at source padding; None if there is no padding.

    Attributes:
        position: Number of steps done.
        filled: Keys of each source in the caches.
    """

    def __init__(self, layers: Iterable[LayerCache], memory_mask: Tensor | None) -> None:
        self.layers = list(layers)
        self.memory_mask = memory_mask
        self.position = self.filled = 0
        first = self.layers[0]
        sources, device = len(first.memory[0]), first.memory[0].device
        self._own = torch.eye(first.width, dtype=torch.bool, device=device)  # [width, width]
        # Which keys of its source each row attends to [sources, width, filled], and their positions [sources, filled].
        self._past = self._own.new_empty(sources, first.width, 0)
        self._positions = torch.zeros(sources, 0, dtype=torch.long, device=device)

    def past(self) -> tuple[Tensor | None, Tensor | None]:
        """Returns what rows attend to at this position: keys in the caches, with those that the rows write now.

        Returns:
            Which ones, bool [sources, 1, width, filled + width], and their positions [sources, filled + width]; None if
            each source has one row, which attends to all, in order.
        """
        if len(self._own) == 1:
            return None, None
        sources, width, _ = self._past.shape
        past = torch.cat([self._past, self._own.expand(sources, -1, -1)], 2)
        now = self._positions.new_full((sources, width), self.position)
        return past[:, None], torch.cat([self._positions, now], 1)

    def advance(self, past: Tensor | None, positions: Tensor | None) -> None:
        """Moves on to the next position.

        Args:
            past, positions: As `past` returned them.
        """
        self.position += 1
        self.filled += len(self._own)
        if past is not None and positions is not None:
            self._past, self._positions = past[:, 0], positions

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keeps some rows and sources and drops the others.

        Args:
            rows: Indices of the rows to keep [rows], grouped by source and as many of each as before; a row may occur
                several times.
            sources: Indices of the sources to keep, in the order of their rows [sources]; None for all.
        """
        width = len(self._own)
        if sources is not None:
            for layer in self.layers:
                layer.keep(sources)
            self._past, self._positions = self._past.index_select(0, sources), self._positions.index_select(0, sources)
            if self.memory_mask is not None:
                self.memory_mask = self.memory_mask.index_select(0, sources)
        if width > 1:
            places = (rows % width).view(-1, width, 1)  # [sources, width, 1], of the rows that these continue
            self._past = self._past.gather(1, places.expand(-1, -1, self.filled))
            if self.position % GROWTH == 0:
                self._compact()

    def _compact(self) -> None:
        """Removes keys that no row attends to any more; of each source equally many stay."""
        needed = self._past.any(1)  # [sources, filled]
        self.filled = int(needed.sum(1).max())
        order = needed.byte().sort(dim=1, descending=True, stable=True).indices[:, : self.filled]  # [sources, filled]
        self._past = self._past.gather(2, order[:, None].expand(-1, self._past.size(1), -1))
        self._positions = self._positions.gather(1, order)
        for layer in self.layers:
            layer.compact(order)
