"""The server process: ports, loading, signals, exit."""

import asyncio
import os
import signal
import sys
import threading
from functools import partial

import structlog

from dragoman_server.api.admin_service import AdminService
from dragoman_server.api.generation_service import GenerationService
from dragoman_server.api.health_service import Health
from dragoman_server.api.inference.inference_service import InferenceService
from dragoman_server.config import ServerConfig
from dragoman_server.core.errors import StartError
from dragoman_server.metrics import ServerMetrics
from dragoman_server.models.loading import load_version
from dragoman_server.models.manager import ModelManager
from dragoman_server.models.registry import ModelRegistry
from dragoman_server.models.repository import SHIPPED_MODELS, ModelSource, Repository, RepositoryError, SingleBundle
from dragoman_server.process.drain import SERVICES, Drain
from dragoman_server.process.health_port import HealthPort
from dragoman_server.process.ports import Services, listen, serve_metrics
from dragoman_server.process.readiness import Probes, Readiness
from dragoman_server.security.access import read_access
from dragoman_server.security.watched_files import watch
from dragoman_server.telemetry.log_lines import DRAIN_SECONDS, LineWriter
from dragoman_server.telemetry.logs import line_renderer
from dragoman_server.telemetry.observer import Observer, start_tracing
from dragoman_server.workers.worker_host import make_hosts

log = structlog.get_logger()


