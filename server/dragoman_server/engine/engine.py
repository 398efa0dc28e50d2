"""An engine: a thread that owns a runtime and steps everything that runs in it."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from dragoman_server.core.engine_metrics import EngineMetrics
from dragoman_server.core.errors import DeadlineExpiredError, EngineError, EngineUnavailableError, OutOfMemoryError
from dragoman_server.core.requests import FinishReason
from dragoman_server.core.search import StepRequest, StepResult
from dragoman_server.engine.encoder_batches import encoder_runs
from dragoman_server.engine.job import NEVER, Event, Job, end_overdue, finish
from dragoman_server.engine.rows import RowTable
from dragoman_server.engine.searches import Advance, RunningSearches
from dragoman_server.engine.shared_queue import SharedQueue
from dragoman_server.runtime.device import WorkerLostError, first_line, is_out_of_memory

log = structlog.get_logger()

Deliver = Callable[[list[tuple[Job, Event]]], None]

LAST_WORDS = b'{"event": "an engine could not report its end: the server ends at once", "level": "error"}\n'
MAX_ERRORS = 3


class StepRuntime(Protocol):
    """The methods of dragoman_server.runtime.runtime.Runtime that an engine needs."""

    max_rows: int
    tokens: NDArray[np.int64]
    positions: NDArray[np.int32]

    @property
    def cache_bytes(self) -> int: ...

    def encode(self, sources: Sequence[Sequence[int]], row: int) -> int: ...

    def step(self, step_requests: Sequence[StepRequest]) -> StepResult: ...

    def copy_target(self, source: int, target: int, start: int) -> None: ...

    def move_row(self, source: int, target: int) -> None: ...


class Engine:
    """The step loop: admit jobs, step, deliver tokens, release rows.

    A device error ends the running jobs, and the engine continues with those that follow; `max_errors` in a row end the
    engine. If the device runs out of memory, the engine ends only as many jobs as it takes for the others to continue.

    Args:
        index: Index among the engines of the queue.
        runtime: Runtime that only this thread uses.
        queue: Queue that all engines and the event loop share.
        deliver: Delivers the events of one step, all at once; must not block.
        on_failure: Called in the engine's thread with the error that ended it.
        max_errors: Number of device errors in a row that end the engine.

    Attributes:
        has_stepped: Whether the engine has made a step.
        turns: Number of turns begun; together with `busy` it shows whether a turn takes too long.
        busy: Whether a turn is under way.
    """

    def __init__(
        self,
        index: int,
        runtime: StepRuntime,
        queue: SharedQueue,
        metrics: EngineMetrics,
        deliver: Deliver,
        on_failure: Callable[[BaseException], None],
        max_errors: int = MAX_ERRORS,
    ) -> None:
        self.index = index
        self._runtime = runtime
        self._queue = queue
        self._metrics = metrics
        self._deliver = deliver
        self._table = RowTable(runtime.max_rows)
        self._searches = RunningSearches(self._table)
        self._new: list[Job] = []  # jobs that have not made a step
        self._next_expiry = NEVER  # before that no running job's deadline or time limit passes
        self._step_ended: float | None = None
        self._on_failure = on_failure
        self._max_errors = max_errors
        self._errors = 0  # in a row
        self._stop_requested = False
        self.has_stepped = False
        self.turns = 0
        self.busy = False
        self._thread = threading.Thread(target=self._run, name=f"engine-{index}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float | None = None) -> None:
        self._thread.join(seconds)

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def request_stop(self) -> None:
        """Ends the engine, even if it is idle, since its runtime is gone."""
        with self._queue.lock:
            self._stop_requested = True
            self._queue.wake_all()

    def _run(self) -> None:
        failure: Exception | None = None
        message = "the server is stopping"
        try:
            while self._turn():
                pass
            if self._stop_requested:
                failure = WorkerLostError("the worker process has ended")
        except Exception as error:  # ONNX Runtime raises many types; the jobs must end in any case
            failure = error
        if failure is not None:
            message = _message(failure)
        self.busy = False
        try:
            self.fail_all(message)
            if failure is not None:
                self._on_failure(failure)
        except BaseException:
            # Out of memory even for that: better no server than one that accepts requests and never answers.
            os.write(2, LAST_WORDS)
            os._exit(1)

    def _turn(self) -> bool:
        """Runs one round of the loop; returns False if the engine should stop."""
        table, queue = self._table, self._queue
        scheduler = queue.scheduler
        events: list[tuple[Job, Event]] = []
        with queue.lock:
            while not (queue.stopping or self._stop_requested or table.used or scheduler.has_work_for(self.index)):
                self._metrics.state(self.index, 0, table.max_rows)
                self._step_ended = None
                self.busy = False
                queue.sleep()
            if queue.stopping or self._stop_requested:
                return False
            self.turns += 1
            self.busy = True
            now = time.monotonic()
            admission = scheduler.take(self.index, table.max_rows - table.reserved, now, table.reserved_for_batch)
        if admission.expired or admission.out_of_time:
            events += end_overdue(admission, now, self._metrics)
        try:
            self._evict(now, events)
            if admission.admitted:
                self._admit(admission.admitted, now, events)
            self._metrics.state(self.index, table.used, table.max_rows)
            if table.used:
                self._step(events)
        except WorkerLostError:
            raise
        except Exception as error:
            self._errors += 1
            self._metrics.device_error("other")
            log.error("engine error", error=type(error).__name__, detail=first_line(error), in_a_row=self._errors)
            if self._errors >= self._max_errors:
                raise
            # All jobs end even if memory ran out elsewhere than on the device: the state of the step is unknown.
            failure = OutOfMemoryError() if is_out_of_memory(error) else EngineUnavailableError(_message(error))
            self._fail(list(table.rows), failure, now, events)
        finally:  # jobs that are finished get their result even if the runtime fails the others
            if events:
                self._deliver(events)
        return True

    def _admit(self, jobs: list[Job], now: float, events: list[tuple[Job, Event]]) -> None:
        """Encodes new jobs into the next free rows, one each."""
        row = self._table.used
        runs = encoder_runs(jobs)
        for run in runs:
            for job in run:  # before the first run, so that a failure ends all of them
                self._metrics.admitted(now - job.arrived)
                self._add(job)
        failed: list[Job] = []
        for run in runs:
            failed += self._encode(run, row)
            row += len(run)
        if failed:
            self._fail(failed, OutOfMemoryError(), now, events)

    def _add(self, job: Job) -> None:
        """Adds a job with its first row."""
        self._searches.add(job, self._table.add(job))
        self._new.append(job)
        self._note_expiry(job)

    def _note_expiry(self, job: Job) -> None:
        for moment in (job.request.deadline, job.request.time_limit):
            if moment is not None and moment < self._next_expiry:
                self._next_expiry = moment

    def _encode(self, run: list[Job], row: int) -> list[Job]:
        """Encodes jobs in one run, or in several smaller ones if the device runs out of memory.

        Returns:
            Jobs for which there is not enough memory even alone.
        """
        sources = [job.request.source_ids for job in run]
        started = time.monotonic()
        try:
            padding = self._runtime.encode(sources, row)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._out_of_memory(error, len(run))
            half = len(run) // 2
            return [*self._encode(run[:half], row), *self._encode(run[half:], row + half)] if half else run
        ended = time.monotonic()
        self._metrics.encoded(ended - started, len(sources), sum(map(len, sources)), padding)
        for job in run:
            if job.request.stages is not None:
                job.request.stages.encoding, job.request.stages.encoded = started, ended
        return []

    def _step(self, events: list[tuple[Job, Event]]) -> None:
        """Runs one decode step for all rows, and advances every job."""
        table, rows = self._table, self._table.used
        try:
            scores = self._score(rows)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            # No search has advanced yet, so the older half can repeat the step.
            self._out_of_memory(error, rows)
            self._fail(list(table.rows)[len(table.rows) // 2 :], OutOfMemoryError(), time.monotonic(), events)
            return
        self._errors, self.has_stepped = 0, True
        now = time.monotonic()
        for job in self._new:
            self._metrics.first_token(now - job.arrived)
        self._new.clear()
        positions = self._runtime.positions[:rows]
        advance = self._searches.advance(scores, self._runtime.tokens[:rows], positions)
        positions += 1
        events += advance.progress
        done = advance.done
        for job in done:
            if job.cancelled:
                self._metrics.dropped("cancelled", "running")
            else:
                events.append((job, finish(job, now, self._metrics)))
        surplus = self._branch(advance) if advance.branching or advance.beams else []
        if done or surplus:
            self._remove(done, now, len(done), surplus)
        else:  # a search that goes on in its only row may need fewer rows than were kept for it
            self._settle(now)

    def _score(self, rows: int) -> StepResult:
        """Steps until every search has enough candidates."""
        started = time.perf_counter()
        while True:
            scores = self._runtime.step(self._searches.step_requests())
            if not self._searches.need_more(scores):
                break
        ended = time.perf_counter()
        gap = None if self._step_ended is None else ended - self._step_ended
        self._metrics.stepped(ended - started, rows, gap)
        self._step_ended = ended
        return scores

    def _branch(self, advance: Advance) -> list[int]:
        """Copies hypotheses to the rows where they continue.

        Returns:
            Rows that are not needed any more.
        """
        runtime, table = self._runtime, self._table
        started = time.perf_counter()
        surplus: list[int] = []
        copied = 0
        for job, continuations in advance.branching:
            owned = table.rows[job]
            before = list(owned)
            for place, (parent, token, shared) in enumerate(continuations):
                if place >= len(before):
                    row = table.grow(job)
                    runtime.move_row(before[parent], row)
                    copied += 1
                else:
                    row = before[place]
                    if parent != place:
                        runtime.copy_target(before[parent], row, shared)
                        copied += 1
                runtime.tokens[row, 0] = token
            surplus += before[len(continuations) :]
        if (moves := advance.beams) is not None:
            for source, target in moves.moves:
                runtime.move_row(source, target)
            for source, target, shared in moves.copies:
                runtime.copy_target(source, target, shared)
            for row, token in zip(moves.rows, moves.tokens, strict=True):
                runtime.tokens[row, 0] = token
            copied += len(moves.moves) + len(moves.copies)
        self._metrics.branched(time.perf_counter() - started, copied)
        return surplus

    def _evict(self, now: float, events: list[tuple[Job, Event]]) -> None:
        """Removes jobs that are cancelled, expired or out of time."""
        rows = self._table.rows
        if now < self._next_expiry and not any(job.cancelled for job in rows):
            return
        self._next_expiry = NEVER
        gone: list[Job] = []
        for job in rows:
            if job.cancelled:
                self._metrics.dropped("cancelled", "running")
            elif job.expired(now):
                self._metrics.dropped("expired", "running")
                events.append((job, DeadlineExpiredError()))
            elif job.out_of_time(now):
                self._searches.stop(job, FinishReason.TIME_LIMIT, int(self._runtime.positions[rows[job][0]]))
                events.append((job, finish(job, now, self._metrics)))
            else:
                self._note_expiry(job)
                continue
            gone.append(job)
        if gone:
            self._remove(gone, now)

    def _remove(self, jobs: list[Job], now: float, finished: int = 0, rows: Sequence[int] = ()) -> None:
        """Removes jobs, and single rows of other jobs."""
        table = self._table
        self._searches.remove(jobs)
        if self._new:
            self._new = [job for job in self._new if job not in jobs]
        moves = table.remove(jobs, rows)
        if moves:
            self._searches.move(moves)
        for source, target in moves:
            self._runtime.move_row(source, target)
        self._settle(now, finished)

    def _settle(self, now: float, finished: int = 0) -> None:
        """Releases the rows that are not needed any more."""
        if freed := self._table.settle():
            with self._queue.lock:
                self._queue.scheduler.release(self.index, freed, now, finished)

    def _out_of_memory(self, error: Exception, rows: int) -> None:
        self._metrics.device_error("out_of_memory")
        log.error("out of memory", engine=self.index, rows=rows, detail=first_line(error))

    def _fail(self, jobs: list[Job], error: EngineError, now: float, events: list[tuple[Job, Event]]) -> None:
        """Ends running jobs with an error."""
        for job in jobs:
            self._metrics.dropped("failed", "running")
            events.append((job, error))
        self._remove(jobs, now)

    def fail_all(self, message: str) -> None:
        """Ends all running jobs with an error, and all waiting ones if this is the last engine.

        Called in the engine's thread as it ends, or in another one if the engine hangs.
        """
        running = list(self._table.rows)
        with self._queue.lock:
            waiting = self._queue.scheduler.remove_engine(self.index)
            self._queue.wake_all()  # the others have more to do now
        for _ in running:
            self._metrics.dropped("failed", "running")
        for _ in waiting:
            self._metrics.dropped("failed", "waiting")
        self._metrics.state(self.index, 0, 0)
        self._deliver([(job, EngineUnavailableError(message)) for job in running + waiting])


def _message(error: Exception) -> str:
    if isinstance(error, WorkerLostError):
        return "the worker process that computed this has ended"
    return f"the engine failed: {type(error).__name__}"
