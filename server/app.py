"""The process: ports, loading, signals, draining."""

import asyncio
import gc
import os
import signal
import sys
import time
from dataclasses import replace
from functools import partial

import structlog

from server.api.health import Health
from server.api.inference.service import SERVICE as INFERENCE
from server.api.inference.service import InferenceService
from server.api.limits import request_limits, token_limits
from server.api.model import ServedModel
from server.api.service import SERVICE as GENERATION
from server.api.service import GenerationService
from server.bundle.load import BundleError, load_bundle
from server.config import ServerConfig
from server.cpu import usable_cpus
from server.engine.pool import EngineOptions, EnginePool, layout
from server.engine.scorer import Scorer
from server.errors import StartError
from server.metrics import ServerMetrics
from server.models.registry import ModelRegistry
from server.ports import listen, serve_metrics
from server.probes import Probes
from server.runtime.device import DeviceError
from server.runtime.scorer import ScorerRuntime
from server.security.access import read_access
from server.security.files import watch

log = structlog.get_logger()

POLL_SECONDS = 0.02
SERVICES = (GENERATION, INFERENCE)
QUIET_SECONDS, LATECOMER_SECONDS = 0.1, 5.0


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
    health = Health(SERVICES)
    registry = ModelRegistry()
    service = GenerationService(metrics.rejected, registry)
    inference = InferenceService(service, registry, metrics, lambda: health.serving)
    probes = Probes()
    access = read_access(config)
    metrics_port = serve_metrics(config, metrics, probes)
    server, port = listen(config, metrics, service, inference, health, access)
    await server.start()
    standing = [asyncio.create_task(probes.beat_forever()), asyncio.create_task(watch(access.files))]
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
    probes.serving()
    failing = asyncio.create_task(pool.failed.wait())
    await asyncio.wait([stopping, failing], return_when=asyncio.FIRST_COMPLETED)
    health.set_serving(False)
    if pool.failed.is_set():
        probes.failed("an engine failed")
    else:
        probes.not_serving("the server is draining")
    inference.drain()
    await _drain(config, metrics, registry, pool, scorer)
    health.end()
    await server.stop(1)
    for task in standing:
        task.cancel()
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
        memory_budget=config.memory_budget,
        queue_size=config.queue_size,
        queue_tokens=config.queue_tokens,
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
    window = max(1, min(2 * pool.rows * engines, options.queue_size // 2))
    load_scorer = partial(ScorerRuntime, bundle, pool.device, threads)
    scorer = Scorer(load_scorer, manifest.shape, options.queue_size, metrics.model(manifest.name))
    served = ServedModel(bundle, pool, scorer, device, window, request_limits(config, pool.rows, manifest.shape))
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
    log.info("draining", calls=metrics.calls.running(*SERVICES), at_most_seconds=config.drain_seconds)
    # Polled once in a server's life, instead of signalled by every call.
    while metrics.calls.running(*SERVICES) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(POLL_SECONDS)
    if unfinished := metrics.calls.running(*SERVICES):
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
