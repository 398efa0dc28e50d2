"""Rows of token ids or of text packed into flat arrays, in memory or in memory-mapped shards; two are a pair."""

import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from dragoman_training.data.batches import EncodedPair
from dragoman_training.errors import DataError
from dragoman_training.files import write

ENDS = np.dtype("<u4")
BYTES = np.dtype("u1")
Values = NDArray[Any]
Lengths = NDArray[np.int64]
# Rows read before the pages of their shards are unmapped. The kernel maps 64 kB around each, of values and of ends.
READS_BEFORE_RELEASE = 1024


def token_type(*vocabularies: int) -> np.dtype[Any]:
    """Returns the smallest type that holds the token ids of all vocabularies."""
    return np.dtype("<u2") if max(vocabularies) <= 2**16 else np.dtype("<u4")


def pack(rows: Sequence[Sequence[int] | Values | bytes], kind: np.dtype[Any]) -> tuple[Values, NDArray[np.uint32]]:
    """Packs rows into one array of values [all], beside where each of them ends [rows]."""
    ends = np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows))).astype(ENDS)
    if kind == BYTES:
        return np.frombuffer(b"".join(bytes(row) for row in rows), kind), ends
    return np.concatenate([np.zeros(0, kind), *(np.asarray(row, kind) for row in rows)]), ends


def join(pieces: Sequence[tuple[Values, NDArray[np.uint32]]]) -> tuple[Values, Lengths]:
    """Joins pieces of `pack`; returns the values and where rows end."""
    if not pieces:
        return np.zeros(0, ENDS), np.zeros(0, np.int64)
    starts = np.cumsum([0, *(len(values) for values, _ in pieces)]).tolist()
    ends = [ends.astype(np.int64) + start for (_, ends), start in zip(pieces, starts, strict=False)]
    return np.concatenate([values for values, _ in pieces]), np.concatenate(ends)


def write_rows(values: Values, ends: Lengths, values_file: Path, ends_file: Path, *, durable: bool = True) -> None:
    """Writes rows as `MappedRows` read them, each file atomically, see `write`."""
    write(values_file, lambda file: file.write(values.tobytes()), durable=durable)
    write(ends_file, lambda file: file.write(ends.astype(ENDS).tobytes()), durable=durable)


class MemoryRows:
    """Rows in memory, from pieces of `pack`."""

    def __init__(self, pieces: Iterable[tuple[Values, NDArray[np.uint32]]]) -> None:
        self._values, ends = join(list(pieces))
        self._bounds = np.concatenate([np.zeros(1, np.int64), ends])

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, index: int) -> Values:
        return self._values[self._bounds[index] : self._bounds[index + 1]]

    def lengths(self) -> Lengths:
        """Returns the lengths of all rows."""
        return np.diff(self._bounds)


class MappedRows:
    """Rows of shards on disk, of which only those in use are in memory.

    Args:
        shards: Files of the values and of the ends of each shard, as `pack` returns them, and its number of rows.
        kind: Type of the values.

    Raises:
        DataError: A file is missing or has another size.
    """

    def __init__(self, shards: Sequence[tuple[Path, Path, int]], kind: np.dtype[Any]) -> None:
        self._starts = np.cumsum([0, *(rows for _, _, rows in shards)])
        self._maps: list[mmap.mmap] = []
        self._ends = [self._map(path, ENDS, rows) for _, path, rows in shards]
        counts = [int(ends[-1]) if len(ends) else 0 for ends in self._ends]
        self._values = [self._map(path, kind, count) for (path, _, _), count in zip(shards, counts, strict=True)]
        self._reads = 0

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Values:
        if not 0 <= index < len(self):
            raise IndexError(index)
        self._reads += 1
        if self._reads % READS_BEFORE_RELEASE == 0:
            self.release()
        shard = int(np.searchsorted(self._starts, index, "right")) - 1
        ends, place = self._ends[shard], index - int(self._starts[shard])
        start = int(ends[place - 1]) if place else 0
        return self._values[shard][start : int(ends[place])].copy()

    def pair_lengths(self, pairs: NDArray[Any]) -> tuple[Lengths, Lengths]:
        """Returns the lengths of the two rows of each pair, [pairs] each.

        Args:
            pairs: Numbers of the pairs in ascending order.
        """
        lengths = np.empty((len(pairs), 2), np.int64)
        starts = self._starts // 2  # a shard holds whole pairs
        bounds = np.searchsorted(pairs, starts).tolist()
        for shard, ends in enumerate(self._ends):
            here = slice(bounds[shard], bounds[shard + 1])
            every = np.diff(ends, prepend=ENDS.type(0)).reshape(-1, 2)  # [pairs of the shard, 2]
            lengths[here] = every[pairs[here] - starts[shard]]
        self.release()
        return lengths[:, 0], lengths[:, 1]

    def release(self) -> None:
        """Unmaps the pages that were read; the kernel keeps them as long as it has memory to spare."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)

    def _map(self, path: Path, kind: np.dtype[Any], count: int) -> Values:
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                if size != count * kind.itemsize:
                    raise DataError(
                        f"{path}: has {size:,} bytes, expected {count * kind.itemsize:,}; delete its folder"
                    )
                if size == 0:
                    return np.zeros(0, kind)
                mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); delete its folder") from None
        self._maps.append(mapped)
        return np.frombuffer(mapped, kind)


class PackedPairs(Sequence[EncodedPair]):
    """Encoded pairs by number.

    Args:
        rows: Their sources and targets by turns.
        chosen: Numbers of the pairs in `rows`, in ascending order; None for all.
        plain: The same pairs before their random changes, if teachers read those.
    """

    def __init__(
        self,
        rows: MemoryRows | MappedRows,
        chosen: NDArray[Any] | None = None,
        plain: "PackedPairs | None" = None,
    ) -> None:
        self.rows = rows
        self.chosen = chosen
        self.plain = plain

    def __len__(self) -> int:
        return len(self.rows) // 2 if self.chosen is None else len(self.chosen)

    @overload
    def __getitem__(self, index: int, /) -> EncodedPair: ...

    @overload
    def __getitem__(self, index: slice, /) -> list[EncodedPair]: ...

    def __getitem__(self, index: int | slice, /) -> EncodedPair | list[EncodedPair]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        pair = index if self.chosen is None else int(self.chosen[index])
        plain = None if self.plain is None else self.plain[index]
        return EncodedPair(self.rows[2 * pair].tolist(), self.rows[2 * pair + 1].tolist(), plain)

    def lengths(self) -> tuple[Lengths, Lengths]:
        """Returns the token counts of the sources and of the targets, each [pairs], with end tokens."""
        if isinstance(self.rows, MappedRows):
            return self.rows.pair_lengths(np.arange(len(self)) if self.chosen is None else self.chosen)
        lengths = self.rows.lengths().reshape(-1, 2)
        if self.chosen is not None:
            lengths = lengths[self.chosen]
        return lengths[:, 0], lengths[:, 1]


def text(row: Values) -> str:
    """Returns the text of a row of UTF-8."""
    return row.tobytes().decode()
