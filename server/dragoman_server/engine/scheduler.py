"""Who runs when: the waiting queue that all engines share. Pure logic, without threads, clock or ONNX Runtime."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from dragoman_server.core.errors import QueueBound, QueueFullError
from dragoman_server.core.requests import GenerationRequest, Priority
from dragoman_server.engine.job import NEVER, Job
from dragoman_server.engine.priority_queue import Hold, Lane, Room, within

# Rows that start while requests of both priorities wait: so many of the one for so many of the other.
INTERACTIVE_SHARE, BATCH_SHARE = 4, 1
BATCH = Priority.BATCH  # which takes an enumeration long to look up
BATCH_RESERVE = 8  # one row of so many is not for batch requests
OVERTAKEN = 64  # jobs of a priority that one may overtake where they want more rows than there are


@dataclass(slots=True)
class Admission:
    """What an engine shall do before its next step.

    Attributes:
        admitted: encode these.
        expired: the deadline passed while they waited.
        out_of_time: their time limit passed while they waited: they are answered with nothing generated.
    """

    admitted: list[Job] = field(default_factory=list)
    expired: list[Job] = field(default_factory=list)
    out_of_time: list[Job] = field(default_factory=list)


class Scheduler:
    """Gives waiting jobs to whichever engine has room.

    Jobs of two priorities wait, in two lanes. While both have some, interactive ones get four of every five rows that
    start, and batch ones the fifth; a lane that was empty has saved up nothing. Within a lane those that came first
    start first. One that wants more rows than are free is neither passed over for long nor does it hold up others:
    where its turn has come, an engine sets aside every other row that becomes free, until there are enough, and the
    rest goes to smaller ones behind it. Batch jobs leave an eighth of an engine's rows free, for interactive ones that
    come while long batch jobs run.

    Args:
        engines: that take from this queue.
        queue_size: requests of each priority that may wait; one more is refused.
        gather_share: a busy engine encodes newcomers as soon as they want this share of the rows it runs, since an
            encoder run of many costs less for each,
        gather_seconds: or the first has waited this long. An idle engine does not wait.
        encode_tokens: source tokens that an engine encodes between two steps; one request always goes.
        queue_tokens: source tokens of each priority that may wait; a single request may have more.
        least_length: source tokens that a request counts for in `encode_tokens` at least; what a device pads it to.
        group: rows that each of the others has before the last engine helps. Where there is an engine for each core,
            the last takes that of the event loop; and few rows cost less in one step than in two. With 1 all engines
            share what there is from the start.
        calls: the same as long as nothing waits but interactive requests of one row, whose calls the event loop has
            to handle one by one.
        gather_steps: that a busy engine makes at least before it takes fewer than `gather_share`, however long they
            take.
    """

    def __init__(
        self,
        engines: int,
        queue_size: int,
        gather_share: float,
        gather_seconds: float,
        encode_tokens: int,
        queue_tokens: int = 2**62,
        least_length: int = 0,
        group: int = 1,
        calls: int = 1,
        gather_steps: int = 0,
    ) -> None:
        self.queue_size = queue_size
        self.queue_tokens = queue_tokens
        self._gather_share = gather_share
        self._gather_seconds = gather_seconds
        self._encode_tokens = encode_tokens
        self._least_length = least_length
        self._group, self._calls = group, calls
        self._gather_steps = gather_steps
        self._interactive, self._batch = self._lanes = Lane(INTERACTIVE_SHARE), Lane(BATCH_SHARE)
        self._turn = 0.0  # of the lane that was served last, before it was
        self._running = [0] * engines  # rows
        self._passed = [0] * engines  # times in a row that it took none of those that wait, too few as yet
        self.present = set(range(engines))  # engines that run
        self._holds: list[Hold | None] = [None] * engines
        self._held = 0  # holds there are
        self.waiting = 0  # requests
        self._waiting_rows = 0
        self.next_expiry = NEVER  # no waiting job's deadline or time limit is earlier
        self._seconds_per_request = 0.05  # running mean of the time between two requests that finish
        self._last_finish: float | None = None

    def waits(self) -> tuple[int, int]:
        """Requests that wait, and source tokens of theirs."""
        return self.waiting, sum(lane.tokens for lane in self._lanes)

    @property
    def running(self) -> int:
        """Rows in use or in reserve in all engines."""
        return sum(self._running)

    def calls(self, engine: int) -> bool:
        """Whether there is something for this engine to start: not for the last, where the others do without it.

        Busy engines come before idle ones, and among themselves in their order; so the last of them ends what it has,
        and rests, when there is less to do.
        """
        return self._calls_after(_busy(self._running[:engine] if self._running[engine] else self._running))

    def calls_another(self, awake: int) -> bool:
        """The same, for an engine that sleeps.

        Args:
            awake: engines that do not, be they busy, or about to look whether there is anything for them.
        """
        return self._calls_after(awake)

    def submit(self, job: Job) -> None:
        """Appends a job to its lane.

        Raises:
            QueueFullError: at once, where that is full.
        """
        request = job.request
        lane, tokens = self._lane(request), len(request.source_ids)
        if not lane.jobs:
            lane.turn = max(lane.turn, self._turn)
        elif len(lane.jobs) >= self.queue_size:
            raise self._refusal("requests")
        elif lane.tokens + tokens > self.queue_tokens:
            raise self._refusal("tokens")
        rows = job.search.rows
        lane.jobs[job] = None
        lane.tokens += tokens
        self.waiting += 1
        self._waiting_rows += rows
        self._note_expiry(request)

    def cancel(self, job: Job) -> bool:
        """Takes a waiting job out of the queue; False where it does not wait (its engine then sees `cancelled`)."""
        job.cancelled = True
        if job.engine is not None or job not in self._lane(job.request).jobs:
            return False
        self._remove(job)
        return True

    def sweep(self, now: float) -> Admission:
        """Takes out what has waited too long; nothing is admitted."""
        admission = Admission()
        if now < self.next_expiry:
            return admission
        self.next_expiry = NEVER
        for lane in self._lanes:
            for job in list(lane.jobs):
                if job.expired(now):
                    admission.expired.append(job)
                elif job.out_of_time(now):
                    admission.out_of_time.append(job)
                else:
                    self._note_expiry(job.request)
        for job in (*admission.expired, *admission.out_of_time):
            self._remove(job)
        return admission

    def take(self, engine: int, free_rows: int, now: float, batch_rows: int = 0) -> Admission:
        """Decides which waiting jobs an engine starts now.

        Args:
            engine: the engine that asks; it counts the rows of what it gets as its own until it gives them back.
            free_rows: neither in use nor in reserve there.
            now: time.monotonic().
            batch_rows: in use or in reserve there, of batch jobs.
        """
        admission = self.sweep(now)
        if not self.waiting:
            self._passed[engine] = 0
        if not (free_rows and self.calls(engine) and self._ready(engine, now)):
            return admission
        self._passed[engine] = 0
        room = self._room(engine, free_rows, batch_rows)
        if self._held:
            self._start_held(engine, free_rows, room, admission.admitted)
        lanes = [lane for lane in self._lanes if lane.jobs]
        competing = lanes.copy()
        while lanes:
            lane = lanes[0] if len(lanes) == 1 or lanes[0].turn <= lanes[1].turn else lanes[1]
            in_turn = len(competing) == 1 or all(lane.turn <= other.turn for other in competing)
            job = self._next(lane, engine, room, not admission.admitted, in_turn)
            if job is None:
                lanes.remove(lane)
                if lane is self._batch and room.free and room.batch >= room.batch_limit:
                    lane.turn = max(lane.turn, self._turn)  # what it may not have it does not save up
                    competing.remove(lane)
                continue
            if admission.admitted and self._tokens(job) > room.tokens:
                break
            self._charge(lane, job.search.rows)
            self._start(job, engine, room, admission.admitted)
            if not lane.jobs:
                lanes.remove(lane)
                competing.remove(lane)
        return admission

    def release(self, engine: int, rows: int, now: float, finished: int = 0) -> None:
        """An engine gives rows back.

        Args:
            finished: requests that were answered with them.
        """
        self._running[engine] -= rows
        hold = self._holds[engine]
        if hold is not None:
            hold.released += rows
        if finished:
            if self._last_finish is not None:
                seconds = (now - self._last_finish) / finished
                self._seconds_per_request += 0.05 * (seconds - self._seconds_per_request)
            self._last_finish = now

    def leave(self, engine: int) -> list[Job]:
        """An engine has ended, and gives back all that it had.

        Returns:
            those that waited, where it was the last: they do so no more.
        """
        self.present.discard(engine)
        self._running[engine] = 0
        if self._holds[engine] is not None:
            self._holds[engine] = None
            self._held -= 1
        return [] if self.present else self._drop_all()

    def enter(self, engine: int) -> None:
        """An engine that had left is there again."""
        self.present.add(engine)

    def _calls_after(self, busy: int) -> bool:
        """Args:
        busy: engines that come before.
        """
        return self.waiting > 0 and (busy < len(self.present) - 1 or self._is_more_than(self._alone() * busy))

    def _alone(self) -> int:
        """Rows that each of the others has before the last engine helps with what waits."""
        return self._group if self._batch.jobs or self._waiting_rows > self.waiting else self._calls

    def _is_more_than(self, rows: int) -> bool:
        return self.running + self._waiting_rows > rows

    def _drop_all(self) -> list[Job]:
        jobs = [job for lane in self._lanes for job in lane.jobs]
        for job in jobs:
            self._remove(job)
        return jobs

    def _ready(self, engine: int, now: float) -> bool:
        """Whether there is enough to encode, or it has waited long enough."""
        running = self._running[engine]
        if running == 0 or self._waiting_rows >= self._gather_share * running:
            return True
        self._passed[engine] += 1
        if self._passed[engine] <= self._gather_steps:
            return False
        latest = now - self._gather_seconds
        return any(lane.jobs and next(iter(lane.jobs)).arrived <= latest for lane in self._lanes)

    def _room(self, engine: int, free_rows: int, batch_rows: int) -> Room:
        running = self._running[engine]
        # An even share, so that the first engine to ask does not take all there is while the others have nothing to do;
        # but between busy engines newcomers are not split into groups smaller than worth encoding.
        others = len(self.present) - 1
        sharing = others if others and not self._is_more_than(self._alone() * others) else others + 1
        share = -(-(self.running + self._waiting_rows) // sharing) - running
        if share > 0:
            share = max(share, int(self._gather_share * running))
        max_rows = free_rows + running
        return Room(free_rows, share, batch_rows, max_rows - max_rows // BATCH_RESERVE, self._encode_tokens)

    def _start_held(self, engine: int, free_rows: int, room: Room, admitted: list[Job]) -> None:
        """Starts jobs for which rows were set aside, here or at another engine; else counts what is set aside here."""
        own = self._holds[engine]
        if own is not None:
            rows, aside = own.job.search.rows, own.rows
            batch = own.job.request.priority is BATCH
            if batch and rows <= room.batch_limit:
                aside = min(aside, max(room.batch_limit - room.batch, 0))
            if rows <= free_rows and (aside == rows or within(rows, room, batch)):
                self._start(own.job, engine, room, admitted)
            else:
                room.free -= aside
                room.batch += aside if batch else 0
        for hold in self._holds:
            if hold is not None and hold is not own and room.share > 0:
                job, batch = hold.job, hold.job.request.priority is BATCH
                fits = job.search.rows <= room.free and within(job.search.rows, room, batch)
                if fits and not (admitted and self._tokens(job) > room.tokens):
                    self._start(job, engine, room, admitted)

    def _next(self, lane: Lane, engine: int, room: Room, first: bool, in_turn: bool) -> Job | None:
        """The job of a lane that an engine shall start next, None for none.

        Args:
            first: nothing starts before it: then it may be larger than the engine's share, for it must start somewhere.
            in_turn: rows may be set aside for one that wants more than there are.
        """
        if room.share <= 0:
            return None
        batch = lane is self._batch
        for job in islice(lane.jobs, OVERTAKEN):
            if self._held and self._is_held(job):
                continue
            rows = job.search.rows
            if rows <= room.free and within(rows, room, batch):
                return job if first or rows <= room.share else None
            if rows == 1:  # nothing is smaller
                break
            if in_turn and self._holds[engine] is None:
                self._charge(lane, rows)
                self._set_aside(job, engine, room, batch)
        return None

    def _set_aside(self, job: Job, engine: int, room: Room, batch: bool) -> None:
        """Begins to set rows aside, with half of those that are free."""
        free = min(room.free, max(room.batch_limit - room.batch, 0)) if batch else room.free
        hold = self._holds[engine] = Hold(job, min(job.search.rows, (free + 1) // 2))
        self._held += 1
        room.free -= hold.rows
        if batch:
            room.batch += hold.rows

    def _lane(self, request: GenerationRequest) -> Lane:
        return self._batch if request.priority is BATCH else self._interactive

    def _tokens(self, job: Job) -> int:
        return max(len(job.request.source_ids), self._least_length)

    def _is_held(self, job: Job) -> bool:
        return any(hold is not None and hold.job is job for hold in self._holds)

    def _charge(self, lane: Lane, rows: int) -> None:
        self._turn = lane.turn
        lane.turn += rows / lane.weight

    def _start(self, job: Job, engine: int, room: Room, admitted: list[Job]) -> None:
        rows = job.search.rows
        self._remove(job)
        job.engine = engine
        self._running[engine] += rows
        room.free -= rows
        room.share -= rows
        room.tokens -= self._tokens(job)
        if job.request.priority is BATCH:
            room.batch += rows
        admitted.append(job)

    def _remove(self, job: Job) -> None:
        """Takes a job out of its lane, and gives back what is set aside for it."""
        lane, rows = self._lane(job.request), job.search.rows
        del lane.jobs[job]
        lane.tokens -= len(job.request.source_ids)
        self.waiting -= 1
        self._waiting_rows -= rows
        if self._held:
            for engine, hold in enumerate(self._holds):
                if hold is not None and hold.job is job:
                    self._holds[engine] = None
                    self._held -= 1

    def _refusal(self, bound: QueueBound) -> QueueFullError:
        return QueueFullError(min(5.0, max(0.05, self.waiting * self._seconds_per_request)), bound)

    def _note_expiry(self, request: GenerationRequest) -> None:
        for moment in (request.deadline, request.time_limit):
            if moment is not None and moment < self.next_expiry:
                self.next_expiry = moment


def _busy(rows: Sequence[int]) -> int:
    return sum(map(bool, rows))
