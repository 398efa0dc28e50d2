"""The engines of one model, and the handles through which the event loop talks to them."""

import asyncio
import time
from dataclasses import dataclass

import structlog

from server.bundle.load import Bundle, BundleError
from server.engine.budget import DEFAULT_ROWS, Memory, MemoryBudgetError, plan_rows
from server.engine.encoding import PADDING_SHARE
from server.engine.engine import Engine, Event, Queue, overdue
from server.engine.generation import Generation
from server.engine.metrics import EngineMetrics
from server.engine.requests import EngineUnavailableError, GenerationRequest, QueueFullError
from server.engine.scheduler import NEVER, Admission, Job, Scheduler
from server.runtime.capacity import device_memory, row_bytes, working_bytes
from server.runtime.device import Device, DeviceChoice, DeviceError, choose_device
from server.runtime.model import Runtime, Sessions
from server.search.factory import make_search
from server.text.stream import TargetDecoder

log = structlog.get_logger()

LEAST_SLEEP_SECONDS = 0.002  # between two looks for those that have waited too long


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a model's engines are set up.

    Attributes:
        engines: None chooses by device, cores and model size.
        threads_per_engine: None shares the cores out evenly.
        cores: that this process may use.
        max_rows: cache rows of each engine, the most it decodes at once; None for what suits, or there is room for.
        memory_budget: bytes that the process may have on the device, weights included; None for what is free.
        queue_size: requests of each priority that may wait,
        queue_tokens: and their source tokens.
        gather_share, gather_seconds: see Scheduler.
        encode_tokens: see Scheduler.
    """

    device: DeviceChoice = "auto"
    engines: int | None = None
    threads_per_engine: int | None = None
    cores: int = 1
    max_rows: int | None = None
    memory_budget: int | None = None
    queue_size: int = 1024
    queue_tokens: int = 262_144
    gather_share: float = 0.5
    gather_seconds: float = 0.005
    encode_tokens: int = 4096


class EnginePool:
    """One model's engines, which take from one queue.

    `submit` and `close` belong to the event loop on which `start` was awaited. `failed` is set when an engine
    has failed; the pool then refuses all work.

    Attributes:
        device: where the engines run, once they have started.
        rows: of each engine's cache, likewise.
    """

    def __init__(self, bundle: Bundle, options: EngineOptions, metrics: EngineMetrics) -> None:
        self.bundle = bundle
        self.options = options
        self.device: Device = Device("cpu")
        self.rows = 0
        self._metrics = metrics
        self._text = TargetDecoder(bundle.target_tokenizer)
        self._engines: list[Engine] = []
        self._queue: Queue | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER  # time.monotonic() when it goes off
        self.failed = asyncio.Event()

    async def start(self) -> None:
        """Loads the graphs, allocates the caches, and runs every engine's first step.

        Raises:
            BundleError: the graphs are not what the manifest says.
            DeviceError: the device asked for can't run the model, or has not the memory for it.
        """
        self._loop = asyncio.get_running_loop()
        runtimes = await asyncio.to_thread(self._build)
        options = self.options
        scheduler = Scheduler(
            len(runtimes),
            options.queue_size,
            options.gather_share,
            options.gather_seconds,
            options.encode_tokens,
            options.queue_tokens,
            0 if self.device.kind == "cpu" else self.bundle.manifest.limits.max_source_tokens,
        )
        self._queue = Queue(scheduler)
        self._metrics.queue(scheduler.waits)
        self._engines = [
            Engine(index, runtime, self._queue, self._metrics, self._deliver, self._engine_failed)
            for index, runtime in enumerate(runtimes)
        ]
        for engine in self._engines:
            engine.start()

    def _build(self) -> list[Runtime]:
        self.device = choose_device(self.options.device, self.bundle.decoder)
        if self.device.fallback:
            log.error("no GPU: the model runs on the CPU", reason=self.device.fallback)
        engines, threads = layout(self.options, self.device, self.bundle.manifest.shape.parameters)
        log.info("engines", device=str(self.device), engines=engines, threads_per_engine=threads)
        several = 1 if threads == 1 else engines  # one is enough for engines whose operators use one thread
        sessions = [Sessions(self.bundle, self.device, threads) for _ in range(several)]
        self.rows = self._plan(sessions[0], engines)
        runtimes = []
        for index in range(engines):
            runtime = self._runtime(sessions[index % several])
            self._metrics.cache(index, runtime.cache_bytes)
            runtimes.append(runtime)
        return runtimes

    def _plan(self, sessions: Sessions, engines: int) -> int:
        """Rows for each engine, by the memory that is left now that the weights are loaded.

        Raises:
            DeviceError: it does not suffice.
        """
        options, manifest = self.options, self.bundle.manifest
        row, size = row_bytes(manifest, sessions.cache_type.itemsize), sessions.cache_type.itemsize
        tokens = int(options.encode_tokens / (1 - PADDING_SHARE))
        working = engines * working_bytes(manifest, tokens, options.max_rows or DEFAULT_ROWS, size)
        free, place, used = device_memory(self.device)
        memory = Memory(free, place, used, options.memory_budget)
        try:
            plan = plan_rows(memory, working, row, engines, options.max_rows)
        except MemoryBudgetError as error:
            raise DeviceError(str(error)) from None
        log.info("memory", model=manifest.name, sum=plan.explanation)
        return plan.rows

    def _runtime(self, sessions: Sessions) -> Runtime:
        """A runtime that has run.

        Raises:
            BundleError: the graphs are not what the manifest says.
            DeviceError: the caches do not fit.
        """
        try:
            runtime = Runtime(sessions, self.rows)
            runtime.warm_up()
        except MemoryError:
            raise DeviceError(f"{self.device} has not the memory for {self.rows} cache rows") from None
        except Exception as error:  # whatever ONNX Runtime raises where shapes disagree
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise BundleError(f"{self.bundle.path}: the graphs do not run as the manifest says: {reason}") from None
        return runtime

    def submit(self, request: GenerationRequest) -> Generation:
        """Puts a request into the queue; one whose time is over already is ended at once, even where that is full.

        Raises:
            QueueFullError: there is no room.
            EngineUnavailableError: the engines are not running.
        """
        if self._queue is None or self._loop is None:
            raise EngineUnavailableError("the model is loading")
        manifest = self.bundle.manifest
        search = make_search(request.search, manifest.tokens, manifest.shape.target_vocabulary, self._text)
        job = Job(request, search, time.monotonic())
        generation = job.handle = Generation(job, self.cancel, self._loop)
        with self._queue.changed:
            if self._queue.stopping:
                raise EngineUnavailableError("the model is stopping")
            try:
                self._queue.scheduler.submit(job)
            except QueueFullError:
                if job.expired(job.arrived):
                    admission = Admission(expired=[job])
                elif job.out_of_time(job.arrived):
                    admission = Admission(out_of_time=[job])
                else:
                    raise
                self._loop.call_soon(self._dispatch, overdue(admission, job.arrived, self._metrics))
                return generation
            self._queue.changed.notify()
            next_expiry = self._queue.scheduler.next_expiry
        if next_expiry < self._timer_at:
            self._set_timer(next_expiry)
        return generation

    def cancel(self, job: Job) -> None:
        """See Generation.cancel."""
        assert self._queue is not None
        with self._queue.changed:
            waited = self._queue.scheduler.cancel(job)
        if waited:
            self._metrics.dropped("cancelled", "waiting")

    async def close(self) -> None:
        """Stops the engines; what is still unanswered ends with EngineUnavailableError."""
        if self._queue is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        with self._queue.changed:
            self._queue.stopping = True
            self._queue.changed.notify_all()
        for engine in self._engines:
            await asyncio.to_thread(engine.join)

    def _set_timer(self, moment: float) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = moment
        self._timer = self._loop.call_later(max(moment - time.monotonic(), 0.0), self._sweep)

    def _sweep(self) -> None:
        """Ends those that have waited too long, whether or not an engine asks for work: a step may take long."""
        assert self._queue is not None
        now, scheduler = time.monotonic(), self._queue.scheduler
        with self._queue.changed:
            admission = scheduler.sweep(now)
            next_expiry = scheduler.next_expiry
        self._timer, self._timer_at = None, NEVER
        self._dispatch(overdue(admission, now, self._metrics))
        if next_expiry < NEVER:
            self._set_timer(max(next_expiry, now + LEAST_SLEEP_SECONDS))

    def _engine_failed(self, error: BaseException) -> None:
        """Called in the thread of the engine that failed."""
        log.error("engine failed", error=type(error).__name__, detail=str(error).splitlines()[:1])
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.failed.set)

    def _deliver(self, events: list[tuple[Job, Event]]) -> None:
        """Called in an engine thread: one wake-up of the event loop for all of a step's events."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._dispatch, events)

    def _dispatch(self, events: list[tuple[Job, Event]]) -> None:
        for job, event in events:
            handle = job.handle
            assert isinstance(handle, Generation)
            if not job.cancelled:
                handle.deliver(event)


# From this size on the operators of a step are large enough for several threads to compute one of them together.
LARGE_MODEL = 30_000_000  # parameters
MOST_THREADS = 8  # of one engine


def layout(options: EngineOptions, device: Device, parameters: int) -> tuple[int, int]:
    """How many engines, and threads in each, where the options leave it open.

    On a GPU one engine feeds the device. On a CPU it depends on the model (both measured on two cores): threads of one
    engine meet after every operator, so that a small model (5 million parameters) is served about a tenth faster with
    one engine per core, alone and at 64 requests; a large one (77 million) is a third faster at 8 rows in one engine
    whose threads share the reading of the weights, and no slower at 64.

    Args:
        parameters: of the model.
    """
    if device.kind == "cuda":
        return options.engines or 1, options.threads_per_engine or 1
    if options.engines is not None:
        return options.engines, options.threads_per_engine or max(1, options.cores // options.engines)
    threads = options.threads_per_engine
    if threads is None:
        threads = 1 if parameters < LARGE_MODEL else min(options.cores, MOST_THREADS)
    return max(1, options.cores // threads), threads
