"""The process: ports, loading, signals."""

import asyncio
import os
import signal
import sys
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
from dragoman_server.models.repository import ModelSource, Repository, RepositoryError, SingleBundle
from dragoman_server.process.drain import SERVICES, Leaving
from dragoman_server.process.ports import HealthPort, listen, serve_metrics
from dragoman_server.process.probes import Probes
from dragoman_server.process.readiness import Readiness
from dragoman_server.security.access import read_access
from dragoman_server.security.watched_files import watch
from dragoman_server.telemetry.log_lines import DRAIN_SECONDS, LineWriter
from dragoman_server.telemetry.logs import line_renderer
from dragoman_server.telemetry.observer import Observer, start_tracing
from dragoman_server.workers.worker_host import make_hosts

log = structlog.get_logger()


async def run(config: ServerConfig, lines: LineWriter) -> int:
    """Serves until SIGTERM or SIGINT, then leaves; a second signal, or one while it loads, ends the process at once.

    Args:
        lines: what the log is written with.

    Returns:
        the exit status: 0 after a signal, 1 after an engine has failed.

    Raises:
        StartError: a port can't be had, or the bundle or the device can't be used.
    """
    # An engine that comes back from a step must not wait Python's usual 5 ms, several steps, for the event loop's turn.
    sys.setswitchinterval(0.0005)
    stop = _stop_on_signals(lines)
    metrics = ServerMetrics()
    metrics.registry.register(lines)
    tracer = start_tracing(config)
    observer = Observer(
        lines,
        line_renderer(config.log_format),
        requests=config.log_requests if config.log_level in ("debug", "info") else "none",
        probes=config.log_level == "debug",
        load=metrics.load,
        tracer=tracer,
    )
    health, probes = Health(SERVICES), Probes(config.hang_seconds)
    readiness = Readiness(health, probes)
    registry = ModelRegistry()
    hosts = make_hosts(config, metrics)
    load = partial(load_version, hosts=hosts)
    manager = ModelManager(_source(config), config, registry, metrics, load, readiness.models)
    service = GenerationService(metrics.rejected, registry)
    admin = AdminService(manager) if config.admin else None
    inference = InferenceService(service, registry, metrics, lambda: health.serving, admin)
    access = read_access(config)
    metrics_port = serve_metrics(config, metrics, probes)
    server, port = listen(config, metrics, service, inference, admin, health, access, observer)
    health_port = HealthPort(config, health, probes)
    await server.start()
    standing = [asyncio.create_task(probes.beat_forever()), asyncio.create_task(watch(access.files))]
    if config.summary_seconds and config.log_level in ("debug", "info"):
        standing.append(asyncio.create_task(observer.summarize(config.summary_seconds)))
    # Calls get UNAVAILABLE, and health NOT_SERVING, until the models are ready.
    log.info("listening", host=config.host, port=port, metrics_port=metrics_port, health_port=health_port.number)
    stopping = asyncio.create_task(stop.wait())
    loading = asyncio.create_task(_load(config, manager))
    await asyncio.wait([stopping, loading], return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set():
        loading.cancel()
        await server.stop(None)
        log.info("stopped", loaded=False)
        lines.drain(DRAIN_SECONDS)
        # NOTE: threads that load can't be interrupted, and an ordinary end would wait for them.
        os._exit(0)
    try:
        loading.result()
    except BaseException:
        await asyncio.to_thread(health_port.close)
        await server.stop(None)
        raise
    readiness.start()
    following = asyncio.create_task(manager.watch(config.repository_poll_seconds if config.model_repository else 0))
    failing = asyncio.create_task(manager.failed.wait())
    await asyncio.wait([stopping, failing], return_when=asyncio.FIRST_COMPLETED)
    leaving = Leaving(server, metrics, registry, inference, manager, health)
    if not manager.failed.is_set():
        readiness.end()
        await leaving.delay(config.drain_delay_seconds)
    if manager.failed.is_set():
        readiness.end("an engine failed")
    following.cancel()
    stopped = await leaving.drain(config.drain_seconds)
    await asyncio.gather(*(asyncio.to_thread(host.close) for host in hosts))
    await asyncio.to_thread(health_port.close)
    for task in standing:
        task.cancel()
    if tracer is not None:
        lines.drain(DRAIN_SECONDS)  # spans are made where lines are written
        await asyncio.to_thread(tracer.close, DRAIN_SECONDS)
    status = 1 if manager.failed.is_set() else 0
    if status or not stopped:
        lines.drain(DRAIN_SECONDS)
        # NOTE: an ordinary end would stop the server after all, and by that end the calls that it has with CANCELLED;
        # and an engine that hangs may come to itself while the interpreter is taken down, and abort the process.
        os._exit(status)
    return status


def _source(config: ServerConfig) -> ModelSource:
    if config.model_repository is not None:
        return Repository(config.model_repository, config)
    return SingleBundle(config.bundle)


async def _load(config: ServerConfig, manager: ModelManager) -> None:
    """Brings the models up.

    Raises:
        StartError: the one that is to be served, or the repository, can't be used.
    """
    try:
        await manager.start()
    except RepositoryError as error:
        raise StartError(str(error)) from None
    problems = [report.problem for report in manager.reports() if report.problem]
    if config.model_repository is None and problems:
        raise StartError(problems[0])


def _stop_on_signals(lines: LineWriter) -> asyncio.Event:
    """An event that the first SIGTERM or SIGINT sets; the second ends the process."""
    stop = asyncio.Event()

    def received(number: signal.Signals) -> None:
        if stop.is_set():
            log.warning("second signal: ends at once", signal=number.name)
            lines.drain(DRAIN_SECONDS)
            os._exit(1)
        log.info("signal", signal=number.name)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received, number)
    return stop
