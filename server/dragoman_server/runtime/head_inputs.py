"""The inputs of a step that say what is to be known of each row."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.search import StepRequest
from dragoman_server.runtime.buffers import Array

COLUMNS = 128  # numbers that the kernels of ONNX Runtime's CPU provider sum in one go, in a product and in a softmax


def is_plain(step_request: StepRequest) -> bool:
    """Whether a step_request is for the most probable of all tokens as the model has them, and for nothing else."""
    return (
        step_request.candidates > 0
        and step_request.edits is None
        and step_request.temperature == 1
        and step_request.vocabulary is None
        and not step_request.attention
    )


@dataclass
class HeadRows:
    """The rows of one head: export.graphs.head.Choice says what they mean.

    Attributes:
        rows, step_requests, scales: of each row of the head.
        places: where a row of the cache is among them.
        plain: where its candidates at temperature 1 are, by row of the cache.
    """

    rows: list[int] = field(default_factory=list)
    step_requests: list[StepRequest] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    plain: dict[int, int] = field(default_factory=dict)

    def add(self, row: int, step_request: StepRequest) -> None:
        self.places[row] = self._append(row, step_request, 1 / step_request.temperature)
        if step_request.untempered and step_request.temperature != 1:
            self.plain[row] = self._append(row, step_request, 1.0)

    def _append(self, row: int, step_request: StepRequest, scale: float) -> int:
        self.rows.append(row)
        self.step_requests.append(step_request)
        self.scales.append(scale)
        return len(self.rows) - 1

    def inputs(self, size: int, least: int) -> dict[str, Array]:
        """The graph's inputs, without the prefix of their names.

        Args:
            size: how many tokens there are to choose from.
            least: rows that there must be, see server.runtime.step; what they give is not looked at.
        """
        missing = max(0, least - len(self.rows))
        count = len(self.rows) + missing
        width = _rounded(max((len(d.edits.ids) for d in self.step_requests if d.edits), default=0))
        edit_ids = np.zeros((count, width), np.int64)
        penalties, offsets = np.ones((count, width), np.float32), np.zeros((count, width), np.float32)
        for place, step_request in enumerate(self.step_requests):
            edits = step_request.edits
            if edits is None or not edits.ids:
                continue
            used = len(edits.ids)
            ids = edits.ids if step_request.vocabulary is None else places_in(step_request.vocabulary, edits.ids)
            for array, values in ((edit_ids, ids), (penalties, edits.penalties), (offsets, edits.offsets)):
                array[place, :used] = values
                array[place, used:] = array[place, 0]  # an edit that is made twice is the same
        k = min(max((d.candidates for d in self.step_requests), default=1), size)
        return {
            "rows": np.array(self.rows + [0] * missing, np.int64),
            "scales": np.array(self.scales + [1.0] * missing, np.float32)[:, None],
            "k": np.array([k], np.int64),
            "edit_ids": edit_ids,
            "edit_penalties": penalties,
            "edit_offsets": offsets,
        }


def places_in(vocabulary: tuple[int, ...], ids: Sequence[int]) -> list[int]:
    """Where token ids are in a sorted vocabulary; behind its end, where every list has room, those that are not."""
    end = len(vocabulary)
    places = [bisect_left(vocabulary, token) for token in ids]
    return [p if p < end and vocabulary[p] == token else end for p, token in zip(places, ids, strict=True)]


class ShortLists:
    """The vocabularies of a step's rows, kept as long as they stay the same.

    Sums are bit-equal whatever other rows may choose. For that, every row's list has a place of its own, filled up to
    whole registers, and the product with the hidden states has columns enough that the kernel that computes it never
    splits its sums in another way.

    Args:
        threads: that compute a product together.

    Attributes:
        tokens: token ids of all lists, [listed].
        width: columns of a row's own list, more than any list has tokens.
    """

    def __init__(self, threads: int) -> None:
        self.tokens: NDArray[np.int64] = np.zeros(0, np.int64)
        self.width = 0
        self._columns_of_thread = COLUMNS * threads
        self._columns: dict[int, NDArray[np.int64]] = {}  # by id of the vocabulary
        self._masks: dict[int, NDArray[np.float32]] = {}
        self._ids: dict[int, NDArray[np.int64]] = {}
        self._vocabularies: dict[int, tuple[int, ...]] = {}

    def use(self, vocabularies: Sequence[tuple[int, ...]]) -> None:
        """Takes the vocabularies of the next step's rows."""
        distinct = {id(vocabulary): vocabulary for vocabulary in vocabularies}
        if distinct.keys() == self._vocabularies.keys():
            return
        self._vocabularies = distinct  # which keeps them alive, so that no other gets one of these ids
        arrays = {key: np.array(vocabulary, np.int64) for key, vocabulary in distinct.items()}
        union = np.unique(np.concatenate([np.zeros(0, np.int64), *arrays.values()]))
        self.tokens = np.append(union, np.zeros(-len(union) % self._columns_of_thread, np.int64))
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
        """The graph's inputs; rows beyond the step_requests may choose nothing."""
        columns = np.zeros((rows, self.width), np.int64)
        mask = np.full((rows, self.width), -np.inf, np.float32)
        for place, step_request in enumerate(step_requests):
            key = id(step_request.vocabulary)
            columns[place], mask[place] = self._columns[key], self._masks[key]
        return {"short_list": self.tokens, "short_columns": columns, "short_mask": mask}

    def ids(self, step_requests: Sequence[StepRequest], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Token ids, where the graph gave places in each row's own list [rows, k]."""
        ids = [self._ids[id(step_request.vocabulary)][places[row]] for row, step_request in enumerate(step_requests)]
        return np.stack(ids)


def _rounded(width: int) -> int:
    """Up to a power of two, so that shapes repeat."""
    return 1 << (width - 1).bit_length() if width else 0
