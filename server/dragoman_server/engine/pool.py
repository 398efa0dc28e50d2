"""The engine pool of one model version: its engines, their queue, and the interface for the event loop."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from dragoman_server.bundle.load import Bundle
from dragoman_server.bundle.shortlist import Shortlist
from dragoman_server.core.engine_metrics import EngineMetrics
from dragoman_server.core.errors import EngineUnavailableError, QueueFullError
from dragoman_server.core.requests import GenerationRequest
from dragoman_server.decoding.factory import make_search, narrowed
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.engine.engine_options import EngineOptions, scheduling_for
from dragoman_server.engine.generation import Generation
from dragoman_server.engine.host import Host, LocalHost
from dragoman_server.engine.job import NEVER, Admission, CallQueue, Event, Job, end_overdue
from dragoman_server.engine.scheduler import Scheduler
from dragoman_server.engine.scorer import ScorerRuntime
from dragoman_server.engine.shared_queue import SharedQueue
from dragoman_server.engine.supervisor import Supervisor
from dragoman_server.runtime.device import Device

MIN_SWEEP_SECONDS = 0.002  # between two sweeps for jobs that have waited too long
MIN_BATCH_CALLS = 16  # that may run at the same time, however few rows there are
BATCH_RETRY_SECONDS = 1.0


class EnginePool:
    """The engines of one model version, which share a queue.

    `submit` and `close` belong to the event loop on which `start` was awaited.

    Args:
        hosts: Hosts of the model, each with engines of its own; None for this process alone.
        on_change: Called on the event loop when `available` may have changed.

    Attributes:
        failed: Set when the pool will never produce a result again.
        device: Device of the engines, once they have started.
        rows: Cache rows of each engine, once they have started.
        engines: Number of engines, once they have started.
        threads: CPU threads of each engine, once they have started.
    """

    def __init__(
        self,
        bundle: Bundle,
        options: EngineOptions,
        metrics: EngineMetrics,
        hosts: Sequence[Host] | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.bundle = bundle
        self.options = options
        self.device: Device = Device("cpu")
        self.rows = self.engines = self.threads = 0
        described = bundle.manifest.shortlist
        self._shortlist: Shortlist | None = None
        self._uses_shortlist = described is not None and described.default
        self._metrics = metrics
        self._text = TargetDecoder(bundle.target_tokenizer)
        self._supervisor = Supervisor(bundle, options, metrics, hosts or [LocalHost()], on_change)
        self.failed = self._supervisor.failed
        self._queue: SharedQueue | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._batch_calls = 0  # open ones
        self._timer_at = NEVER  # time.monotonic() at which the timer fires

    @property
    def available(self) -> bool:
        """Whether an engine runs."""
        return self._supervisor.available

    async def start(self) -> None:
        """Loads the graphs, allocates the caches, and runs every engine's first step.

        Raises:
            BundleError: The graphs do not match the manifest.
            DeviceError: The requested device can't run the model, or lacks the memory for it.
            WorkerLostError: A worker has ended.
        """
        self._loop = asyncio.get_running_loop()
        runtimes = await self._supervisor.load()
        models, options = self._supervisor.models, self.options
        self.device, self.threads = models[0].device, models[0].threads
        self.engines, self.rows = sum(map(len, runtimes)), self._supervisor.rows
        shared = self._engines_share_cores()
        scheduling = scheduling_for(options, self.bundle.manifest, self.rows, self.device, shared)
        scheduler = Scheduler(self.engines, scheduling)
        self._queue = SharedQueue(scheduler)
        self._metrics.queue(scheduler.backlog)
        self._metrics.batch_limits(scheduler.batch_limits)
        if self.device.kind == "cpu":  # a GPU multiplies the whole vocabulary in less time than it gathers a part
            self._shortlist = self.bundle.shortlist
        self._supervisor.start(runtimes, self._queue, self._deliver)

    def _engines_share_cores(self) -> bool:
        """Returns whether there is an engine for each core of this process, the event loop's core included."""
        return self.device.kind == "cpu" and self.threads == 1 and len(self._supervisor.models) == 1

    def scorer(self) -> ScorerRuntime:
        """See Supervisor.scorer."""
        return self._supervisor.scorer()

    @property
    def batch_window(self) -> int:
        """Jobs of one batch call that may wait or run at the same time.

        With twice the rows of the engines these never wait for a batch call, and its waiting jobs start in a moment.
        """
        return max(1, min(2 * self.rows * self.engines, self.options.scheduling.queue_size // 2))

    @contextmanager
    def open_call(self, *, alike: bool = True) -> Iterator[CallQueue]:
        """Opens a sub-queue for the jobs of a batch call.

        Args:
            alike: Whether all jobs will have the same time limit.

        Raises:
            QueueFullError: Too many batch calls are open for this one to start a job soon.
        """
        if self._batch_calls >= max(self.batch_window, MIN_BATCH_CALLS):
            raise QueueFullError(BATCH_RETRY_SECONDS)
        self._batch_calls += 1
        try:
            yield CallQueue(alike=alike)
        finally:
            self._batch_calls -= 1

    def submit(self, request: GenerationRequest, call: CallQueue | None = None) -> Generation:
        """Queues a request; one whose time is over already is ended at once, even if the queue is full.

        Args:
            call: The sub-queue of the request's batch call, None for a single call.

        Raises:
            QueueFullError: The queue is full, and no request of this batch call has been accepted before.
            EngineUnavailableError: The engines are not running.
        """
        if self._queue is None or self._loop is None:
            raise EngineUnavailableError("the model is loading")
        manifest, options = self.bundle.manifest, request.search
        wanted = self._uses_shortlist if options.use_shortlist is None else options.use_shortlist
        if wanted and self._shortlist is not None:
            options = narrowed(options, self._shortlist, request.source_ids)
        search = make_search(options, manifest.tokens, manifest.shape.target_vocabulary, self._text, request.source_ids)
        job = Job(request, search, time.monotonic())
        generation = job.handle = Generation(job, self.cancel, self._loop)
        with self._queue.lock:
            if self._queue.stopping:
                raise EngineUnavailableError("the model is stopping")
            if not self._queue.scheduler.active:
                raise EngineUnavailableError("the engines of the model have failed and are being restarted")
            try:
                self._queue.scheduler.submit(job, call)
            except QueueFullError:
                if job.expired(job.arrived):
                    admission = Admission(expired=[job])
                elif job.out_of_time(job.arrived):
                    admission = Admission(out_of_time=[job])
                else:
                    raise
                self._loop.call_soon(self._dispatch, end_overdue(admission, job.arrived, self._metrics))
                return generation
            self._queue.wake()
            next_expiry = self._queue.scheduler.next_expiry
        if next_expiry < self._timer_at:
            self._set_timer(next_expiry)
        return generation

    def cancel(self, job: Job) -> None:
        """See Generation.cancel."""
        assert self._queue is not None
        with self._queue.lock:
            waited = self._queue.scheduler.cancel(job)
        if waited:
            self._metrics.dropped("cancelled", "waiting")

    async def close(self, seconds: float | None = None) -> None:
        """Stops the engines; requests without a result fail with EngineUnavailableError.

        Args:
            seconds: Time limit, see Supervisor.close.
        """
        if self._queue is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        with self._queue.lock:
            self._queue.stopping = True
            self._queue.wake_all()
        await self._supervisor.close(seconds)

    def _set_timer(self, moment: float) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = moment
        self._timer = self._loop.call_later(max(moment - time.monotonic(), 0.0), self._sweep)

    def _sweep(self) -> None:
        """Ends jobs that have waited too long, even while all engines are in a long step."""
        assert self._queue is not None
        now, scheduler = time.monotonic(), self._queue.scheduler
        with self._queue.lock:
            admission = scheduler.sweep(now)
            next_expiry = scheduler.next_expiry
        self._timer, self._timer_at = None, NEVER
        self._dispatch(end_overdue(admission, now, self._metrics))
        if next_expiry < NEVER:
            self._set_timer(max(next_expiry, now + MIN_SWEEP_SECONDS))

    def _deliver(self, events: list[tuple[Job, Event]]) -> None:
        """Passes the events of one step to the event loop, waking it once. Called in an engine thread."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._dispatch, events)

    def _dispatch(self, events: list[tuple[Job, Event]]) -> None:
        for job, event in events:
            handle = job.handle
            if handle is not None:  # else it was cancelled
                assert isinstance(handle, Generation)
                handle.deliver(event)
