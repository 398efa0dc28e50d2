"""The result of a step, by cache row."""

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dragoman_server.runtime.buffers import Array


class TopKResult:
    """Scores of a step in which every row requested only its most probable tokens: output row i is cache row i.

    Args:
        ids, log_probabilities: [rows, k], best first. They must be read before the next step overwrites them.
    """

    def __init__(self, ids: NDArray[np.int64], log_probabilities: NDArray[np.float32]) -> None:
        self.ids, self.log_probabilities = ids, log_probabilities

    def best(self, row: int) -> tuple[int, float]:
        ids, log_probabilities = self._best
        return ids[row], log_probabilities[row]

    def best_rows(self, rows: slice | NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return self.ids[rows, 0], self.log_probabilities[rows, 0]

    def top(self, row: int) -> tuple[list[int], list[float]]:
        ids, log_probabilities = self._lists
        return ids[row], log_probabilities[row]

    def untempered(self, row: int) -> list[float]:
        return self._lists[1][row]

    @cached_property
    def _best(self) -> tuple[list[int], list[float]]:
        return self.ids[:, 0].tolist(), self.log_probabilities[:, 0].tolist()

    @cached_property
    def _lists(self) -> tuple[list[list[int]], list[list[float]]]:
        """All rows at once: callers that read one row read most, and row by row takes twice as long."""
        return self.ids.tolist(), self.log_probabilities.tolist()

    def edited(self, row: int) -> list[float]:
        return []

    def attention(self, row: int) -> NDArray[np.float32]:
        raise AssertionError("no row requested attention")


class HeadOutputs:
    """The outputs of one of the decoder's two heads.

    Args:
        ids, log_probabilities: [n, k], best first; ids of the whole vocabulary for both heads.
        edited: Log-probabilities of edited tokens, [n, edits].
    """

    def __init__(self, ids: Array, log_probabilities: Array, edited: Array) -> None:
        self.ids = ids
        # If every token is forbidden the softmax is 0 / 0: no token has any probability.
        self.log_probabilities = np.nan_to_num(log_probabilities, copy=False, nan=-math.inf, neginf=-math.inf)
        self.edited = np.nan_to_num(edited, copy=False, nan=-math.inf, neginf=-math.inf)


class MixedResult:
    """Scores of a step in which rows requested different things.

    Args:
        heads: The head outputs with a row's candidates and its index in them, by cache row; None for a row without
            candidates.
        untempered: The index of its candidates at temperature 1, by cache row.
        edits: The number of edited tokens, by cache row; the rest of a row of `edited` is padding.
        attention: Attention weights over the source, by cache row.
    """

    def __init__(
        self,
        heads: list[tuple[HeadOutputs, int] | None],
        untempered: dict[int, int],
        edits: dict[int, int],
        attention: dict[int, NDArray[np.float32]],
    ) -> None:
        self._heads = heads
        self._plain = untempered
        self._edits = edits
        self._attention = attention

    def best(self, row: int) -> tuple[int, float]:
        ids, log_probabilities = self.top(row)
        return ids[0], log_probabilities[0]

    def best_rows(self, rows: slice | NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        heads = self._heads[rows] if isinstance(rows, slice) else [self._heads[row] for row in rows.tolist()]
        found = [head for head in heads if head is not None]
        assert len(found) == len(heads), "a row requested no candidates"
        if not found:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        ids, log_probabilities = np.empty(len(found), np.int64), np.empty(len(found), np.float32)
        for chosen in {id(head): head for head, _ in found}.values():
            rows_of_head = [row for row, (head, _) in enumerate(found) if head is chosen]
            places = [found[row][1] for row in rows_of_head]
            ids[rows_of_head] = chosen.ids[places, 0]
            log_probabilities[rows_of_head] = chosen.log_probabilities[places, 0]
        return ids, log_probabilities

    def top(self, row: int) -> tuple[list[int], list[float]]:
        head, place = self._head(row)
        return head.ids[place].tolist(), head.log_probabilities[place].tolist()

    def untempered(self, row: int) -> list[float]:
        head, place = self._head(row)
        untempered: list[float] = head.log_probabilities[self._plain.get(row, place)].tolist()
        return untempered

    def edited(self, row: int) -> list[float]:
        count = self._edits.get(row, 0)
        if not count:
            return []
        head, place = self._head(row)
        edited: list[float] = head.edited[place, :count].tolist()
        return edited

    def attention(self, row: int) -> NDArray[np.float32]:
        return self._attention[row]

    def _head(self, row: int) -> tuple[HeadOutputs, int]:
        head = self._heads[row]
        assert head is not None, f"row {row} requested no candidates"
        return head
