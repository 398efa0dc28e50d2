"""Scores given targets in a thread of its own, beside the engines, several in one run."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from dragoman_server.bundle.manifest import Shape
from dragoman_server.core.engine_metrics import DeviceErrorKind
from dragoman_server.core.errors import (
    DeadlineExpiredError,
    EngineError,
    EngineUnavailableError,
    OutOfMemoryError,
    QueueFullError,
)
from dragoman_server.runtime.device import WorkerLostError, first_line, is_out_of_memory
from dragoman_server.runtime.scorer_session import TargetScores

log = structlog.get_logger()

# Elements, of 4 bytes, that the largest arrays of one run may have, padding included; one target always runs.
MAX_RUN_ELEMENTS = 2**24
CLOSE_SECONDS = 3.0  # time for the last run to end


class ScorerRuntime(Protocol):
    """The methods of dragoman_server.runtime.scorer_session.ScorerSession that a scorer needs."""

    def run(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], attention: bool
    ) -> TargetScores: ...


class ScorerMetrics(Protocol):
    """Receives measurements from the scorer's thread."""

    def queue(self, backlog: Callable[[], tuple[int, int]]) -> None:
        """Registers what returns the number of waiting targets and their source tokens, in any thread."""

    def device_error(self, kind: DeviceErrorKind) -> None:
        """Counts a run that failed on the device."""

    def scored(self, seconds: float, rows: int, target_tokens: int) -> None:
        """Counts a run; tokens without padding, end tokens included."""


def row_elements(shape: Shape, source: int, target: int) -> int:
    """Returns the elements of one row's largest arrays: logits and attention of the target, hidden layer of the source.

    Args:
        source, target: Lengths to which the row is padded, end tokens included.
    """
    attention = shape.decoder_layers * shape.heads * source
    return target * (shape.target_vocabulary + attention) + source * shape.d_ff


@dataclass(frozen=True, slots=True)
class Target:
    """A target to score.

    Attributes:
        source_ids: Source ids, the end token included.
        ids: Target ids, without begin and end token; at most the model's limit.
        alignment: Whether to return the alignment.
        attention: Whether to return the attention.
    """

    source_ids: Sequence[int]
    ids: Sequence[int]
    alignment: bool = False
    attention: bool = False


@dataclass(frozen=True, slots=True)
class ScoredTarget:
    """The scores of a target. There is an entry for each of its tokens; the last one is of the end token.

    Attributes:
        log_probabilities: Natural log-probabilities.
        alignment: See `align`.
        attention: [layers, heads, target, source], float32.
    """

    log_probabilities: list[float]
    alignment: list[int] | None = None
    attention: NDArray[np.float32] | None = None


@dataclass(slots=True, eq=False)
class _Job:
    target: Target
    deadline: float | None
    result: "asyncio.Future[ScoredTarget]"

    def expired(self, now: float) -> bool:
        return self.deadline is not None and now >= self.deadline


_Event = ScoredTarget | EngineError


