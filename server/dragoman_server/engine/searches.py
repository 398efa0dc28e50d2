"""The running searches of an engine: those that advance together, and those that advance by themselves."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.requests import BeamProgress, FinishReason, Progress
from dragoman_server.core.search import BEST_TOKEN, Continuation, StepRequest, StepResult
from dragoman_server.decoding.beam import BeamSearch
from dragoman_server.decoding.beam_rows import BeamMoves, BeamRows
from dragoman_server.decoding.greedy import GreedyRows, GreedySearch
from dragoman_server.engine.job import Job
from dragoman_server.engine.rows import RowTable


@dataclass(slots=True)
class Advance:
    """What follows from a step.

    Attributes:
        done: Jobs whose searches are over.
        progress: What streaming jobs deliver.
        branching: Jobs of stepwise searches whose hypotheses go on in other rows, and how.
        beams: What is to be done for the beam searches that advance together.
    """

    done: list[Job] = field(default_factory=list)
    progress: list[tuple[Job, Progress | BeamProgress]] = field(default_factory=list)
    branching: list[tuple[Job, Sequence[Continuation]]] = field(default_factory=list)
    beams: BeamMoves | None = None


class RunningSearches:
    """The searches of the jobs in a row table.

    Args:
        table: The jobs' rows.
    """

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._greedy = GreedyRows(table.max_rows)
        self._beams = BeamRows()
        self._stepwise: dict[Job, list[int]] = {}  # rows of jobs whose searches advance by themselves
        # The step request of each row; a stepwise search has new ones in every step.
        self._requests: list[StepRequest] = [BEST_TOKEN] * table.max_rows

    def add(self, job: Job, row: int) -> None:
        """Adds a job with its only row."""
        if isinstance(job.search, GreedySearch) and not job.request.streaming:
            self._greedy.add(row, job.search)
            self._requests[row] = job.search.step_request
        elif not self._add_beam(job, row):
            self._stepwise[job] = self._table.rows[job]

    def step_requests(self) -> list[StepRequest]:
        """Returns the step request of each row in use."""
        requests = self._requests[: self._table.used]
        for job, owned in self._stepwise.items():
            for row, request in zip(owned, job.search.step_requests(), strict=True):
                requests[row] = request
        return requests

    def need_more(self, result: StepResult) -> bool:
        """Returns whether the step must be repeated, with its new step requests."""
        # Every search is asked: `needs_more` prepares its next step requests.
        needs_more = [job.search.needs_more(result, owned) for job, owned in self._stepwise.items()]
        return any(needs_more)

    def advance(self, result: StepResult, tokens: NDArray[np.int64], positions: NDArray[np.int32]) -> Advance:
        """Chooses the next tokens of all searches.

        Args:
            tokens: Decoder inputs of the next step, [rows in use, 1]; written for hypotheses that go on in their row.
            positions: Positions of this step's decoder inputs, [rows in use].
        """
        table, found = self._table, Advance()
        found.done = [table.owners[row] for row in self._greedy.advance(result, positions, tokens)]
        found.beams = self._beams.advance(result, lambda row: table.grow(table.owners[row]))
        if found.beams:
            found.done += [table.owners[row] for row in found.beams.over]
            for row, request in found.beams.requests:
                self._requests[row] = request
        prefixed: list[Job] = []  # beam searches that have their whole prefix now
        for job, owned in self._stepwise.items():
            continuations = job.search.advance(result, owned)
            if job.request.streaming and not job.cancelled:
                found.progress += [(job, progress) for progress in job.search.progress()]
            if continuations is None:
                found.done.append(job)
            elif len(owned) == len(continuations) == 1:
                tokens[owned[0], 0] = continuations[0].token
                if self._add_beam(job, owned[0]):
                    prefixed.append(job)
            else:
                found.branching.append((job, continuations))
        for job in prefixed:
            del self._stepwise[job]
        return found

    def stop(self, job: Job, reason: FinishReason, position: int) -> None:
        """Ends the search of a job from outside; it is not removed.

        Args:
            position: Position of the next decoder input of its first row.
        """
        search = job.search
        if isinstance(search, BeamSearch) and search in self._beams:
            self._beams.stop(search, reason)
        elif job not in self._stepwise:
            self._greedy.update_search(self._table.rows[job][0], position)
        search.stop(reason)

    def remove(self, jobs: Sequence[Job]) -> None:
        """Removes the searches of jobs that still have their rows."""
        for job in jobs:
            rows = self._table.rows[job]
            for row in rows:
                self._requests[row] = BEST_TOKEN
            if self._stepwise.pop(job, None) is None:
                if isinstance(job.search, BeamSearch):
                    self._beams.remove(job.search)
                else:
                    self._greedy.remove(*rows)

    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Follows moves (from row, to row) of the cache."""
        requests = self._requests
        for source, target in moves:
            requests[source], requests[target] = BEST_TOKEN, requests[source]
        self._greedy.move(moves)
        self._beams.move(dict(moves))

    def _add_beam(self, job: Job, row: int) -> bool:
        """Adds a job to the beam searches that advance together, if its search can."""
        search = job.search
        if job.request.streaming or not (isinstance(search, BeamSearch) and search.is_plain):
            return False
        self._beams.add(row, search)
        self._requests[row] = search.request_at(0)
        return True
