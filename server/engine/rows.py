"""Which job owns which cache row. Pure logic, without ONNX Runtime."""

from server.engine.scheduler import Job


class RowTable:
    """Rows 0 .. used-1 are in use. A job owns as many as its search has hypotheses; those need not be neighbours.

    Args:
        slots: rows there are.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.owners: list[Job] = []  # by row
        self.rows: dict[Job, list[int]] = {}  # in the order of their start

    @property
    def used(self) -> int:
        return len(self.owners)

    @property
    def free(self) -> int:
        return self.slots - len(self.owners)

    def add(self, job: Job) -> list[int]:
        """Gives a job the next free rows."""
        first = len(self.owners)
        assert job.search.rows <= self.free, "the scheduler admits no more than there is room for"
        self.owners.extend([job] * job.search.rows)
        self.rows[job] = rows = list(range(first, first + job.search.rows))
        return rows

    def remove(self, jobs: list[Job]) -> list[tuple[int, int]]:
        """Takes jobs out and closes the holes.

        Returns:
            moves (from row, to row) to carry out in this order; afterwards the rows in use are the first again.
        """
        holes = sorted(row for job in jobs for row in self.rows.pop(job))
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
            rows = self.rows[owner]
            rows[rows.index(last)] = hole
            moves.append((last, hole))
        while self.owners and len(self.owners) - 1 in gone:
            self.owners.pop()
        return moves
