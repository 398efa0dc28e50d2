"""Decides which waiting job starts in which engine. Pure logic, without threads, clock or ONNX Runtime."""

from dataclasses import dataclass
from itertools import islice

from dragoman_server.core.errors import QueueBound, QueueFullError
from dragoman_server.core.requests import GenerationRequest, Priority
from dragoman_server.engine.batch_share import BatchShare
from dragoman_server.engine.job import NEVER, Admission, CallQueue, Job
from dragoman_server.engine.priority_queue import LOOK_AHEAD, AdmissionBudget, PriorityQueue, Reservation

# While jobs of both priorities wait, they start rows in this ratio.
INTERACTIVE_WEIGHT, BATCH_WEIGHT = 4, 1
BATCH = Priority.BATCH  # a module constant, since looking up an enum member is slow

# Measured with a model of 5 million parameters on two cores. With up to eight batch items, one engine has 10 % more
# throughput than two, at three quarters of the CPU time. With single calls, which cost the event loop a third of what
# they cost the engines, one engine has 10 % more throughput at 16 and 32 calls, and no less at 64; with random arrivals
# at two thirds of the capacity its latency is a third lower. With 77 million parameters, whose steps take ten times as
# long, two engines have more throughput from the second request on.
MIN_ROWS_PER_ENGINE, MIN_SINGLE_ROWS_PER_ENGINE = 8, 48


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """How jobs wait and start.

    Attributes:
        queue_size: Single calls of each priority that may wait.
        queue_tokens: Source tokens of each priority's waiting single calls; one call may exceed this if
            nothing else waits.
        gather_share: Share of its running rows that a busy engine waits for before it encodes new jobs, since
            encoding many jobs in one run costs less per job. An idle engine does not wait.
        gather_seconds, gather_steps: Once a job has waited this long and the engine has made this many steps, it
            encodes whatever waits.
        encode_tokens: Source tokens that an engine encodes between two steps; one job always starts.
        min_source_tokens: Minimum source tokens counted per job: the length to which a device pads it.
        min_rows_per_engine: Rows that each other engine runs before the last one helps. Where there is an engine for
            each core, the last one takes the core of the event loop, and one step of few rows costs
            less than two smaller ones. With 1 all engines share the work from the start.
        min_single_rows_per_engine: The same while only interactive jobs of one row wait, whose calls the event loop
            has to handle one by one.
        batch_slowdown: Times as long as without batch jobs that an engine's turns may take beside interactive jobs.
        turn_rows: Rows that cost as much as a turn does without any.
        min_free_share: Share of its rows that a busy engine waits to be free before it encodes new jobs: where jobs
            never run out, encoding many of them in one run costs less than empty rows do.
    """

    queue_size: int = 1024
    queue_tokens: int = 262_144
    gather_share: float = 0.5
    gather_seconds: float = 0.005
    gather_steps: int = 2
    encode_tokens: int = 4096
    min_source_tokens: int = 0
    min_rows_per_engine: int = MIN_ROWS_PER_ENGINE
    min_single_rows_per_engine: int = MIN_SINGLE_ROWS_PER_ENGINE
    batch_slowdown: float = 3.5
    turn_rows: int = 4
    min_free_share: float = 0.0


