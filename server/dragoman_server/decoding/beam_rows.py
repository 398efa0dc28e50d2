"""The beam searches of an engine that advance together, with the rows that they have."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.requests import FinishReason
from dragoman_server.core.search import StepResult
from dragoman_server.decoding.beam import BeamSearch
from dragoman_server.decoding.beam_arrays import BeamArrays, BeamMoves


class BeamRows:
    """Beam searches in arrays, one set of arrays for each beam size."""

    def __init__(self) -> None:
        self._arrays: dict[int, BeamArrays] = {}  # by beam size
        self._running: dict[BeamSearch, BeamArrays] = {}

    def __contains__(self, search: object) -> bool:
        return search in self._running

    def count(self, width: int) -> int:
        """Returns the number of searches of a beam size."""
        arrays = self._arrays.get(width)
        return 0 if arrays is None else len(arrays)

    def add(self, row: int, search: BeamSearch) -> None:
        """Adds a search that fits arrays, with its only row."""
        width = search.plan.beam.beam_size
        arrays = self._arrays.get(width)
        if arrays is None:
            arrays = self._arrays[width] = BeamArrays(width, search.plan.end)
        arrays.add(row, search)
        self._running[search] = arrays

    def remove(self, search: BeamSearch) -> None:
        """Removes a search; one that is over is removed already."""
        arrays = self._running.pop(search, None)
        if arrays is not None:
            arrays.remove(search)
            self._drop(arrays)

    def move(self, places: NDArray[np.int64]) -> None:
        """Follows moves of the cache: `places` is the new row of each row."""
        for arrays in self._arrays.values():
            arrays.move(places)

    def advance(self, result: StepResult, grow: Callable[[int], int]) -> list[BeamMoves]:
        """Chooses the next tokens of every search. Those that are over get their answers, and are removed.

        Args:
            result: Result of the step.
            grow: Gives the search that owns a row another row, and returns that.
        """
        moves: list[BeamMoves] = []
        for arrays in list(self._arrays.values()):
            moves.append(arrays.advance(result, grow))
            for _, search in moves[-1].over:
                del self._running[search]
            self._drop(arrays)
        return moves

    def stop(self, search: BeamSearch, reason: FinishReason) -> None:
        """Gives a search the answer that it has now."""
        self._running[search].stop(search, reason)

    def _drop(self, arrays: BeamArrays) -> None:
        if not len(arrays):
            del self._arrays[arrays.width]
