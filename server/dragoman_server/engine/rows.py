"""Which job owns which cache row. Pure logic, without ONNX Runtime."""

from collections.abc import Sequence

from dragoman_server.engine.job import Job
from dragoman_server.engine.scheduler import BATCH


class RowTable:
    """Rows 0 .. used-1 are in use. A job owns as many as its search has hypotheses; those need not be neighbours.

    A job starts with one row and has as many in reserve as its search may want.

    Args:
        max_rows: rows there are.
    """

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.owners: list[Job] = []  # by row
        self.rows: dict[Job, list[int]] = {}  # in the order of their start; its rows in the order of its search
        self._reserved: dict[Job, int] = {}  # rows of those jobs that may want more than one
        self.reserved = 0  # rows in use, and those that jobs may come to use
        self._freed = 0  # given back since `settle` was last called
        self.reserved_for_batch = 0  # those of them that belong to batch jobs

    @property
    def used(self) -> int:
        return len(self.owners)

    def add(self, job: Job) -> int:
        """Gives a job its first row, the next free one."""
        rows = job.search.rows
        if rows > 1:
            self._reserved[job] = rows
        self.reserved += rows
        if job.request.priority is BATCH:
            self.reserved_for_batch += rows
        assert self.reserved <= self.max_rows, "the scheduler admits no more than there is room for"
        self.rows[job] = []
        return self.grow(job)

    def grow(self, job: Job) -> int:
        """Gives a job one more row, the next free one."""
        assert len(self.rows[job]) < self._reserved.get(job, 1), "the search wants more rows than it said"
        row = len(self.owners)
        self.owners.append(job)
        self.rows[job].append(row)
        return row

    def remove(self, jobs: Sequence[Job] = (), rows: Sequence[int] = ()) -> list[tuple[int, int]]:
        """Takes out jobs with all their rows, and single rows of others, and closes the holes.

        Returns:
            moves (from row, to row) to carry out in this order; afterwards the rows in use are the first again.
        """
        for row in rows:
            self.rows[self.owners[row]].remove(row)
        for job in jobs:
            self._give_back(job, self._reserved.pop(job, 1))
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
        """Gives back what was in reserve for jobs that are gone, or whose searches do not want it any more.

        Returns:
            how many rows that is.
        """
        for job, reserved in self._reserved.items():
            if reserved > job.search.rows:
                self._reserved[job] = job.search.rows
                self._give_back(job, reserved - job.search.rows)
        freed, self._freed = self._freed, 0
        return freed

    def _give_back(self, job: Job, rows: int) -> None:
        self._freed += rows
        self.reserved -= rows
        if job.request.priority is BATCH:
            self.reserved_for_batch -= rows
