"""Brings a version of a model up, until it could answer, and takes it down again."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnxruntime
import structlog

from dragoman_server.bundle.load import Bundle, BundleError, load_bundle
from dragoman_server.config import ServerConfig
from dragoman_server.engine.host import Host
from dragoman_server.engine.layout import EngineOptions
from dragoman_server.engine.pool import EnginePool
from dragoman_server.engine.scorer import Scorer
from dragoman_server.machine import usable_cpus
from dragoman_server.messages.limits import request_limits, token_limits
from dragoman_server.messages.served_model import ServedModel
from dragoman_server.metrics import ModelMetrics
from dragoman_server.models.registry import ServedVersion
from dragoman_server.runtime.device import Device, DeviceError
from dragoman_server.runtime.device_errors import WorkerLostError, is_out_of_memory

log = structlog.get_logger()

MOST_ATTEMPTS = 3  # at loading where workers end
RETRY_SECONDS = 0.2  # for the end of one to be noticed


class LoadError(Exception):
    """The version can't be served; the message says why in one sentence."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadedVersion:
    """A version that has run, and all that belongs to it.

    Attributes:
        served: for the registry.
        metrics: what its engines report.
        seconds: that it took to load.
    """

    served: ServedVersion
    pool: EnginePool
    scorer: Scorer
    metrics: ModelMetrics
    seconds: float

    @property
    def name(self) -> str:
        return self.served.model.name

    @property
    def version(self) -> str:
        return self.served.model.version

    @property
    def available(self) -> bool:
        """Whether it takes requests now."""
        return self.pool.available

    @property
    def device(self) -> str:
        return str(self.pool.device)

    @property
    def precision(self) -> str:
        return self.pool.bundle.manifest.precision

    @property
    def cache_bytes(self) -> int:
        return sum(self.metrics.cache_bytes.values())

    async def close(self, seconds: float | None = None) -> None:
        """Ends its threads; what is still unanswered ends with EngineUnavailableError.

        Args:
            seconds: see EnginePool.close.
        """
        await asyncio.gather(self.scorer.close(), self.pool.close(seconds))


async def load_version(
    path: Path,
    name: str,
    version: str,
    config: ServerConfig,
    on_change: Callable[[], None],
    hosts: Sequence[Host] | None = None,
) -> LoadedVersion:
    """Loads a bundle and runs it, with the shapes that it will be asked for.

    Args:
        name, version: under which it is served, whatever its manifest says.
        config: the server's options as they are for this model.
        on_change, hosts: see EnginePool.

    Raises:
        LoadError: the bundle, the device or the memory is not what it takes.
    """
    started = time.monotonic()
    options = EngineOptions(
        device=config.device,
        engines=config.engines,
        threads_per_engine=config.threads_per_engine,
        cores=usable_cpus(),
        cuda_graphs=config.cuda_graphs,
        max_rows=config.max_rows,
        memory_budget=config.memory_budget,
        queue_size=config.queue_size,
        queue_tokens=config.queue_tokens,
        most_errors=config.max_device_errors,
        hang_seconds=config.hang_seconds,
    )
    oldest = ""
    try:
        bundle = await asyncio.to_thread(load_bundle, path)
        oldest = bundle.manifest.oldest_onnxruntime
        limits = token_limits(config, bundle.manifest.limits)
        manifest = bundle.manifest.model_copy(update={"name": name, "version": version, "limits": limits})
        bundle = replace(bundle, manifest=manifest)
        pool, metrics = await _start(bundle, options, hosts, on_change)
        _compare_runtime(name, oldest, pool.device)
    except (BundleError, DeviceError, WorkerLostError) as error:
        _compare_runtime(name, oldest, None)
        raise LoadError(str(error)) from None
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        remedy = "give it more memory" if config.max_rows is None else "lower --max-rows, or give it more memory"
        raise LoadError(f"there is not enough memory to load it; {remedy}") from None
    # Twice what the engines can run: they never wait for a batch, and what it has in the queue is gone in a moment.
    window = max(1, min(2 * pool.rows * pool.engines, options.queue_size // 2))
    scorer = Scorer(pool.scorer, manifest.shape, options.queue_size, metrics)
    most = request_limits(config, pool.rows, manifest.shape)
    served = ServedVersion(ServedModel(bundle, pool, scorer, str(pool.device), window, most, metrics.unseen))
    return LoadedVersion(served, pool, scorer, metrics, time.monotonic() - started)


def _compare_runtime(model: str, oldest: str, device: Device | None) -> None:
    """Warns where ONNX Runtime is older than any that such bundles were checked with, unless it runs them on a GPU.

    There releases are others: they come later than for CPUs, and lack other things.

    Args:
        oldest: as the manifest says; empty where it doesn't.
        device: None where the model could not be loaded.
    """
    if device is not None and device.kind != "cpu":
        return
    if oldest and _release(onnxruntime.__version__) < _release(oldest):
        log.warning(
            "this onnxruntime is older than any that the bundle was checked with: it may fail, or answer otherwise",
            model=model,
            onnxruntime=onnxruntime.__version__,
            oldest_checked=oldest,
        )


def _release(version: str) -> list[int]:
    """[1, 32] of "1.32.0"."""
    return [int(part) for part in version.split(".")[:2]]


async def _start(
    bundle: Bundle, options: EngineOptions, hosts: Sequence[Host] | None, on_change: Callable[[], None]
) -> tuple[EnginePool, ModelMetrics]:
    """Engines that have run. A worker that ends meanwhile is not taken for the bundle's fault, unless all do.

    Raises:
        BundleError, DeviceError, WorkerLostError: as EnginePool.start.
    """
    for attempt in range(1, MOST_ATTEMPTS + 1):
        metrics = ModelMetrics()
        pool = EnginePool(bundle, options, metrics, hosts, on_change)
        try:
            await pool.start()
        except WorkerLostError as error:
            if attempt == MOST_ATTEMPTS:
                raise
            log.warning("loads once more", model=bundle.manifest.name, reason=str(error))
            await asyncio.sleep(RETRY_SECONDS)
        else:
            break
    return pool, metrics