class Scheduler:
    """Assigns waiting jobs to engines with free rows.

    Jobs wait in two queues, one for each priority. While both have jobs, interactive ones get four of every five rows
    that start; a queue accumulates no credit while it is empty. Inside a queue each batch call has a sub-queue, see
    PriorityQueue, and jobs of a sub-queue start in the order of their arrival. A single call that finds its queue full
    is refused; a batch call is refused only if its first job finds the queue full. The jobs of batch calls take no
    room from single calls.

    A job that needs more rows than are free is not overtaken for long, and does not hold up others: an engine reserves
    every other row that becomes free until there are enough, and smaller jobs behind it get the rest. BatchShare bounds
    the rows of batch jobs.

    Args:
        engines: Number of engines that share the queue.

    Attributes:
        active: Indices of the engines that run.
        waiting: Number of waiting jobs.
        next_expiry: Time before which no waiting job's deadline or time limit passes.
    """

    def __init__(self, engines: int, options: SchedulerOptions) -> None:
        self._options = options
        self._queues = PriorityQueue(INTERACTIVE_WEIGHT), PriorityQueue(BATCH_WEIGHT)
        self._interactive, self._batch = self._queues
        self._virtual_time = 0.0  # of the queue that was served last, before it was
        self._batch_share = BatchShare(engines, options.batch_slowdown, options.turn_rows)
        self._running = [0] * engines  # rows in use and kept for running searches, by engine
        self._deferrals = [0] * engines  # turns in a row in which the engine took none of too few waiting jobs
        self.active = set(range(engines))
        self._reservations: list[Reservation | None] = [None] * engines
        self._reserved = 0  # reservations there are
        self.waiting = 0
        self._waiting_rows = 0
        self.next_expiry = NEVER
        self._seconds_per_request = 0.05  # running mean of the time between two requests that finish
        self._last_finish: float | None = None

    def backlog(self) -> tuple[int, int]:
        """Returns the number of waiting jobs and their source tokens. Safe to call from any thread."""
        return self.waiting, sum(queue.tokens for both in self._queues for queue in both.queues())

    def batch_limits(self) -> dict[int, int]:
        """Returns how many rows batch jobs may have, by engine. Safe to call from any thread."""
        return dict(self._batch_share.limits)

    @property
    def running(self) -> int:
        """Rows of all engines that are in use or kept for running searches."""
        return sum(self._running)

    def has_work_for(self, engine: int) -> bool:
        """Returns whether an engine should start jobs; the last one should not while the others cope.

        Busy engines come before idle ones, and among themselves in their order, so the last of them finishes what it
        runs and rests when there is less to do.
        """
        running = self._running
        return self._needs_engine_after(sum(map(bool, running[:engine] if running[engine] else running)))

    def should_wake_engine(self, awake: int) -> bool:
        """Returns whether a sleeping engine should start jobs.

        Args:
            awake: Number of engines that are busy or about to look for work.
        """
        return self._needs_engine_after(awake)

    def submit(self, job: Job, call: CallQueue | None = None) -> None:
        """Appends a job to the queue of its priority.

        Args:
            call: The sub-queue of its batch call, None for a single call.

        Raises:
            QueueFullError: The queue is full, and no job of this batch call has been accepted before.
        """
        request = job.request
        queue = self._batch if request.priority is BATCH else self._interactive
        if queue is self._interactive:
            self._batch_share.arrived(job.arrived)
        singles = queue.singles
        if singles.jobs and not (call and call.accepted):
            if len(singles.jobs) >= self._options.queue_size:
                raise self._refusal("requests")
            if singles.tokens + len(request.source_ids) > self._options.queue_tokens:
                raise self._refusal("tokens")
        if not queue.waiting:
            queue.virtual_time = max(queue.virtual_time, self._virtual_time)
        queue.add(job, call)
        self.waiting += 1
        self._waiting_rows += job.search.rows
        self._note_expiry(request)

    def cancel(self, job: Job) -> bool:
        """Removes a waiting job; returns False if it does not wait (its engine then sees `cancelled`)."""
        job.cancelled = True
        if job.queue is None:
            return False
        self._remove(job)
        return True

    def sweep(self, now: float) -> Admission:
        """Removes jobs whose deadline or time limit has passed; admits none."""
        admission = Admission()
        if now < self.next_expiry:
            return admission
        self.next_expiry = NEVER
        for queue in self._queues:
            for jobs in queue.queues():
                self._sweep(jobs, now, admission)
        for job in (*admission.expired, *admission.out_of_time):
            self._remove(job)
        return admission

    def take(self, engine: int, free_rows: int, now: float, batch_rows: int = 0) -> Admission:
        """Decides which waiting jobs an engine starts now.

        Args:
            engine: Index of the engine; the rows of admitted jobs count as its own until it releases them.
            free_rows: Rows of the engine that are neither in use nor kept for running searches.
            now: time.monotonic().
            batch_rows: Rows of the engine that are in use by, or kept for, batch jobs.
        """
        admission = self.sweep(now)
        self._batch_share.turn(engine, self._running[engine] - batch_rows, now)
        if not self.waiting:
            self._deferrals[engine] = 0
        if not (free_rows and self.has_work_for(engine) and self._gathered(engine, free_rows, now)):
            return admission
        self._deferrals[engine] = 0
        budget = self._budget(engine, free_rows, batch_rows, now)
        if self._reserved:
            self._start_reserved(engine, free_rows, budget, admission.admitted)
        queues = [queue for queue in self._queues if queue.waiting]
        competing = queues.copy()
        while queues:
            queue = queues[0] if len(queues) == 1 or queues[0].virtual_time <= queues[1].virtual_time else queues[1]
            may_reserve = len(competing) == 1 or all(queue.virtual_time <= other.virtual_time for other in competing)
            job = self._next(queue, engine, budget, not admission.admitted, may_reserve)
            if job is None:
                queues.remove(queue)
                if queue is self._batch and budget.free and budget.batch >= budget.batch_limit:
                    # Batch jobs do not save up rows that they may not have.
                    queue.virtual_time = max(queue.virtual_time, self._virtual_time)
                    competing.remove(queue)
                continue
            if admission.admitted and self._tokens(job) > budget.tokens:
                break
            self._virtual_time = queue.virtual_time
            queue.charge(job)
            self._start(job, engine, budget, admission.admitted)
            if not queue.waiting:
                queues.remove(queue)
                competing.remove(queue)
        return admission

    def release(self, engine: int, rows: int, now: float, finished: int = 0) -> None:
        """Takes back rows of an engine.

        Args:
            finished: Number of requests that were answered with them.
        """
        self._running[engine] -= rows
        reservation = self._reservations[engine]
        if reservation is not None:
            reservation.released += rows
        if finished:
            if self._last_finish is not None:
                seconds = (now - self._last_finish) / finished
                self._seconds_per_request += 0.05 * (seconds - self._seconds_per_request)
            self._last_finish = now

    def remove_engine(self, engine: int) -> list[Job]:
        """Takes back all rows of an engine that has ended.

        Returns:
            The waiting jobs if it was the last engine; they leave the queue.
        """
        self.active.discard(engine)
        self._running[engine] = 0
        if self._reservations[engine] is not None:
            self._reservations[engine] = None
            self._reserved -= 1
        if self.active:
            return []
        jobs = [job for both in self._queues for queue in both.queues() for job in queue.jobs]
        for job in jobs:
            self._remove(job)
        return jobs

    def add_engine(self, engine: int) -> None:
        """Marks an engine that had ended as active again."""
        self.active.add(engine)

    def _needs_engine_after(self, busy: int) -> bool:
        """Returns whether the waiting jobs need one more engine.

        Args:
            busy: Number of engines that come before it.
        """
        return self.waiting > 0 and (busy < len(self.active) - 1 or self._exceeds(self._rows_per_engine() * busy))

    def _rows_per_engine(self) -> int:
        """Returns the rows that each other engine has before the last one helps."""
        single_rows = not self._batch.waiting and self._waiting_rows == self.waiting
        return self._options.min_single_rows_per_engine if single_rows else self._options.min_rows_per_engine

    def _exceeds(self, rows: int) -> bool:
        return self.running + self._waiting_rows > rows

    def _gathered(self, engine: int, free_rows: int, now: float) -> bool:
        """Returns whether enough jobs wait to be encoded, or one has waited long enough."""
        running, options = self._running[engine], self._options
        if running and free_rows < options.min_free_share * (free_rows + running):
            return False
        if running == 0 or self._waiting_rows >= options.gather_share * running:
            return True
        self._deferrals[engine] += 1
        if self._deferrals[engine] <= options.gather_steps:
            return False
        moment = now - options.gather_seconds
        return self._interactive.has_waited_since(moment) or self._batch.has_waited_since(moment)

    def _budget(self, engine: int, free_rows: int, batch_rows: int, now: float) -> AdmissionBudget:
        running, options = self._running[engine], self._options
        # An even share keeps the first engine that looks from taking everything while the others have nothing to do.
        # Between busy engines new jobs are not split into groups too small to be worth encoding.
        others = len(self.active) - 1
        sharing = others if others and not self._exceeds(self._rows_per_engine() * others) else others + 1
        share = -(-(self.running + self._waiting_rows) // sharing) - running
        if share > 0:
            share = max(share, int(options.gather_share * running))
        waiting = self._interactive.waiting
        batch_limit = self._batch_share.limit(engine, free_rows + running, self._running, waiting, now)
        return AdmissionBudget(free_rows, share, batch_rows, batch_limit, options.encode_tokens)

    def _start_reserved(self, engine: int, free_rows: int, budget: AdmissionBudget, admitted: list[Job]) -> None:
        """Starts jobs with a reservation here or elsewhere; subtracts this engine's reservation from the budget."""
        own = self._reservations[engine]
        if own is not None:
            rows, reserved = own.job.search.rows, own.rows
            batch = own.job.request.priority is BATCH
            if batch and rows <= budget.batch_limit:
                reserved = min(reserved, max(budget.batch_limit - budget.batch, 0))
            if rows <= free_rows and (reserved == rows or budget.allows(rows, batch)):
                self._start(own.job, engine, budget, admitted)
            else:
                budget.free -= reserved
                budget.batch += reserved if batch else 0
        for reservation in self._reservations:
            if reservation is not None and reservation is not own and budget.share > 0:
                job, batch = reservation.job, reservation.job.request.priority is BATCH
                fits = job.search.rows <= budget.free and budget.allows(job.search.rows, batch)
                if fits and not (admitted and self._tokens(job) > budget.tokens):
                    self._start(job, engine, budget, admitted)

    def _next(
        self, queue: PriorityQueue, engine: int, budget: AdmissionBudget, is_first: bool, may_reserve: bool
    ) -> Job | None:
        """Returns the job of a queue that an engine should start next, None if none fits.

        Args:
            is_first: Whether it is the first to start now: it may exceed the engine's share, to start at all.
            may_reserve: Whether rows may be reserved for a job that needs more than are free.
        """
        if budget.share <= 0:
            return None
        batch = queue is self._batch
        for job in queue.candidates() if queue.batches else islice(queue.singles.jobs, LOOK_AHEAD):
            if self._reserved and self._has_reservation(job):
                continue
            rows = job.search.rows
            if rows <= budget.free and budget.allows(rows, batch):
                return job if is_first or rows <= budget.share else None
            if rows == 1:  # nothing is smaller
                break
            if may_reserve and self._reservations[engine] is None:
                self._virtual_time = queue.virtual_time
                queue.charge(job)
                self._reserve(job, engine, budget, batch)
        return None

    def _reserve(self, job: Job, engine: int, budget: AdmissionBudget, batch: bool) -> None:
        """Starts a reservation with half of the free rows."""
        free = min(budget.free, max(budget.batch_limit - budget.batch, 0)) if batch else budget.free
        reservation = self._reservations[engine] = Reservation(job, min(job.search.rows, (free + 1) // 2))
        self._reserved += 1
        budget.free -= reservation.rows
        if batch:
            budget.batch += reservation.rows

    def _tokens(self, job: Job) -> int:
        return max(len(job.request.source_ids), self._options.min_source_tokens)

    def _has_reservation(self, job: Job) -> bool:
        return any(reservation is not None and reservation.job is job for reservation in self._reservations)

    def _start(self, job: Job, engine: int, budget: AdmissionBudget, admitted: list[Job]) -> None:
        rows = job.search.rows
        self._remove(job)
        self._running[engine] += rows
        budget.free -= rows
        budget.share -= rows
        budget.tokens -= self._tokens(job)
        if job.request.priority is BATCH:
            budget.batch += rows
        admitted.append(job)

    def _remove(self, job: Job) -> None:
        """Takes a job out of its queue and gives up its reservation."""
        queue = self._batch if job.request.priority is BATCH else self._interactive
        queue.remove(job)
        self.waiting -= 1
        self._waiting_rows -= job.search.rows
        if self._reserved:
            for engine, reservation in enumerate(self._reservations):
                if reservation is not None and reservation.job is job:
                    self._reservations[engine] = None
                    self._reserved -= 1

    def _refusal(self, bound: QueueBound) -> QueueFullError:
        return QueueFullError(min(5.0, max(0.05, self.waiting * self._seconds_per_request)), bound)

    def _sweep(self, queue: CallQueue, now: float, admission: Admission) -> None:
        """Notes which jobs of a sub-queue have waited too long."""
        for job in queue.jobs:
            if job.expired(now):
                admission.expired.append(job)
            elif job.out_of_time(now):
                admission.out_of_time.append(job)
            else:
                self._note_expiry(job.request)
                if queue.alike:
                    break

    def _note_expiry(self, request: GenerationRequest) -> None:
        deadline, time_limit = request.deadline, request.time_limit
        if deadline is not None and deadline < self.next_expiry:
            self.next_expiry = deadline
        if time_limit is not None and time_limit < self.next_expiry:
            self.next_expiry = time_limit
