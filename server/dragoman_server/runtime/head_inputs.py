"""The head inputs of a step: which tokens of which rows to score, and how."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.search import StepRequest
from dragoman_server.runtime.buffers import Array

COLUMNS = 128  # numbers that ONNX Runtime's CPU kernels sum at a time, in a product and in a softmax


def common_top_k(step_requests: Sequence[StepRequest]) -> int:
    """Returns the largest number of candidates if all rows request only their most probable tokens, else 0."""
    # Searches reuse the same object from step to step.
    distinct = {id(step_request): step_request for step_request in step_requests}.values()
    return max(d.candidates for d in distinct) if all(map(_is_top_k, distinct)) else 0


def _is_top_k(step_request: StepRequest) -> bool:
    """Returns whether a row requests the most probable tokens of the whole vocabulary, unedited, and nothing else."""
    return (
        step_request.candidates > 0
        and step_request.edits is None
        and step_request.temperature == 1
        and step_request.vocabulary is None
        and not step_request.attention
    )


@dataclass
class HeadRows:
    """The rows that one head of the decoder computes; dragoman_export.graphs.head.HeadInputs defines the inputs.

    Attributes:
        rows: Cache row of each head row.
        step_requests: Step request of each head row.
        scales: Inverse temperature of each head row.
        places: Head row by cache row.
        untempered: Head row with the candidates at temperature 1, by cache row.
    """

    rows: list[int] = field(default_factory=list)
    step_requests: list[StepRequest] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    untempered: dict[int, int] = field(default_factory=dict)

    def add(self, row: int, step_request: StepRequest) -> None:
        """Adds a cache row, twice if it also requests log-probabilities at temperature 1."""
        self.places[row] = self._append(row, step_request, 1 / step_request.temperature)
        if step_request.untempered and step_request.temperature != 1:
            self.untempered[row] = self._append(row, step_request, 1.0)

    def _append(self, row: int, step_request: StepRequest, scale: float) -> int:
        self.rows.append(row)
        self.step_requests.append(step_request)
        self.scales.append(scale)
        return len(self.rows) - 1

    def inputs(self, size: int, min_rows: int) -> dict[str, Array]:
        """Returns the head inputs by name, without the head's prefix.

        Args:
            size: The number of tokens to choose from.
            min_rows: Fewer rows are padded to this many; the outputs of padding rows are ignored.
        """
        padding = max(0, min_rows - len(self.rows))
        count = len(self.rows) + padding
        width = _power_of_two(max((len(d.edits.ids) for d in self.step_requests if d.edits), default=0))
        edit_ids = np.zeros((count, width), np.int64)
        penalties, offsets = np.ones((count, width), np.float32), np.zeros((count, width), np.float32)
        for place, step_request in enumerate(self.step_requests):
            edits = step_request.edits
            if edits is None or not edits.ids:
                continue
            used = len(edits.ids)
            ids = edits.ids if step_request.vocabulary is None else _places_in(step_request.vocabulary, edits.ids)
            for array, values in ((edit_ids, ids), (penalties, edits.penalties), (offsets, edits.offsets)):
                array[place, :used] = values
                array[place, used:] = array[place, 0]  # padding repeats the first edit, which changes nothing
        k = min(max((d.candidates for d in self.step_requests), default=1), size)
        return {
            "rows": np.array(self.rows + [0] * padding, np.int64),
            "scales": np.array(self.scales + [1.0] * padding, np.float32)[:, None],
            "k": np.array([k], np.int64),
            "edit_ids": edit_ids,
            "edit_penalties": penalties,
            "edit_offsets": offsets,
        }


class Shortlists:
    """The shortlists of a step's rows, kept as long as they stay the same.

    A row's sums are bit-equal whatever the other rows may choose. To that end every row has its own copy of its list,
    padded to whole registers, and the product with the hidden states has enough columns that its kernel never splits
    the sums in another way.

    Args:
        threads: Threads that compute a product together.

    Attributes:
        tokens: Token ids of all shortlists, [listed].
        width: Columns of a row's own list, more than the longest shortlist has tokens.
    """

    def __init__(self, threads: int) -> None:
        self.tokens: NDArray[np.int64] = np.zeros(0, np.int64)
        self.width = 0
        self._column_multiple = COLUMNS * threads
        self._columns: dict[int, NDArray[np.int64]] = {}  # by id() of the shortlist, as the next two
        self._masks: dict[int, NDArray[np.float32]] = {}
        self._ids: dict[int, NDArray[np.int64]] = {}
        self._vocabularies: dict[int, tuple[int, ...]] = {}

    def use(self, vocabularies: Sequence[tuple[int, ...]]) -> None:
        """Sets the shortlists of the next step's rows."""
        distinct = {id(vocabulary): vocabulary for vocabulary in vocabularies}
        if distinct.keys() == self._vocabularies.keys():
            return
        self._vocabularies = distinct  # keeps them alive, so that no other object gets the same id()
        arrays = {key: np.array(vocabulary, np.int64) for key, vocabulary in distinct.items()}
        union = np.unique(np.concatenate([np.zeros(0, np.int64), *arrays.values()]))
        self.tokens = np.append(union, np.zeros(-len(union) % self._column_multiple, np.int64))
        longest = max(map(len, distinct.values()), default=-1) + 1
        self.width = longest + -longest % COLUMNS
        self._columns, self._masks, self._ids = {}, {}, {}
        for key, array in arrays.items():
            columns = self._columns[key] = np.zeros(self.width, np.int64)
            columns[: len(array)] = np.searchsorted(union, array)
            mask = self._masks[key] = np.full(self.width, -np.inf, np.float32)
            mask[: len(array)] = 0
            ids = self._ids[key] = np.zeros(self.width, np.int64)
            ids[: len(array)] = array

    def inputs(self, step_requests: Sequence[StepRequest], rows: int) -> dict[str, Array]:
        """Returns the graph's shortlist inputs; in rows beyond the step requests every token is masked."""
        columns = np.zeros((rows, self.width), np.int64)
        mask = np.full((rows, self.width), -np.inf, np.float32)
        for place, step_request in enumerate(step_requests):
            key = id(step_request.vocabulary)
            columns[place], mask[place] = self._columns[key], self._masks[key]
        return {"short_list": self.tokens, "short_columns": columns, "short_mask": mask}

    def ids(self, step_requests: Sequence[StepRequest], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Converts the graph's indices into each row's shortlist [rows, k] to token ids."""
        ids = [self._ids[id(step_request.vocabulary)][places[row]] for row, step_request in enumerate(step_requests)]
        return np.stack(ids)


def _places_in(vocabulary: tuple[int, ...], ids: Sequence[int]) -> list[int]:
    """Returns the indices of token ids in a sorted shortlist; for those not in it, the index past its end.

    Every shortlist has a column there, which is masked.
    """
    end = len(vocabulary)
    places = [bisect_left(vocabulary, token) for token in ids]
    return [p if p < end and vocabulary[p] == token else end for p, token in zip(places, ids, strict=True)]


def _power_of_two(width: int) -> int:
    """Rounds up to a power of two, so that shapes repeat."""
    return 1 << (width - 1).bit_length() if width else 0
