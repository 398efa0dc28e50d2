"""Who runs when: the waiting queue that all engines share. Pure logic, without threads, clock or ONNX Runtime."""

from collections import deque
from dataclasses import dataclass, field

from server.engine.requests import GenerationRequest, QueueFullError
from server.search.base import Search


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way through the server.

    Attributes:
        arrived: time.monotonic() of its arrival.
        handle: whoever waits for the answer; the scheduler does not look at it.
        cancelled: nobody waits any more. Set from the event loop, read by engines.
        engine: the engine it runs in; None while it waits.
    """

    request: GenerationRequest
    search: Search
    arrived: float
    handle: object = None
    cancelled: bool = False
    engine: int | None = None
    first_token_seen: bool = False

    def expired(self, now: float) -> bool:
        return self.request.deadline is not None and now >= self.request.deadline

    def out_of_time(self, now: float) -> bool:
        return self.request.time_limit is not None and now >= self.request.time_limit


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
    """First come, first served, to whichever engine has room.

    Args:
        engines: that take from this queue.
        queue_size: requests that may wait; one more is refused.
        gather_share: a busy engine encodes newcomers as soon as they want this share of the rows it runs, since an
            encoder run of many costs less for each,
        gather_seconds: or the first has waited this long. An idle engine does not wait.
        encode_tokens: source tokens, padding included, that one encoder run may have; one request always goes.
    """

    def __init__(
        self, engines: int, queue_size: int, gather_share: float, gather_seconds: float, encode_tokens: int
    ) -> None:
        self.queue_size = queue_size
        self._gather_share = gather_share
        self._gather_seconds = gather_seconds
        self._encode_tokens = encode_tokens
        self._waiting: deque[Job] = deque()
        self._waiting_rows = 0
        self._running = [0] * engines  # rows
        self._next_expiry = float("inf")
        self._seconds_per_request = 0.05  # running mean of the time between two requests that finish
        self._last_finish: float | None = None

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Rows in use or in reserve in all engines."""
        return sum(self._running)

    def submit(self, job: Job) -> None:
        """Appends a job to the queue.

        Raises:
            QueueFullError: at once, where the queue is full.
        """
        if len(self._waiting) >= self.queue_size:
            raise QueueFullError(min(5.0, max(0.05, len(self._waiting) * self._seconds_per_request)))
        self._waiting.append(job)
        self._waiting_rows += job.search.rows
        self._note_expiry(job)

    def cancel(self, job: Job) -> bool:
        """Takes a waiting job out of the queue; False where it does not wait (its engine then sees `cancelled`)."""
        job.cancelled = True
        if job.engine is not None or job not in self._waiting:
            return False
        self._waiting.remove(job)
        self._waiting_rows -= job.search.rows
        return True

    def take(self, engine: int, free_rows: int, now: float) -> Admission:
        """Decides which waiting jobs an engine starts now.

        Args:
            engine: the engine that asks; it counts the rows of what it gets as its own until it gives them back.
            free_rows: neither in use nor in reserve there.
            now: time.monotonic().
        """
        admission = Admission()
        if not self._waiting:
            return admission
        if now >= self._next_expiry:
            self._sweep(now, admission)
        if not self._ready(engine, now):
            return admission
        # An even share, so that the first engine to ask does not take all there is while the others have nothing to do;
        # but between busy engines newcomers are not split into groups smaller than worth encoding.
        share = -(-(self.running + self._waiting_rows) // len(self._running)) - self._running[engine]
        if share > 0:
            share = max(share, int(self._gather_share * self._running[engine]))
        room = min(free_rows, max(share, 0))
        longest = 0
        while self._waiting:
            job = self._waiting[0]
            longest = max(longest, len(job.request.source_ids))
            too_much = (len(admission.admitted) + 1) * longest > self._encode_tokens
            # One that is larger than the share must start somewhere.
            wanted = min(room, free_rows) if admission.admitted or share <= 0 else free_rows
            if job.search.rows > wanted or (too_much and admission.admitted):
                break
            room -= job.search.rows
            free_rows -= job.search.rows
            job.engine = engine
            self._running[engine] += job.search.rows
            self._waiting_rows -= job.search.rows
            admission.admitted.append(self._waiting.popleft())
        return admission

    def release(self, engine: int, rows: int, now: float, finished: int = 0) -> None:
        """An engine gives rows back.

        Args:
            finished: requests that were answered with them.
        """
        self._running[engine] -= rows
        if finished:
            if self._last_finish is not None:
                seconds = (now - self._last_finish) / finished
                self._seconds_per_request += 0.05 * (seconds - self._seconds_per_request)
            self._last_finish = now

    def drop_all(self) -> list[Job]:
        """Empties the queue."""
        jobs = list(self._waiting)
        self._waiting.clear()
        self._waiting_rows = 0
        return jobs

    def _ready(self, engine: int, now: float) -> bool:
        if not self._waiting:
            return False
        return (
            self._running[engine] == 0
            or self._waiting_rows >= self._gather_share * self._running[engine]
            or now - self._waiting[0].arrived >= self._gather_seconds
        )

    def _sweep(self, now: float, admission: Admission) -> None:
        kept: deque[Job] = deque()
        self._next_expiry = float("inf")
        for job in self._waiting:
            if job.expired(now):
                admission.expired.append(job)
            elif job.out_of_time(now):
                admission.out_of_time.append(job)
            else:
                kept.append(job)
                self._note_expiry(job)
        self._waiting = kept
        self._waiting_rows = sum(job.search.rows for job in kept)

    def _note_expiry(self, job: Job) -> None:
        for moment in (job.request.deadline, job.request.time_limit):
            if moment is not None and moment < self._next_expiry:
                self._next_expiry = moment
