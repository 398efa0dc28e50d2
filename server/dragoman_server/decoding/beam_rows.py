"""The plain beam searches of an engine, which advance together. The answers are those of beam.py."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from dragoman_server.core.requests import FinishReason
from dragoman_server.core.search import StepRequest, StepResult
from dragoman_server.decoding.beam import BeamSearch
from dragoman_server.decoding.running_beam import RunningBeam


class BeamMoves(NamedTuple):
    """What an engine does after a step.

    Attributes:
        over: A row of each search that is over.
        moves: Whole rows to copy: from row, to row.
        copies: Target positions to copy: from row, to row, leading positions that they have in common.
        rows, tokens: Rows, and the tokens with which they go on.
        requests: Rows with another step request from now on, and that request.
    """

    over: list[int]
    moves: list[tuple[int, int]]
    copies: list[tuple[int, int, int]]
    rows: list[int]
    tokens: list[int]
    requests: list[tuple[int, StepRequest]]


class BeamRows:
    """Plain beam searches, each of which has one row until its first step and one for each hypothesis from then on."""

    def __init__(self) -> None:
        self._running: dict[BeamSearch, RunningBeam] = {}

    def __contains__(self, search: object) -> bool:
        return search in self._running

    def add(self, row: int, search: BeamSearch) -> None:
        """Adds a search with its only row."""
        self._running[search] = RunningBeam.of(search, row)

    def remove(self, search: BeamSearch) -> None:
        """Removes a search; one that is over is removed already."""
        self._running.pop(search, None)

    def move(self, moves: Mapping[int, int]) -> None:
        """Follows moves of the cache, from row to row."""
        for beam in self._running.values():
            beam.rows = [moves.get(row, row) for row in beam.rows]

    def stop(self, search: BeamSearch, reason: FinishReason) -> None:
        """Gives a search the answer that it has now: what has finished, then what runs. It is not removed."""
        beam = self._running[search]
        search.set_answer(beam.answer(len(beam.steps), reason))

    def advance(self, result: StepResult, grow: Callable[[int], int]) -> BeamMoves | None:
        """Chooses the next tokens of all searches. Those that are over get their answers, and are removed.

        Args:
            result: Result of the step.
            grow: Gives the search that owns a row another row, and returns that.

        Returns:
            None if there are no searches.
        """
        if not self._running:
            return None
        found = BeamMoves([], [], [], [], [], [])
        over: list[BeamSearch] = []
        for search, beam in self._running.items():
            if beam.advance(result):
                found.over.append(beam.rows[0])
                over.append(search)
                continue
            if len(beam.steps) == 1:
                row = beam.rows[0]
                beam.rows[1:] = [grow(row) for _ in beam.rows[1:]]
                found.moves.extend((row, target) for target in beam.rows[1:])
            else:
                found.copies.extend(beam.assign_rows())
            if (request := beam.new_request()) is not None:
                found.requests.extend((row, request) for row in beam.rows)
            found.rows.extend(beam.rows)
            found.tokens.extend(beam.next_tokens())
        for search in over:
            del self._running[search]
        return found
