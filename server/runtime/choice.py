"""The inputs of a step that say what is to be known of each row."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from server.runtime.memory import Array
from server.search.base import Demand


def is_plain(demand: Demand) -> bool:
    """Whether a demand is for the most probable of all tokens as the model has them, and for nothing else."""
    return (
        demand.candidates > 0
        and demand.edits is None
        and demand.temperature == 1
        and demand.vocabulary is None
        and not demand.attention
    )


@dataclass
class HeadRows:
    """The rows of one head: export.graphs.head.Choice says what they mean.

    Attributes:
        places: of each row of the cache.
        plain: where its candidates at temperature 1 are, by row.
    """

    columns: NDArray[np.int64] | None  # sorted ids of the tokens it chooses from; None for all
    rows: list[int] = field(default_factory=list)
    demands: list[Demand] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    plain: dict[int, int] = field(default_factory=dict)

    def add(self, row: int, demand: Demand) -> None:
        self.places[row] = self._append(row, demand, 1 / demand.temperature)
        if demand.plain and demand.temperature != 1:
            self.plain[row] = self._append(row, demand, 1.0)

    def _append(self, row: int, demand: Demand, scale: float) -> int:
        self.rows.append(row)
        self.demands.append(demand)
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
        width = _rounded(max((len(d.edits.ids) for d in self.demands if d.edits), default=0))
        edit_ids = np.zeros((count, width), np.int64)
        penalties, offsets = np.ones((2, count, width), np.float32)
        offsets[:] = 0
        for place, demand in enumerate(self.demands):
            edits = demand.edits
            if edits is None or not edits.ids:
                continue
            used = len(edits.ids)
            for array, values in ((edit_ids, edits.ids), (penalties, edits.penalties), (offsets, edits.offsets)):
                array[place, :used] = values
                array[place, used:] = array[place, 0]  # an edit that is made twice is the same
        if self.columns is not None and width:
            edit_ids = self._columns_of(edit_ids, penalties, offsets)
        k = min(max((d.candidates for d in self.demands), default=1), size)
        return {
            "rows": np.array(self.rows + [0] * missing, np.int64),
            "scales": np.array(self.scales + [1.0] * missing, np.float32)[:, None],
            "k": np.array([k], np.int64),
            "edit_ids": edit_ids,
            "edit_penalties": penalties,
            "edit_offsets": offsets,
        }

    def _columns_of(self, ids: NDArray[np.int64], penalties: Array, offsets: Array) -> NDArray[np.int64]:
        """Places in the list instead of token ids. Edits of tokens that are not in it go to a column of their own."""
        assert self.columns is not None
        places = np.searchsorted(self.columns, ids)
        places = np.minimum(places, len(self.columns) - 1)
        absent = self.columns[places] != ids
        # The list ends with a column that no row may choose, for these: see ShortList.
        places[absent] = len(self.columns)
        penalties[absent], offsets[absent] = 1, 0
        return places.astype(np.int64)


class ShortList:
    """The union of the vocabularies of a step's rows, kept as long as they stay the same.

    Attributes:
        columns: sorted token ids of the union.
        ids: the same and one token more, whose column is masked for all: edits of tokens that are not in the list go
            there.
    """

    def __init__(self) -> None:
        self.columns: NDArray[np.int64] = np.zeros(0, np.int64)
        self.ids: NDArray[np.int64] = np.zeros(0, np.int64)
        self._masks: dict[int, NDArray[np.float32]] = {}  # by id of the vocabulary
        self._vocabularies: dict[int, tuple[int, ...]] = {}

    def use(self, vocabularies: Sequence[tuple[int, ...]]) -> None:
        """Takes the vocabularies of the next step's rows."""
        distinct = {id(vocabulary): vocabulary for vocabulary in vocabularies}
        if distinct.keys() == self._vocabularies.keys():
            return
        self._vocabularies = distinct  # which keeps them alive, so that no other gets one of these ids
        arrays = {key: np.array(vocabulary, np.int64) for key, vocabulary in distinct.items()}
        self.columns = np.unique(np.concatenate([np.zeros(0, np.int64), *arrays.values()]))
        self.ids = np.append(self.columns, 0)
        self._masks = {}
        for key, array in arrays.items():
            mask = np.full(len(self.ids), -np.inf, np.float32)
            mask[np.searchsorted(self.columns, array)] = 0
            self._masks[key] = mask

    def masks(self, demands: Sequence[Demand], rows: int) -> NDArray[np.float32]:
        """0 where a row may choose, -inf elsewhere: [rows, ids]; rows beyond the demands may choose nothing."""
        mask = np.full((rows, len(self.ids)), -np.inf, np.float32)
        for place, demand in enumerate(demands):
            mask[place] = self._masks[id(demand.vocabulary)]
        return mask


def _rounded(width: int) -> int:
    """Up to a power of two, so that shapes repeat."""
    return 1 << (width - 1).bit_length() if width else 0
