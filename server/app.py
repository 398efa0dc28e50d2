"""The process: ports, loading, signals, draining."""

import asyncio
import errno
import gc
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from functools import partial

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import start_http_server

from dragoman.v1 import generation_pb2_grpc
from server.api.health import Health
from server.api.interceptor import CallInterceptor
from server.api.limits import request_limits, token_limits
from server.api.model import ServedModel
from server.api.service import SERVICE, GenerationService
from server.bundle.load import BundleError, load_bundle
from server.config import ServerConfig
from server.connections import allow_connections, server_options
from server.cpu import usable_cpus
from server.engine.pool import EngineOptions, EnginePool, layout
from server.engine.scorer import Scorer
from server.metrics import ServerMetrics
from server.models.registry import ModelRegistry
from server.runtime.device import DeviceError
from server.runtime.scorer import ScorerRuntime

log = structlog.get_logger()

POLL_SECONDS = 0.02
QUIET_SECONDS, LATECOMER_SECONDS = 0.1, 5.0


class StartError(Exception):
    """The server can't start; the message says why in one sentence."""


async def run(config: ServerConfig) -> int:
    """Serves until SIGTERM or SIGINT, then drains; a second signal, or one while it loads, ends the process at once.

    Returns:
        the exit status: 0 after a signal, 1 after an engine has failed.

    Raises:
        StartError: a port can't be had, or the bundle or the device can't be used.
    """
    # An engine that comes back from a step must not wait Python's usual 5 ms, several steps, for the event loop's turn.
    sys.setswitchinterval(0.0005)
    stop = _stop_on_signals()
    metrics = ServerMetrics()
    health = Health([SERVICE])
    registry = ModelRegistry()
    service = GenerationService(metrics.rejected, registry)
    if (connections := allow_connections(config)) < config.max_connections:
        log.warning("the limit of open files allows fewer connections than --max-connections", connections=connections)
    metrics_port = _serve_metrics(config, metrics)
    server, port = _listen(config, metrics, service, health)
    await server.start()
    # Calls get UNAVAILABLE, and health NOT_SERVING, until the model is ready.
    log.info("listening", host=config.host, port=port, metrics_port=metrics_port)
    stopping = asyncio.create_task(stop.wait())
    loading = asyncio.create_task(_load(config, metrics, registry))
    await asyncio.wait([stopping, loading], return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set():
        await server.stop(None)
        log.info("stopped", loaded=False)
        # NOTE: threads that load can't be interrupted, and an ordinary end would wait for them.
        os._exit(0)
    try:
        pool, scorer = loading.result()
    except BaseException:
        await server.stop(None)
        raise
    health.set_serving(True)
    failing = asyncio.create_task(pool.failed.wait())
    await asyncio.wait([stopping, failing], return_when=asyncio.FIRST_COMPLETED)
    health.set_serving(False)
    await _drain(config, metrics, registry, pool, scorer)
    health.end()
    await server.stop(1)
    return 1 if pool.failed.is_set() else 0


async def _load(config: ServerConfig, metrics: ServerMetrics, registry: ModelRegistry) -> tuple[EnginePool, Scorer]:
    """Brings the model up, and the service to answer for it."""
    started = time.monotonic()
    options = EngineOptions(
        device=config.device,
        engines=config.engines,
        threads_per_engine=config.threads_per_engine,
        cores=usable_cpus(),
        max_rows=config.max_rows,
        queue_size=config.queue_size,
    )
    try:
        bundle = await asyncio.to_thread(load_bundle, config.bundle)
        limits = token_limits(config, bundle.manifest.limits)
        manifest = bundle.manifest.model_copy(update={"limits": limits})
        bundle = replace(bundle, manifest=manifest)
        pool = EnginePool(bundle, options, metrics.model(manifest.name))
        await pool.start()
    except (BundleError, DeviceError) as error:
        raise StartError(str(error)) from None
    except MemoryError:
        raise StartError(f"there is not enough memory for --max-rows {config.max_rows}") from None
    device = str(pool.device)
    # Twice what the engines can run: they never wait for a batch, and what it has in the queue is gone in a moment.
    engines, threads = layout(options, pool.device, manifest.shape.parameters)
    window = max(1, min(2 * options.max_rows * engines, options.queue_size // 2))
    load_scorer = partial(ScorerRuntime, bundle, pool.device, threads)
    scorer = Scorer(load_scorer, manifest.shape, options.queue_size, metrics.model(manifest.name))
    served = ServedModel(bundle, pool, scorer, device, window, request_limits(config, options.max_rows, manifest.shape))
    registry.serve(served)
    # What is there now stays: the garbage collector need not look through it, which takes tens of milliseconds.
    gc.collect()
    gc.freeze()
    seconds = time.monotonic() - started
    metrics.loaded(manifest.name, seconds, device, manifest.precision, pool.device.fallback is not None)
    log.info("ready", model=manifest.name, version=manifest.version, device=device, load_seconds=round(seconds, 3))
    return pool, scorer


async def _drain(
    config: ServerConfig, metrics: ServerMetrics, registry: ModelRegistry, pool: EnginePool, scorer: Scorer
) -> None:
    """Refuses new calls, waits for those that run, and stops the engines and the scorer."""
    registry.refuse("the server is shutting down")
    deadline = time.monotonic() + config.drain_seconds
    log.info("draining", calls=metrics.calls.running(SERVICE), at_most_seconds=config.drain_seconds)
    # Polled once in a server's life, instead of signalled by every call.
    while metrics.calls.running(SERVICE) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(POLL_SECONDS)
    if unfinished := metrics.calls.running(SERVICE):
        log.warning("calls were not finished in time and end with UNAVAILABLE", calls=unfinished)
    await pool.close()
    await scorer.close()
    await _refuse_latecomers(metrics, min(deadline, time.monotonic() + LATECOMER_SECONDS))
    log.info("stopped")


async def _refuse_latecomers(metrics: ServerMetrics, deadline: float) -> None:
    """Waits until no call has come for a moment, or for the deadline.

    A gRPC server that stops ends the calls it has received and not yet handed over with CANCELLED, which tells a client
    nothing; as long as it runs they are refused with UNAVAILABLE.
    """
    before = -1
    while (ended := sum(metrics.calls.requests.values())) != before and time.monotonic() < deadline:
        before = ended
        await asyncio.sleep(QUIET_SECONDS)


def _listen(
    config: ServerConfig, metrics: ServerMetrics, service: GenerationService, health: Health
) -> tuple[grpc.aio.Server, int]:
    """The gRPC server, not yet started, and its port."""
    _check_port(config.host, config.port, "--port")
    server = grpc.aio.server(interceptors=[CallInterceptor(metrics)], options=server_options(config))
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    names = [SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME]
    reflection.enable_server_reflection(names, server)
    host = f"[{config.host}]" if ":" in config.host else config.host
    try:
        return server, server.add_insecure_port(f"{host}:{config.port}")
    except RuntimeError:
        raise StartError(f"can't listen on {host}:{config.port}; choose others with --host and --port") from None


def _serve_metrics(config: ServerConfig, metrics: ServerMetrics) -> int:
    """Serves /metrics over HTTP, in a thread of its own; gives its port."""
    _check_port(config.host, config.metrics_port, "--metrics-port")
    http, _ = start_http_server(config.metrics_port, config.host, metrics.registry)
    return http.server_port


def _check_port(host: str, port: int, option: str) -> None:
    """Raises StartError where the port can't be listened on. Neither library that will listen says why it can't."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except (socket.gaierror, UnicodeError) as error:  # the latter for what can't be a host name at all
        reason = error.strerror if isinstance(error, socket.gaierror) else "not a host name"
        raise StartError(f"--host {host} is not an address of this machine: {reason}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartError(f"port {port} of {host} is in use; choose another with {option}") from None
        raise StartError(f"can't listen on port {port} of {host}: {error.strerror} ({option})") from None


def _stop_on_signals() -> asyncio.Event:
    """An event that the first SIGTERM or SIGINT sets; the second ends the process."""
    stop = asyncio.Event()

    def received(number: signal.Signals) -> None:
        if stop.is_set():
            log.warning("second signal: ends at once", signal=number.name)
            os._exit(1)
        log.info("signal", signal=number.name)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received, number)
    return stop
