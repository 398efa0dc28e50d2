"""Keeps a model's engines running: loads the model on its hosts, and restarts engines that fail or hang."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import structlog

from dragoman_server.bundle.load import Bundle
from dragoman_server.core.engine_metrics import EngineMetrics
from dragoman_server.core.errors import EngineUnavailableError
from dragoman_server.engine.engine import Deliver, Engine, StepRuntime
from dragoman_server.engine.engine_options import EngineOptions
from dragoman_server.engine.host import Host, LoadedModel
from dragoman_server.engine.memory_budget import rows_for
from dragoman_server.engine.scorer import ScorerRuntime
from dragoman_server.engine.shared_queue import SharedQueue
from dragoman_server.engine.watchdog import Watchdog
from dragoman_server.machine import resident_memory
from dragoman_server.runtime.device import WorkerLostError, first_line, precision_warning

log = structlog.get_logger()

Value = TypeVar("Value")

READY_SECONDS = 0.02  # between two checks of whether a worker has started
WATCH_SECONDS = 1.0  # between two checks for engines that hang
JOIN_SECONDS = 0.5  # between two checks of whether to keep waiting for an engine
MIN_DELAY_SECONDS, MAX_DELAY_SECONDS = 0.5, 30.0  # before another attempt to load a model


class _Site:
    """A model on one host.

    Attributes:
        model: The loaded model, or the one that was lost.
        engines: Its engines, numbered from `first`.
        failures: Number of failures in a row, without a step between them.
        restarting: Task that loads the model again.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.model: LoadedModel | None = None
        self.engines: list[Engine] = []
        self.first = 0
        self.failures = 0
        self.restarting: asyncio.Task[None] | None = None


