"""An engine: a thread that owns a runtime and steps everything that runs in it."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from server.engine.metrics import EngineMetrics
from server.engine.requests import (
    DeadlineExpiredError,
    EngineUnavailableError,
    Finished,
    FinishReason,
    Progress,
)
from server.engine.rows import RowTable
from server.engine.scheduler import Job, Scheduler

Event = Progress | Finished | DeadlineExpiredError | EngineUnavailableError
Deliver = Callable[[list[tuple[Job, Event]]], None]


class StepRuntime(Protocol):
    """What an engine needs of server.runtime.model.Runtime."""

    slots: int
    tokens: NDArray[np.int64]
    positions: NDArray[np.int32]

    def encode(self, sources: Sequence[Sequence[int]], row: int) -> int: ...

    def step(self, rows: int, candidates: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]: ...

    def move_row(self, source: int, target: int) -> None: ...


class Queue:
    """The scheduler with the lock and the condition that let engine threads and the event loop share it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.changed = threading.Condition(threading.Lock())
        self.stopping = False


class Engine:
    """The step loop: admit, step, hand out tokens, give rows back.

    Args:
        index: among the engines of one queue.
        runtime: touched by this thread alone.
        queue: shared with the other engines and the event loop.
        deliver: takes one step's events, all at once, to whoever waits for them; must not block.
        on_failure: hears of the error that ended the engine.
    """

    def __init__(
        self,
        index: int,
        runtime: StepRuntime,
        queue: Queue,
        metrics: EngineMetrics,
        deliver: Deliver,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._index = index
        self._runtime = runtime
        self._queue = queue
        self._metrics = metrics
        self._deliver = deliver
        self._table = RowTable(runtime.slots)
        self._step_ended: float | None = None
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name=f"engine-{index}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float | None = None) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:  # whatever ONNX Runtime raises: those who wait must hear of it
            self._fail(f"the engine failed: {type(error).__name__}")
            self._on_failure(error)
        else:
            self._fail("the server is stopping")

    def _turn(self) -> bool:
        """One round of the loop; False when the engine shall stop."""
        table, queue = self._table, self._queue
        events: list[tuple[Job, Event]] = []
        with queue.changed:
            while not (queue.stopping or table.used or queue.scheduler.waiting):
                self._metrics.state(self._index, 0, 0, table.slots)
                self._step_ended = None
                queue.changed.wait()
            if queue.stopping:
                return False
            now = time.monotonic()
            admission = queue.scheduler.take(self._index, table.free, now)
            waiting = queue.scheduler.waiting
        for job in admission.expired:
            self._metrics.dropped("expired", "waiting")
            events.append((job, DeadlineExpiredError()))
        for job in admission.out_of_time:
            job.search.stop(FinishReason.TIME_LIMIT)
            events.append((job, self._finish(job, now)))
        try:
            self._evict(now, events)
            if admission.admitted:
                self._admit(admission.admitted, now)
            self._metrics.state(self._index, waiting, table.used, table.slots)
            if table.used:
                self._step(events)
        finally:  # those who have their answer get it even where the runtime fails the others
            if events:
                self._deliver(events)
        return True

    def _admit(self, jobs: list[Job], now: float) -> None:
        """Encodes newcomers into the next free rows."""
        first = self._table.used
        sources: list[list[int]] = []
        for job in jobs:
            self._metrics.admitted(now - job.arrived)
            sources += [job.request.source_ids] * len(self._table.add(job))
        started = time.perf_counter()
        padding = self._runtime.encode(sources, first)
        tokens = sum(map(len, sources))
        self._metrics.encoded(time.perf_counter() - started, len(sources), tokens, padding)

    def _step(self, events: list[tuple[Job, Event]]) -> None:
        """One decode step for all rows, and what follows from it for each job."""
        table, runtime = self._table, self._runtime
        rows = table.used
        candidates = max(job.search.candidates for job in table.rows)
        started = time.perf_counter()
        step_ids, step_log_probabilities = runtime.step(rows, candidates)
        ended = time.perf_counter()
        gap = None if self._step_ended is None else ended - self._step_ended
        self._metrics.stepped(ended - started, rows, gap)
        self._step_ended = ended

        now = time.monotonic()
        ids, log_probabilities = step_ids.tolist(), step_log_probabilities.tolist()
        next_tokens: list[int] = [0] * rows
        done: list[Job] = []
        for job, owned in table.rows.items():
            tokens = job.search.advance([ids[r] for r in owned], [log_probabilities[r] for r in owned])
            if not job.first_token_seen:
                job.first_token_seen = True
                self._metrics.first_token(now - job.arrived)
            if tokens is None:
                done.append(job)
                if job.cancelled:
                    self._metrics.dropped("cancelled", "running")
                    continue
                if job.request.streaming and (progress := job.search.progress()):
                    events.append((job, progress))
                events.append((job, self._finish(job, now)))
                continue
            for row, token in zip(owned, tokens, strict=True):
                next_tokens[row] = token
            if job.request.streaming and (progress := job.search.progress()):
                events.append((job, progress))
        runtime.tokens[:rows, 0] = next_tokens
        runtime.positions[:rows] += 1
        self._remove(done, now, finished=len(done))

    def _evict(self, now: float, events: list[tuple[Job, Event]]) -> None:
        """Takes out what nobody waits for any more, and what has used its time."""
        gone: list[Job] = []
        for job in self._table.rows:
            if job.cancelled:
                self._metrics.dropped("cancelled", "running")
            elif job.expired(now):
                self._metrics.dropped("expired", "running")
                events.append((job, DeadlineExpiredError()))
            elif job.out_of_time(now):
                job.search.stop(FinishReason.TIME_LIMIT)
                events.append((job, self._finish(job, now)))
            else:
                continue
            gone.append(job)
        self._remove(gone, now)

    def _remove(self, jobs: list[Job], now: float, finished: int = 0) -> None:
        if not jobs:
            return
        before = self._table.used
        for source, target in self._table.remove(jobs):
            self._runtime.move_row(source, target)
        with self._queue.changed:
            self._queue.scheduler.release(self._index, before - self._table.used, now, finished)

    def _finish(self, job: Job, now: float) -> Finished:
        hypotheses = job.search.hypotheses()
        target_tokens = sum(len(h.ids) for h in hypotheses)
        self._metrics.finished(hypotheses[0].reason, len(job.request.source_ids), target_tokens, now - job.arrived)
        return Finished(hypotheses)

    def _fail(self, message: str) -> None:
        """Ends all that runs here with an error, and all that waits where nobody else would take it."""
        running = list(self._table.rows)
        with self._queue.changed:
            self._queue.stopping = True
            self._queue.changed.notify_all()
            waiting = self._queue.scheduler.drop_all()
        for _ in running:
            self._metrics.dropped("failed", "running")
        for _ in waiting:
            self._metrics.dropped("failed", "waiting")
        self._deliver([(job, EngineUnavailableError(message)) for job in running + waiting])
