"""The head inputs of a step: which tokens of which rows to score, and how."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dragoman_server.core.search import StepRequest
from dragoman_server.runtime.buffers import Array


def common_top_k(step_requests: Sequence[StepRequest]) -> tuple[int, bool]:
    """Returns the largest number of candidates if all rows request only their most probable tokens, else 0.

    Also returns whether each of them has a shortlist; otherwise none of them has.
    """
    # Searches reuse the same object from step to step.
    distinct = set(map(id, step_requests))
    listed = step_requests[0].vocabulary is not None
    most = 0
    for step_request in step_requests if len(distinct) > 1 else step_requests[:1]:
        if (
            step_request.candidates == 0
            or (step_request.vocabulary is not None) != listed
            or step_request.edits is not None
            or step_request.temperature != 1
            or step_request.attention
        ):
            return 0, listed
        most = max(most, step_request.candidates)
    return most, listed


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


def _places_in(vocabulary: Sequence[int], ids: Sequence[int]) -> list[int]:
    """Returns the indices of token ids in a sorted shortlist; for those not in it, the index past its end.

    Every shortlist has a column there, which is masked.
    """
    end = len(vocabulary)
    places = [bisect_left(vocabulary, token) for token in ids]
    return [p if p < end and vocabulary[p] == token else end for p, token in zip(places, ids, strict=True)]


def _power_of_two(width: int) -> int:
    """Rounds up to a power of two, so that shapes repeat."""
    return 1 << (width - 1).bit_length() if width else 0
