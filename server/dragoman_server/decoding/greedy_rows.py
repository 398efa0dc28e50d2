"""Rows of greedy searches, which go on together. Pure logic, without ONNX Runtime."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.requests import FinishReason
from dragoman_server.core.search import StepScores
from dragoman_server.decoding.greedy import GreedySearch

FIRST_CAPACITY = 64  # tokens of a row


class GreedyRows:
    """The tokens of greedy searches, in arrays: a step of all rows takes as long as one of few.

    Row i is row i of the cache. A search hears what was decided when it is over, or when it is asked for with `tell`.

    Args:
        max_rows: rows of the cache.

    Attributes:
        count: rows that are here.
    """

    def __init__(self, max_rows: int) -> None:
        self.count = 0
        self._searches: list[GreedySearch | None] = [None] * max_rows
        self._rows: NDArray[np.int64] | None = None  # those that are here, ascending; None where it has to be found out
        self._ends: NDArray[np.int64] = np.zeros(max_rows, np.int64)
        self._last: NDArray[np.int32] = np.zeros(max_rows, np.int32)  # where the last token that is allowed stands
        self._ids: NDArray[np.int64] = np.zeros((max_rows, FIRST_CAPACITY), np.int64)
        self._log_probabilities: NDArray[np.float32] = np.zeros((max_rows, FIRST_CAPACITY), np.float32)
        self._starts: NDArray[np.int64] = np.arange(max_rows, dtype=np.int64) * FIRST_CAPACITY

    def add(self, row: int, search: GreedySearch) -> None:
        """Takes in a row that has not been stepped yet."""
        self._searches[row] = search
        self._ends[row], self._last[row] = search.end, search.limit - 1
        self._rows = None
        self.count += 1
        if search.limit > self._ids.shape[1]:
            self._grow(search.limit)

    def remove(self, row: int) -> None:
        self._searches[row] = None
        self._rows = None
        self.count -= 1

    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Rows (from row, to row) have moved; where to there is none that is here."""
        for source, target in moves:
            search = self._searches[source]
            if search is not None:
                self._searches[source], self._searches[target] = None, search
                for array in (self._ends, self._last, self._ids, self._log_probabilities):
                    array[target] = array[source]
        self._rows = None

    def advance(self, scores: StepScores, positions: NDArray[np.int32], tokens: NDArray[np.int64]) -> list[int]:
        """Takes one step's result.

        Args:
            positions: of the decoder inputs of this step, [rows in use].
            tokens: where to put those of the next step, [rows in use, 1].

        Returns:
            rows whose searches are over, and know it.
        """
        if not self.count:
            return []
        here: NDArray[np.int64] | slice
        if self.count == len(positions):
            here, places = slice(len(positions)), positions
        else:
            if self._rows is None:
                self._rows = np.array([r for r, search in enumerate(self._searches) if search is not None], np.int64)
            here = self._rows
            places = positions[here]
        ids, log_probabilities = scores.best_of(here)
        tokens[here, 0] = ids
        at = self._starts[here] + places
        self._ids.reshape(-1)[at] = ids
        self._log_probabilities.reshape(-1)[at] = log_probabilities
        dead = log_probabilities == -np.inf
        over = dead | (ids == self._ends[here])
        over |= places == self._last[here]
        ended: list[int] = over.nonzero()[0].tolist()
        if not ended:
            return ended
        rows: list[int] = ended if isinstance(here, slice) else here[ended].tolist()
        for index, row in zip(ended, rows, strict=True):
            if dead[index]:
                self._tell(row, int(places[index]), 0, FinishReason.DEAD_END)
            elif ids[index] == self._ends[row]:
                self._tell(row, int(places[index]), 1, FinishReason.EOS)
            else:
                self._tell(row, int(places[index]) + 1, 0, FinishReason.LENGTH)
        return rows

    def tell(self, row: int, tokens: int) -> None:
        """Tells a row's search what was decided so far.

        Args:
            tokens: how many that are.
        """
        self._tell(row, tokens, 0, None)

    def _tell(self, row: int, tokens: int, ends: int, reason: FinishReason | None) -> None:
        """Args:
        ends: end tokens, whose log-probabilities belong to the answer.
        """
        search = self._searches[row]
        assert search is not None
        ids: list[int] = self._ids[row, :tokens].tolist()
        log_probabilities: list[float] = self._log_probabilities[row, : tokens + ends].tolist()
        search.decided(ids, log_probabilities, reason)

    def _grow(self, capacity: int) -> None:
        max_rows, before = self._ids.shape
        capacity = 1 << (capacity - 1).bit_length()
        for name in ("_ids", "_log_probabilities"):
            old = getattr(self, name)
            new = np.zeros((max_rows, capacity), old.dtype)
            new[:, :before] = old
            setattr(self, name, new)
        self._starts = np.arange(max_rows, dtype=np.int64) * capacity