class Scorer:
    """The scorer thread and its queue. `score` and `close` belong to one event loop.

    The thread starts and loads the graph with the first target, so a server that never scores needs no memory for it.
    An error ends the thread and all waiting targets; the next target starts another thread.

    Args:
        load: Loads the graph; called in the thread.
        shape: Shape of the model.
        queue_size: Number of targets that may wait. A call with more is accepted if nothing waits.
    """

    def __init__(
        self, load: Callable[[], ScorerRuntime], shape: Shape, queue_size: int, metrics: ScorerMetrics
    ) -> None:
        self._load = load
        self._shape = shape
        self._queue_size = queue_size
        self._metrics = metrics
        self._changed = threading.Condition(threading.Lock())
        self._singles: deque[_Job] = deque()  # waiting jobs that count against queue_size
        self._items: deque[_Job] = deque()  # waiting jobs that do not, since they may wait
        self._item_is_next = False  # where both wait
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._seconds_per_target = 0.01  # running mean
        metrics.queue(self.backlog)

    def backlog(self) -> tuple[int, int]:
        """Returns the number of waiting targets and their source tokens."""
        with self._changed:
            waiting = [*self._singles, *self._items]
        return len(waiting), sum(len(job.target.source_ids) for job in waiting)

    async def score(
        self, targets: Sequence[Target], deadline: float | None, may_wait: bool = False
    ) -> list[ScoredTarget]:
        """Scores targets, in order.

        Args:
            deadline: time.monotonic() after which the call fails, None for no deadline.
            may_wait: Whether to wait where the queue is full. Targets that may wait and those that may not take turns,
                so neither starve.

        Raises:
            QueueFullError: The queue has no room for all of them, and they may not wait.
            DeadlineExpiredError: The deadline passed first, even if a run is under way.
            EngineUnavailableError: The scorer is stopping or has failed.
        """
        self._loop = asyncio.get_running_loop()
        jobs = [_Job(target, deadline, self._loop.create_future()) for target in targets]
        self._submit(jobs, may_wait)
        try:
            async with asyncio.timeout(None if deadline is None else max(deadline - time.monotonic(), 0.0)):
                return await asyncio.gather(*(job.result for job in jobs))
        except TimeoutError:
            self._cancel(jobs)
            raise DeadlineExpiredError from None
        except BaseException:  # the caller was cancelled, or a target has failed
            self._cancel(jobs)
            raise

    async def close(self) -> None:
        """Ends the thread; targets without a score fail with EngineUnavailableError."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            await asyncio.to_thread(thread.join, CLOSE_SECONDS)

    def _submit(self, jobs: list[_Job], may_wait: bool) -> None:
        with self._changed:
            if self._stopping:
                raise EngineUnavailableError("the model is stopping")
            waiting = len(self._singles)
            if not may_wait and waiting and waiting + len(jobs) > self._queue_size:
                raise QueueFullError(min(5.0, max(0.05, waiting * self._seconds_per_target)))
            (self._items if may_wait else self._singles).extend(jobs)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="scorer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _cancel(self, jobs: list[_Job]) -> None:
        """Removes targets whose caller has left or failed."""
        for job in jobs:
            job.result.cancel()
        gone = set(jobs)
        with self._changed:
            self._singles = deque(job for job in self._singles if job not in gone)
            self._items = deque(job for job in self._items if job not in gone)

    def _run(self) -> None:
        batch: list[_Job] = []
        failure = "the server is stopping"
        try:
            runtime = self._load()
            while batch := self._take():
                try:
                    events = self._events(runtime, batch)
                except WorkerLostError:  # perhaps long ago; another worker can do it, and scoring twice does no harm
                    runtime = self._load()
                    events = self._events(runtime, batch)
                self._deliver(events)
        except Exception as error:  # ONNX Runtime raises many types; the callers must not wait for ever
            failure = f"the scorer failed: {type(error).__name__}"
            if not isinstance(error, WorkerLostError):
                self._metrics.device_error("other")
            log.error("scorer failed", error=type(error).__name__, detail=first_line(error))
        with self._changed:
            self._thread = None
            for queue in (self._singles, self._items):
                batch += queue
                queue.clear()
        self._deliver([(job, EngineUnavailableError(failure)) for job in batch])

    def _take(self) -> list[_Job]:
        """Waits for targets and returns those of the next run, or none if the thread should end."""
        expired: list[_Job] = []
        batch: list[_Job] = []
        while not batch:
            with self._changed:
                while not (self._stopping or self._singles or self._items):
                    self._changed.wait()
                if self._stopping:
                    break
                self._fill(batch, expired)
            if expired:
                self._deliver([(job, DeadlineExpiredError()) for job in expired])
                expired = []
        return batch

    def _fill(self, batch: list[_Job], expired: list[_Job]) -> None:
        """Moves waiting jobs to `batch` until a run is full, and those that have expired to `expired`."""
        now = time.monotonic()
        source = target = 0
        while self._singles or self._items:
            queue = self._items if self._items and (self._item_is_next or not self._singles) else self._singles
            job = queue[0]
            if job.expired(now):
                expired.append(queue.popleft())
                continue
            source, target = max(source, len(job.target.source_ids)), max(target, len(job.target.ids) + 1)
            if batch and (len(batch) + 1) * row_elements(self._shape, source, target) > MAX_RUN_ELEMENTS:
                break
            batch.append(queue.popleft())
            self._item_is_next = queue is self._singles

    def _events(self, runtime: ScorerRuntime, batch: list[_Job]) -> list[tuple[_Job, _Event]]:
        """Scores targets in one run, or in several smaller ones if the device runs out of memory."""
        try:
            return list(zip(batch, self._score(runtime, batch), strict=True))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._metrics.device_error("out_of_memory")
            log.error("out of memory", scorer_rows=len(batch), detail=first_line(error))
            half = len(batch) // 2
            if not half:
                return [(job, OutOfMemoryError()) for job in batch]
        return [*self._events(runtime, batch[:half]), *self._events(runtime, batch[half:])]

    def _score(self, runtime: ScorerRuntime, batch: list[_Job]) -> list[ScoredTarget]:
        targets = [job.target for job in batch]
        with_attention = any(target.alignment or target.attention for target in targets)
        started = time.perf_counter()
        sources, ids = [target.source_ids for target in targets], [target.ids for target in targets]
        log_probabilities, attention = runtime.run(sources, ids, with_attention)
        seconds = time.perf_counter() - started
        self._metrics.scored(seconds, len(targets), sum(len(target.ids) + 1 for target in targets))
        self._seconds_per_target += 0.1 * (seconds / len(targets) - self._seconds_per_target)
        return [
            _scored(target, log_probabilities[row], None if attention is None else attention[row])
            for row, target in enumerate(targets)
        ]

    def _deliver(self, events: Sequence[tuple[_Job, _Event]]) -> None:
        """Delivers events to the event loop, waking it once."""
        assert self._loop is not None
        if events and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_dispatch, events)


def _dispatch(events: Sequence[tuple[_Job, _Event]]) -> None:
    for job, event in events:
        if job.result.done():
            continue
        if isinstance(event, ScoredTarget):
            job.result.set_result(event)
        else:
            job.result.set_exception(event)


def align(attention: NDArray[np.float32]) -> list[int]:
    """Returns the source position with the most attention of each target token.

    It is that of the mean over the heads of the last decoder layer but one, or of the only one: Garg et al. 2019,
    "Jointly Learning to Align and Translate with Transformers".

    Args:
        attention: [layers, heads, target, source]
    """
    positions: list[int] = attention[max(len(attention) - 2, 0)].mean(0).argmax(-1).tolist()
    return positions


def _scored(
    target: Target, log_probabilities: NDArray[np.float32], attention: NDArray[np.float32] | None
) -> ScoredTarget:
    """Returns the scores of a target without padding.

    Args:
        log_probabilities: [padded target]
        attention: [layers, heads, padded target, padded source]
    """
    length = len(target.ids) + 1
    alignment = weights = None
    if attention is not None:
        attention = attention[:, :, :length, : len(target.source_ids)]
        if target.alignment:
            alignment = align(attention)
        if target.attention:
            weights = attention.copy()  # so that the arrays of the whole run can be freed
    return ScoredTarget(log_probabilities[:length].tolist(), alignment, weights)