async def run(config: ServerConfig, lines: LineWriter) -> int:
    """Serves until a signal to stop, then drains. A second signal, or one during loading, ends the process at once.

    Args:
        lines: Writes the log.

    Returns:
        The exit status: 0 after a signal, 1 after an engine failed.

    Raises:
        StartError: A port can't be opened, or the bundle or the device can't be used.
    """
    # After a step, an engine must not wait Python's default of 5 ms, several steps, for its turn.
    sys.setswitchinterval(0.0005)
    stop = _stop_on_signals(lines)
    server = _Server(config, lines)
    await server.start()
    stopping = asyncio.create_task(stop.wait())
    loading = asyncio.create_task(server.load())
    await asyncio.wait([stopping, loading], return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set():
        loading.cancel()
        await server.abort()
        log.info("stopped", loaded=False)
        lines.drain(DRAIN_SECONDS)
        # NOTE: threads that load can't be interrupted, and a normal exit would wait for them.
        os._exit(0)
    try:
        loading.result()
    except BaseException:
        await server.close_health_port()
        await server.abort()
        raise
    stopped = await server.serve_until(stopping)
    status = 1 if server.manager.failed.is_set() else 0
    if status or not stopped or computing():
        lines.drain(DRAIN_SECONDS)
        # NOTE: a normal exit would stop the gRPC server after all, which ends its calls with CANCELLED; and a thread
        # inside ONNX Runtime while the interpreter shuts down may crash the process.
        os._exit(status)
    return status


def computing() -> bool:
    """Returns whether a thread of an engine or a scorer has outlived its model: it hangs, or its last step is long."""
    return any(thread.name.startswith(("engine-", "scorer")) for thread in threading.enumerate())


class _Server:
    """All parts of a server.

    Raises:
        StartError: A port can't be opened, or access or tracing is configured wrongly.
    """

    def __init__(self, config: ServerConfig, lines: LineWriter) -> None:
        self._config, self._lines = config, lines
        self._metrics = metrics = ServerMetrics()
        metrics.registry.register(lines)
        self._tracer = start_tracing(config)
        self._observer = Observer(
            lines,
            line_renderer(config.log_format),
            requests=config.log_requests if config.log_level in ("debug", "info") else "none",
            probes=config.log_level == "debug",
            load=metrics.load,
            tracer=self._tracer,
        )
        self._health, self._probes = Health(SERVICES), Probes(config.hang_seconds)
        self._readiness = Readiness(self._health, self._probes)
        self._registry = registry = ModelRegistry()
        self._hosts = make_hosts(config, metrics)
        load = partial(load_version, hosts=self._hosts)
        self.manager = ModelManager(_source(config), config, registry, metrics, load, self._readiness.models)
        generation = GenerationService(metrics, registry)
        self._streams = generation.streams
        admin = AdminService(self.manager) if config.admin else None
        inference = InferenceService(generation, registry, metrics, lambda: self._health.serving, admin)
        self._access = read_access(config)
        self._metrics_port = serve_metrics(config, metrics, self._probes)
        services = Services(generation, inference, admin, self._health)
        self._grpc, self._port = listen(config, metrics, services, self._access, self._observer)
        self._health_port = HealthPort(config, self._health, self._probes)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Opens the ports. Until the models are ready, calls get UNAVAILABLE and health NOT_SERVING."""
        await self._grpc.start()
        work = [self._probes.beat_forever(), watch(self._access.files)]
        if self._config.summary_seconds and self._config.log_level in ("debug", "info"):
            work.append(self._observer.summarize(self._config.summary_seconds))
        self._tasks = [asyncio.create_task(coroutine) for coroutine in work]
        ports = {"port": self._port, "metrics_port": self._metrics_port, "health_port": self._health_port.number}
        log.info("listening", host=self._config.host, **ports)

    async def load(self) -> None:
        """Loads the models.

        Raises:
            StartError: The only bundle, a shipped model, or the repository can't be used.
        """
        try:
            await self.manager.start()
        except RepositoryError as error:
            raise StartError(str(error)) from None
        problems = [report.problem for report in self.manager.reports() if report.problem]
        if self._config.model_repository is None and problems:
            raise StartError(problems[0])

    async def serve_until(self, stopping: asyncio.Task[bool]) -> bool:
        """Serves until `stopping` is done or an engine fails, drains and closes everything.

        Returns:
            Whether the gRPC server has stopped; see Drain.finish.
        """
        config, failed = self._config, self.manager.failed
        self._readiness.start()
        watching = asyncio.create_task(
            self.manager.watch(config.repository_poll_seconds if config.model_repository else 0)
        )
        failing = asyncio.create_task(failed.wait())
        await asyncio.wait([stopping, failing], return_when=asyncio.FIRST_COMPLETED)
        drain = Drain(self._grpc, self._metrics, self._registry, self._streams, self.manager, self._health)
        if not failed.is_set():
            self._readiness.end()
            await drain.delay(config.drain_delay_seconds)
        if failed.is_set():
            self._readiness.end("an engine failed")
        watching.cancel()
        stopped = await drain.finish(config.drain_seconds)
        await asyncio.gather(*(asyncio.to_thread(host.close) for host in self._hosts))
        await self.close_health_port()
        for task in self._tasks:
            task.cancel()
        if self._tracer is not None:
            self._lines.drain(DRAIN_SECONDS)  # the writer's thread makes the spans
            await asyncio.to_thread(self._tracer.close, DRAIN_SECONDS)
        return stopped

    async def abort(self) -> None:
        """Stops the gRPC server without waiting for its calls."""
        await self._grpc.stop(None)

    async def close_health_port(self) -> None:
        await asyncio.to_thread(self._health_port.close)


def _source(config: ServerConfig) -> ModelSource:
    if config.bundle is not None:
        return SingleBundle(config.bundle)
    return Repository(config.model_repository or SHIPPED_MODELS, config)


def _stop_on_signals(lines: LineWriter) -> asyncio.Event:
    """Returns an event that the first SIGTERM, SIGINT or SIGHUP sets; the second ends the process.

    SIGHUP, which a terminal sends when it is closed, stays ignored for a server that nohup started.
    """
    stop = asyncio.Event()

    def received(number: signal.Signals) -> None:
        if stop.is_set():
            log.warning("second signal: exiting at once", signal=number.name)
            lines.drain(DRAIN_SECONDS)
            os._exit(1)
        log.info("signal", signal=number.name)
        stop.set()

    loop = asyncio.get_running_loop()
    stopping = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        stopping.append(signal.SIGHUP)
    for number in stopping:
        loop.add_signal_handler(number, received, number)
    return stop
