"""The data that the scheduler decides on: queues, reservations and what an engine may admit."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter

from dragoman_server.engine.job import CallQueue, Job

LOOK_AHEAD = 64  # jobs of a priority that the scheduler looks at to find one that fits the free rows

_VIRTUAL_TIME = attrgetter("virtual_time")


@dataclass(slots=True)
class PriorityQueue:
    """The waiting jobs of one priority: a sub-queue for each batch call, and one that all single calls share.

    Among sub-queues that compete, single calls start every other row, however many batch calls there are; batch calls
    share the remaining rows evenly. A sub-queue that was empty has saved up nothing.

    Attributes:
        weight: Share of the rows that start while the other priority has waiting jobs, relative to its weight.
        virtual_time: Rows started, divided by the weight; the priority with the least starts next.
        singles: Jobs of single calls.
        batches: Batch calls that have waiting jobs.
        waiting: Number of waiting jobs.
    """

    weight: int
    virtual_time: float = 0.0
    singles: CallQueue = field(default_factory=lambda: CallQueue(alike=False))
    batches: dict[CallQueue, None] = field(default_factory=dict)
    waiting: int = 0
    _served: float = 0.0  # virtual time of the sub-queue that was served last, before it was

    def queues(self) -> list[CallQueue]:
        """Returns the sub-queues that have waiting jobs. Safe to call from any thread."""
        batches = list(self.batches)
        return [self.singles, *batches] if self.singles.jobs else batches

    def add(self, job: Job, call: CallQueue | None) -> None:
        """Appends a job to the sub-queue of its batch call, or to that of single calls."""
        queue = call or self.singles
        if not queue.jobs:
            if queue.virtual_time < self._served:
                queue.virtual_time = self._served
            if call is not None:
                call.accepted = True
                self.batches[call] = None
        queue.jobs[job] = None
        queue.tokens += len(job.request.source_ids)
        job.queue = queue
        self.waiting += 1

    def remove(self, job: Job) -> None:
        """Removes a waiting job."""
        queue, job.queue = job.queue, None
        assert queue is not None, "the job does not wait"
        del queue.jobs[job]
        queue.tokens -= len(job.request.source_ids)
        if not queue.jobs and queue is not self.singles:
            del self.batches[queue]
        self.waiting -= 1

    def charge(self, job: Job) -> None:
        """Counts the rows of a waiting job that starts, or for which rows are reserved."""
        rows, queue = job.search.rows, job.queue
        self.virtual_time += rows / self.weight
        if self.batches and queue is not None:
            self._served = queue.virtual_time
            queue.virtual_time += rows / len(self.batches) if queue is self.singles else rows

    def candidates(self) -> Iterable[Job]:
        """Returns the next jobs in the order in which they should start, but no more than LOOK_AHEAD."""
        queues = self.queues()
        return islice(queues[0].jobs if len(queues) == 1 else _interleave(queues), LOOK_AHEAD)

    def has_waited_since(self, moment: float) -> bool:
        """Returns whether a job arrived at or before this time."""
        return any(next(iter(queue.jobs)).arrived <= moment for queue in self.queues())


def _interleave(queues: list[CallQueue]) -> Iterator[Job]:
    """Yields jobs of the sub-queue with the least virtual time, then some of each other sub-queue."""
    depth = -(-LOOK_AHEAD // len(queues))
    first = min(queues, key=_VIRTUAL_TIME)
    yield from islice(first.jobs, depth)
    queues.remove(first)
    for queue in sorted(queues, key=_VIRTUAL_TIME):
        yield from islice(queue.jobs, depth)


@dataclass(slots=True)
class Reservation:
    """Free rows of an engine that are held back for a job that needs more rows than are free.

    Attributes:
        initial: Rows reserved at the start.
        released: Rows that have become free since; every other one is reserved.
    """

    job: Job
    initial: int
    released: int = 0

    @property
    def rows(self) -> int:
        return min(self.job.search.rows, self.initial + (self.released + 1) // 2)


@dataclass(slots=True)
class AdmissionBudget:
    """The rows and source tokens that an engine may still admit before its next step.

    Attributes:
        free: Rows that are neither in use nor reserved.
        share: Rows until the engine has as many as the others.
        batch: Rows of batch jobs, reserved ones included.
        batch_limit: Rows that batch jobs may have.
        tokens: Source tokens that the engine may encode.
    """

    free: int
    share: int
    batch: int
    batch_limit: int
    tokens: int

    def allows(self, rows: int, batch: bool) -> bool:
        """Returns whether a batch job keeps to its rows; one that needs more may run where no other does."""
        return not batch or self.batch == 0 or self.batch + rows <= self.batch_limit
