"""Tracks which job owns which cache row. Pure logic, without ONNX Runtime."""

from collections.abc import Sequence

from dragoman_server.engine.job import Job
from dragoman_server.engine.scheduler import BATCH


class RowTable:
    """The cache rows of one engine and their owners.

    Rows 0 .. used-1 are in use. A job owns one row for each hypothesis of its search; they need not be adjacent. A job
    starts with one row, and the table keeps as many free for it as its search may need.

    Args:
        max_rows: Number of rows.

    Attributes:
        owners: Owner of each row in use.
        rows: Rows of each job, in the order of its search; jobs in the order of their start.
        reserved: Rows in use or kept for running searches.
        reserved_for_batch: Those of batch jobs.
    """

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.owners: list[Job] = []
        self.rows: dict[Job, list[int]] = {}
        self._reserved: dict[Job, int] = {}  # rows kept for jobs that may need more than one
        self.reserved = 0
        self._freed = 0  # since the last call of `settle`
        self.reserved_for_batch = 0

    @property
    def used(self) -> int:
        return len(self.owners)

    def add(self, job: Job) -> int:
        """Adds a job and returns its first row, the next free one."""
        rows = job.search.rows
        if rows > 1:
            self._reserved[job] = rows
        self.reserved += rows
        if job.request.priority is BATCH:
            self.reserved_for_batch += rows
        assert self.reserved <= self.max_rows, "the scheduler admits no more jobs than there are rows for"
        self.rows[job] = []
        return self.grow(job)

    def grow(self, job: Job) -> int:
        """Adds a row to a job and returns it, the next free one."""
        assert len(self.rows[job]) < self._reserved.get(job, 1), "the search needs more rows than it declared"
        row = len(self.owners)
        self.owners.append(job)
        self.rows[job].append(row)
        return row

    def remove(self, jobs: Sequence[Job] = (), rows: Sequence[int] = ()) -> list[tuple[int, int]]:
        """Removes jobs with all their rows, and single rows of other jobs, and fills the holes.

        Returns:
            Moves (from row, to row) to carry out in this order; afterwards the rows in use are the first again.
        """
        for row in rows:
            self.rows[self.owners[row]].remove(row)
        for job in jobs:
            self._release(job, self._reserved.pop(job, 1))
        holes = sorted([*rows, *(row for job in jobs for row in self.rows.pop(job))])
        gone = set(holes)
        moves = []
        for hole in holes:
            while self.owners and len(self.owners) - 1 in gone:
                self.owners.pop()
            last = len(self.owners) - 1
            if hole >= last:
                break
            owner = self.owners.pop()
            self.owners[hole] = owner
            gone.discard(hole)
            owned = self.rows[owner]
            owned[owned.index(last)] = hole
            moves.append((last, hole))
        while self.owners and len(self.owners) - 1 in gone:
            self.owners.pop()
        return moves

    def settle(self) -> int:
        """Releases rows kept for jobs that are gone, or whose searches do not need them any more.

        Returns:
            Number of rows released since the last call.
        """
        for job, reserved in self._reserved.items():
            if reserved > job.search.rows:
                self._reserved[job] = job.search.rows
                self._release(job, reserved - job.search.rows)
        freed, self._freed = self._freed, 0
        return freed

    def _release(self, job: Job, rows: int) -> None:
        self._freed += rows
        self.reserved -= rows
        if job.request.priority is BATCH:
            self.reserved_for_batch -= rows