class Supervisor:
    """The engines of one model. Its methods belong to the event loop.

    Args:
        hosts: Hosts of the model, each with engines of its own.
        on_change: Called when `available` may have changed.

    Attributes:
        rows: Cache rows of each engine, once the model is loaded.
        failed: Set when no engine will run again.
    """

    def __init__(
        self,
        bundle: Bundle,
        options: EngineOptions,
        metrics: EngineMetrics,
        hosts: Sequence[Host],
        on_change: Callable[[], None],
    ) -> None:
        self.rows = 0
        self.failed = asyncio.Event()
        self._bundle, self._options, self._metrics = bundle, options, metrics
        self._on_change = on_change
        self._sites = [_Site(host) for host in hosts]
        self._queue: SharedQueue | None = None
        self._deliver: Deliver | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._hanging: set[Engine] = set()
        self._scorers = 0  # opened

    @property
    def models(self) -> list[LoadedModel]:
        """The model on each host where it is loaded."""
        return [site.model for site in self._sites if site.model is not None]

    @property
    def available(self) -> bool:
        """Whether an engine runs."""
        return self._queue is not None and bool(self._queue.scheduler.active)

    async def load(self) -> list[list[StepRuntime]]:
        """Loads the model on all hosts, plans the memory, and returns the runtimes of each host, after a first run.

        Raises:
            BundleError: The graphs do not match the manifest.
            DeviceError: A device can't run them, or lacks the memory.
            WorkerLostError: A worker has ended.
        """
        try:
            models = await _all([self._load(site) for site in self._sites])
            used = resident_memory() if self._sites[0].host.restartable else 0
            self.rows = await asyncio.to_thread(rows_for, self._bundle, self._options, models, used)
            return await _all([asyncio.to_thread(self._runtimes, model) for model in models])
        except BaseException:
            self._close_models()
            raise

    def start(self, runtimes: Sequence[Sequence[StepRuntime]], queue: SharedQueue, deliver: Deliver) -> None:
        """Starts engines on the runtimes that `load` returned."""
        self._queue, self._deliver, self._loop = queue, deliver, asyncio.get_running_loop()
        first = 0
        for site, own in zip(self._sites, runtimes, strict=True):
            site.first, first = first, first + len(own)
            self._occupy(site, own)
        self._watching = asyncio.create_task(self._watch())

    def scorer(self) -> ScorerRuntime:
        """Returns a runtime of the scorer graph, on the hosts in turn. Safe to call from any thread.

        Raises:
            BundleError, DeviceError, WorkerLostError: The graph can't be loaded.
        """
        alive = [site.model for site in self._sites if site.model is not None and site.restarting is None]
        if not alive:
            raise WorkerLostError("no worker is running")
        self._scorers += 1
        return alive[self._scorers % len(alive)].scorer()

    async def close(self, seconds: float | None = None) -> None:
        """Waits for the engines to end and releases the model. The queue must be stopping.

        Args:
            seconds: Time limit for their last steps. After it their requests end all the same, and an engine of this
                process sets `failed`. None to wait until they end or hang.
        """
        self._closing.set()
        deadline = None if seconds is None else time.monotonic() + seconds
        for site in self._sites:
            if site.restarting is not None:
                await asyncio.wait([site.restarting], timeout=_left(deadline))
            for engine in site.engines:
                await asyncio.to_thread(self._join, engine, deadline)
                if not engine.ended and engine not in self._hanging:
                    self._give_up(site, engine)
        if self._watching is not None:
            self._watching.cancel()
        self._close_models()
        for site in self._sites:  # so that references to this object keep no engine alive
            site.engines.clear()

    async def _load(self, site: _Site) -> LoadedModel:
        while not site.host.ready:
            if await self._pause(READY_SECONDS):
                raise EngineUnavailableError("the model is stopping")
        model = site.model = await asyncio.to_thread(site.host.load, self._bundle, self._options)
        if model.device.fallback:
            log.error("no GPU: the model runs on the CPU", reason=model.device.fallback)
        if reason := precision_warning(self._bundle.manifest.precision, model.device.kind):
            log.warning("poor choice of precision", reason=reason)
        where, device = site.host.name, str(model.device)
        log.info("engines", where=where, device=device, engines=model.engines, threads_per_engine=model.threads)
        return model

    def _runtimes(self, model: LoadedModel) -> list[StepRuntime]:
        return [model.runtime(index, self.rows) for index in range(model.engines)]

    def _occupy(self, site: _Site, runtimes: Sequence[StepRuntime]) -> None:
        assert self._queue is not None
        assert self._deliver is not None
        assert site.model is not None
        failed, max_errors = partial(self._engine_failed, site), self._options.max_errors
        site.engines = [
            Engine(index, runtime, self._queue, self._metrics, self._deliver, failed, max_errors)
            for index, runtime in enumerate(runtimes, site.first)
        ]
        for index, runtime in enumerate(runtimes, site.first):
            self._metrics.cache(index, runtime.cache_bytes)
            with self._queue.lock:
                self._queue.scheduler.add_engine(index)
        for engine in site.engines:
            engine.start()
        site.model.on_lost(partial(_abandon, site.engines))

    def _engine_failed(self, site: _Site, error: BaseException) -> None:
        """Called in the thread of the engine that failed."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lost, site, error)

    def _lost(self, site: _Site, error: BaseException) -> None:
        self._on_change()
        if self._closing.is_set() or site.restarting is not None:
            return
        log.error("engine failed", where=site.host.name, error=type(error).__name__, detail=first_line(error))
        if not site.host.restartable:
            self.failed.set()
            return
        if not isinstance(error, WorkerLostError):
            site.host.restart()
        site.restarting = asyncio.create_task(self._restart(site))

    async def _restart(self, site: _Site) -> None:
        """Loads the model again, as often as that takes; only a few times if no engine runs."""
        for engine in site.engines:
            engine.request_stop()
            await asyncio.to_thread(engine.join)
        if any(engine.has_stepped for engine in site.engines):
            site.failures = 0
        if site.model is not None:
            site.model.close()
        while not self._closing.is_set():
            site.failures += 1
            if site.failures > self._options.max_errors and not self.available:
                log.error("the model can't be kept running", where=site.host.name, failures=site.failures - 1)
                self.failed.set()
                break
            try:
                model = await self._load(site)
                runtimes = await asyncio.to_thread(self._runtimes, model)
            except Exception as error:  # any error may be temporary
                if self._closing.is_set():
                    break
                delay = min(MIN_DELAY_SECONDS * 2 ** (site.failures - 1), MAX_DELAY_SECONDS)
                name, detail = type(error).__name__, first_line(error)
                log.error(
                    "can't restart engines", where=site.host.name, error=name, detail=detail, retry_in_seconds=delay
                )
                await self._pause(delay)
                continue
            if not self._closing.is_set():
                self._occupy(site, runtimes)
                log.info("engines restarted", where=site.host.name)
            break
        site.restarting = None
        self._on_change()

    async def _pause(self, seconds: float) -> bool:
        """Waits, and returns whether the supervisor was closed in the meantime."""
        try:
            await asyncio.wait_for(self._closing.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def _watch(self) -> None:
        """Ends the requests of engines that hang in this process; WorkerHost watches workers."""
        interval = min(WATCH_SECONDS, self._options.hang_seconds / 4)
        watchdog: Watchdog[int] = Watchdog(math.ceil(self._options.hang_seconds / interval))
        while True:
            await asyncio.sleep(interval)
            self._check(watchdog)

    def _check(self, watchdog: Watchdog[int]) -> None:
        local = [site for site in self._sites if not site.host.restartable]
        own = {engine.index: (site, engine) for site in local for engine in site.engines}
        for index in watchdog.hanging({index: engine.turns for index, (_, engine) in own.items() if engine.busy}):
            site, engine = own[index]
            if engine not in self._hanging:
                log.error("an engine hangs", engine=index, seconds=self._options.hang_seconds)
                self._give_up(site, engine)

    def _join(self, engine: Engine, deadline: float | None) -> None:
        while not engine.ended and engine not in self._hanging and _left(deadline) != 0:
            engine.join(min(JOIN_SECONDS, _left(deadline) or JOIN_SECONDS))

    def _give_up(self, site: _Site, engine: Engine) -> None:
        """Ends the requests of an engine whose thread hangs."""
        self._hanging.add(engine)
        engine.fail_all("the engine hangs")
        self._on_change()
        if not site.host.restartable:
            self.failed.set()

    def _close_models(self) -> None:
        """Releases the model on every host whose engines do not hang."""
        for site in self._sites:
            if site.model is not None and not self._hanging.intersection(site.engines):
                site.model.close()
                site.model = None


def _left(deadline: float | None) -> float | None:
    """Returns the seconds until a deadline, None for none."""
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


def _abandon(engines: Sequence[Engine]) -> None:
    for engine in engines:
        engine.request_stop()


async def _all(work: Sequence[Awaitable[Value]]) -> list[Value]:
    """Returns all results, or raises the first exception once all have ended: threads can't be interrupted."""
    done = await asyncio.gather(*work, return_exceptions=True)
    for result in done:
        if isinstance(result, BaseException):
            raise result
    return [result for result in done if not isinstance(result, BaseException)]
