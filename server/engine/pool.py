"""The engines of one model, and the handles through which the event loop talks to them."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import structlog

from server.bundle.load import Bundle, BundleError
from server.engine.engine import Engine, Event, Queue
from server.engine.metrics import EngineMetrics
from server.engine.requests import BeamProgress, EngineUnavailableError, Finished, GenerationRequest, Progress
from server.engine.scheduler import Job, Scheduler
from server.runtime.device import Device, DeviceChoice, choose_device
from server.runtime.model import Runtime, Sessions
from server.search.factory import make_search
from server.text.stream import TargetDecoder

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a model's engines are set up.

    Attributes:
        engines: None chooses by device, cores and model size.
        threads_per_engine: None shares the cores out evenly.
        cores: that this process may use.
        max_rows: cache rows of each engine, the most it decodes at once.
        queue_size: requests that may wait.
        gather_share, gather_seconds: see Scheduler.
        encode_tokens: see Scheduler.
    """

    device: DeviceChoice = "auto"
    engines: int | None = None
    threads_per_engine: int | None = None
    cores: int = 1
    max_rows: int = 64
    queue_size: int = 1024
    gather_share: float = 0.5
    gather_seconds: float = 0.005
    encode_tokens: int = 4096


class Generation:
    """A request that was accepted. For use on the event loop alone."""

    def __init__(self, pool: "EnginePool", job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._job = job
        self._answer: asyncio.Future[Finished] = loop.create_future()
        self._ended = False  # answered or cancelled; the future alone can't tell, a cancelled waiter cancels it too
        self._progress: asyncio.Queue[Progress | BeamProgress | None] | None = (
            asyncio.Queue() if job.request.streaming else None
        )

    async def result(self) -> Finished:
        """Waits for the answer.

        Raises:
            DeadlineExpiredError: the deadline passed first.
            EngineUnavailableError: the engine stopped or failed.
        """
        return await self._answer

    async def events(self) -> AsyncIterator[Progress | BeamProgress | Finished]:
        """Progress as it comes, then the answer. Only for a request with `streaming`. Raises as `result`."""
        assert self._progress is not None, "the request was not made for streaming"
        while (progress := await self._progress.get()) is not None:
            yield progress
        yield await self._answer

    def cancel(self) -> None:
        """Nobody waits any more: a waiting request leaves the queue now, a running one its rows at the next step."""
        if self._ended:
            return
        self._ended = True
        self._answer.cancel()
        self._pool.cancel(self._job)
        if self._progress is not None:
            self._progress.put_nowait(None)

    def deliver(self, event: Event) -> None:
        """Takes an event from the engine."""
        if isinstance(event, Progress | BeamProgress):
            assert self._progress is not None
            self._progress.put_nowait(event)
            return
        self._ended = True
        if self._answer.done():  # its waiter was cancelled, but nobody has said so to the pool yet
            return
        if isinstance(event, Finished):
            self._answer.set_result(event)
        else:
            self._answer.set_exception(event)
            # A stream's reader may have left: then nobody will ever ask for the exception.
            self._answer.exception()
        if self._progress is not None:
            self._progress.put_nowait(None)


class EnginePool:
    """One model's engines, which take from one queue.

    `submit` and `close` belong to the event loop on which `start` was awaited. `failed` is set when an engine
    has failed; the pool then refuses all work.
    """

    def __init__(self, bundle: Bundle, options: EngineOptions, metrics: EngineMetrics) -> None:
        self.bundle = bundle
        self.options = options
        self.device: Device = Device("cpu")
        self._metrics = metrics
        self._text = TargetDecoder(bundle.target_tokenizer)
        self._engines: list[Engine] = []
        self._queue: Queue | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.failed = asyncio.Event()

    async def start(self) -> None:
        """Loads the graphs, allocates the caches, and runs every engine's first step.

        Raises:
            BundleError: the graphs are not what the manifest says.
            DeviceError: the device asked for can't run the model.
            MemoryError: the caches do not fit.
        """
        self._loop = asyncio.get_running_loop()
        runtimes = await asyncio.to_thread(self._build)
        options = self.options
        scheduler = Scheduler(
            len(runtimes), options.queue_size, options.gather_share, options.gather_seconds, options.encode_tokens
        )
        self._queue = Queue(scheduler)
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
        shared = Sessions(self.bundle, self.device, threads) if threads == 1 else None
        runtimes = []
        for index in range(engines):
            sessions = shared or Sessions(self.bundle, self.device, threads)
            runtime = self._runtime(sessions)
            self._metrics.cache(index, runtime.cache_bytes)
            runtimes.append(runtime)
        return runtimes

    def _runtime(self, sessions: Sessions) -> Runtime:
        """A runtime that has run.

        Raises:
            BundleError: the graphs are not what the manifest says.
            MemoryError: the caches do not fit.
        """
        try:
            runtime = Runtime(sessions, self.options.max_rows)
            runtime.warm_up()
        except MemoryError:
            raise
        except Exception as error:  # whatever ONNX Runtime raises where shapes disagree
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise BundleError(f"{self.bundle.path}: the graphs do not run as the manifest says: {reason}") from None
        return runtime

    def submit(self, request: GenerationRequest) -> Generation:
        """Puts a request into the queue.

        Raises:
            QueueFullError: there is no room.
            EngineUnavailableError: the engines are not running.
        """
        if self._queue is None or self._loop is None:
            raise EngineUnavailableError("the model is loading")
        manifest = self.bundle.manifest
        search = make_search(request.search, manifest.tokens, manifest.shape.target_vocabulary, self._text)
        job = Job(request, search, time.monotonic())
        generation = Generation(self, job, self._loop)
        job.handle = generation
        with self._queue.changed:
            if self._queue.stopping:
                raise EngineUnavailableError("the model is stopping")
            self._queue.scheduler.submit(job)
            self._queue.changed.notify()
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
        with self._queue.changed:
            self._queue.stopping = True
            self._queue.changed.notify_all()
        for engine in self._engines:
            await asyncio.to_thread(engine.join)

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
