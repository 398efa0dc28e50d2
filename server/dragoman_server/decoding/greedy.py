"""Greedy search without options, which most requests use: for one row, and for all rows of an engine at once."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.requests import FinishReason, HypothesisResult, Progress
from dragoman_server.core.search import BEST_TOKEN, Continuation, StepRequest, StepResult
from dragoman_server.decoding.finish import finish_reason, finishes

FIRST_CAPACITY = 64  # tokens of a row


class GreedySearch:
    """Greedy search without alternatives, stop sequences or constraints other than a shortlist.

    An engine can advance it like any search. Since there is nothing to decide, GreedyRows can also choose the tokens
    of many such searches at once; `set_tokens` then stores them.

    Args:
        end: Id of the end token.
        max_new_tokens: Maximum number of tokens, the end token not counted.
        vocabulary: Shortlist, sorted ids of the only tokens that may be chosen; None for all.

    Attributes:
        step_request: The step request of its row.
    """

    __slots__ = ("_ids", "_log_probabilities", "_reason", "_reported", "end", "last_position", "step_request")

    rows = 1

    def __init__(self, end: int, max_new_tokens: int, vocabulary: Sequence[int] | None = None) -> None:
        self.end, self.last_position = end, max_new_tokens - 1
        self.step_request = BEST_TOKEN if vocabulary is None else StepRequest(1, vocabulary=vocabulary)
        self._ids: list[int] = []
        self._log_probabilities: list[float] = []
        self._reason: FinishReason | None = None
        self._reported = 0  # ids

    def step_requests(self) -> Sequence[StepRequest]:
        return (self.step_request,)

    def needs_more(self, result: StepResult, rows: Sequence[int]) -> bool:
        return False

    def advance(self, result: StepResult, rows: Sequence[int]) -> Sequence[Continuation] | None:
        token, log_probability = result.best(rows[0])
        reason = finish_reason(token, log_probability, len(self._ids), self.end, self.last_position)
        self._reason = reason
        if reason is FinishReason.DEAD_END:
            return None
        self._log_probabilities.append(log_probability)
        if reason is FinishReason.EOS:
            return None
        self._ids.append(token)
        return (Continuation(0, token),) if reason is None else None

    def set_tokens(self, ids: list[int], log_probabilities: list[float], reason: FinishReason | None) -> None:
        """Stores all tokens so far, in place of as many calls of `advance`.

        Args:
            ids, log_probabilities: As in HypothesisResult.
            reason: Why the search is over; None where it is not.
        """
        self._ids, self._log_probabilities, self._reason = ids, log_probabilities, reason

    def stop(self, reason: FinishReason) -> None:
        if self._reason is None:
            self._reason = reason

    def progress(self) -> Sequence[Progress]:
        first, self._reported = self._reported, len(self._ids)
        if first == self._reported:
            return ()
        return (Progress(self._ids[first:], self._log_probabilities[first : self._reported]),)

    def hypotheses(self) -> list[HypothesisResult]:
        assert self._reason is not None, "the search is not over"
        score = sum(self._log_probabilities, 0.0)
        return [HypothesisResult(self._ids, self._log_probabilities, self._reason, score)]


class GreedyRows:
    """The tokens of many greedy searches, in arrays: a step of all rows takes as long as a step of few.

    Row i is row i of the cache. A search receives its tokens when it is over, or by `update_search`.

    Args:
        max_rows: Rows of the cache.

    Attributes:
        count: Number of rows that are greedy searches.
    """

    def __init__(self, max_rows: int) -> None:
        self.count = 0
        self._searches: list[GreedySearch | None] = [None] * max_rows
        self._rows: NDArray[np.int64] | None = None  # greedy rows, ascending; None after a change
        self._ends: NDArray[np.int64] = np.zeros(max_rows, np.int64)
        self._last_positions: NDArray[np.int32] = np.zeros(max_rows, np.int32)
        self._ids: NDArray[np.int64] = np.zeros((max_rows, FIRST_CAPACITY), np.int64)
        self._log_probabilities: NDArray[np.float32] = np.zeros((max_rows, FIRST_CAPACITY), np.float32)
        self._starts: NDArray[np.int64] = np.arange(max_rows, dtype=np.int64) * FIRST_CAPACITY

    def add(self, row: int, search: GreedySearch) -> None:
        """Adds a search that has made no step yet."""
        self._searches[row] = search
        self._ends[row], self._last_positions[row] = search.end, search.last_position
        self._rows = None
        self.count += 1
        if search.last_position >= self._ids.shape[1]:
            self._grow(search.last_position + 1)

    def remove(self, row: int) -> None:
        self._searches[row] = None
        self._rows = None
        self.count -= 1

    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Follows moves (from row, to row) of the cache; no destination is a greedy row."""
        for source, target in moves:
            search = self._searches[source]
            if search is not None:
                self._searches[source], self._searches[target] = None, search
                for array in (self._ends, self._last_positions, self._ids, self._log_probabilities):
                    array[target] = array[source]
        self._rows = None

    def advance(self, result: StepResult, positions: NDArray[np.int32], tokens: NDArray[np.int64]) -> list[int]:
        """Chooses the next token of every greedy row.

        Args:
            result: Result of the step.
            positions: Positions of this step's decoder inputs, [rows in use].
            tokens: Decoder inputs of the next step, [rows in use, 1]; greedy rows are overwritten.

        Returns:
            The rows whose searches are over; those searches have their tokens.
        """
        if not self.count:
            return []
        rows: NDArray[np.int64] | slice
        if self.count == len(positions):
            rows = slice(len(positions))
        else:
            if self._rows is None:
                self._rows = np.array([r for r, search in enumerate(self._searches) if search is not None], np.int64)
            rows = self._rows
            positions = positions[rows]
        ids, log_probabilities = result.best_rows(rows)
        tokens[rows, 0] = ids
        flat_positions = self._starts[rows] + positions
        self._ids.reshape(-1)[flat_positions] = ids
        self._log_probabilities.reshape(-1)[flat_positions] = log_probabilities
        finished = finishes(ids, log_probabilities, positions, self._ends[rows], self._last_positions[rows])
        indices: list[int] = finished.nonzero()[0].tolist()
        finished_rows: list[int] = indices if isinstance(rows, slice) else rows[indices].tolist()
        for index, row in zip(indices, finished_rows, strict=True):
            self._finish(row, int(ids[index]), float(log_probabilities[index]), int(positions[index]))
        return finished_rows

    def update_search(self, row: int, length: int) -> None:
        """Stores a row's first `length` tokens in its search."""
        self._store(row, length, length, None)

    def _finish(self, row: int, token: int, log_probability: float, position: int) -> None:
        reason = finish_reason(token, log_probability, position, int(self._ends[row]), int(self._last_positions[row]))
        assert reason is not None
        ids = position + (reason is FinishReason.LENGTH)
        log_probabilities = position + (reason is not FinishReason.DEAD_END)  # includes the end token's
        self._store(row, ids, log_probabilities, reason)

    def _store(self, row: int, ids: int, log_probabilities: int, reason: FinishReason | None) -> None:
        search = self._searches[row]
        assert search is not None
        search.set_tokens(
            self._ids[row, :ids].tolist(), self._log_probabilities[row, :log_probabilities].tolist(), reason
        )

    def _grow(self, capacity: int) -> None:
        max_rows, before = self._ids.shape
        capacity = 1 << (capacity - 1).bit_length()
        for name in ("_ids", "_log_probabilities"):
            old = getattr(self, name)
            new = np.zeros((max_rows, capacity), old.dtype)
            new[:, :before] = old
            setattr(self, name, new)
        self._starts = np.arange(max_rows, dtype=np.int64) * capacity
