"""Loads a version of a model until it can answer, and closes it again."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnxruntime
import structlog

from dragoman_server.bundle.load import Bundle, BundleError, load_bundle
from dragoman_server.config import ServerConfig
from dragoman_server.engine.engine_options import EngineOptions, engine_options
from dragoman_server.engine.host import Host
from dragoman_server.engine.pool import EnginePool
from dragoman_server.engine.scorer import Scorer
from dragoman_server.messages.default_options import read_defaults
from dragoman_server.messages.limits import request_limits, token_limits
from dragoman_server.messages.served_model import ServedModel
from dragoman_server.metrics import ModelMetrics
from dragoman_server.models.registry import ServedVersion
from dragoman_server.runtime.device import Device, DeviceError, WorkerLostError, is_out_of_memory

log = structlog.get_logger()

MAX_ATTEMPTS = 3  # loads, as long as workers die
RETRY_SECONDS = 0.2  # until the death of a worker is noticed


class LoadError(Exception):
    """The version can't be served; the message is one sentence on why."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadedVersion:
    """A version whose engines run.

    Attributes:
        served: Its entry in the registry.
        metrics: The metrics of its engines and scorer.
        seconds: Loading time.
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
        """Ends its threads; unanswered requests end with EngineUnavailableError.

        Args:
            seconds: See EnginePool.close.
        """
        await asyncio.gather(self.scorer.close(), self.pool.close(seconds))

    async def retire(self, seconds: float) -> None:
        """Waits at most `seconds` until no call uses the version, and closes it."""
        log.info("retiring", model=self.name, version=self.version, calls=self.served.calls)
        try:
            if self.served.calls:
                await asyncio.wait_for(self.served.idle(), seconds)
        except TimeoutError:
            log.warning(
                "calls of a retired version did not finish in time and end with UNAVAILABLE",
                model=self.name,
                version=self.version,
                calls=self.served.calls,
            )
        await self.close()


async def load_version(
    path: Path,
    name: str,
    version: str,
    config: ServerConfig,
    on_change: Callable[[], None],
    hosts: Sequence[Host] | None = None,
) -> LoadedVersion:
    """Loads a bundle and warms it up with the shapes that it will serve.

    Args:
        name, version: The names to serve it under; they replace those in its manifest.
        config: The server's options, with those of this model.
        on_change, hosts: See EnginePool.

    Raises:
        LoadError: The bundle or the device can't be used, or memory is insufficient.
    """
    started = time.monotonic()
    options = engine_options(config)
    oldest = ""
    try:
        bundle = await asyncio.to_thread(load_bundle, path)
        oldest = bundle.manifest.oldest_onnxruntime
        limits = token_limits(config, bundle.manifest.limits)
        manifest = bundle.manifest.model_copy(update={"name": name, "version": version, "limits": limits})
        bundle = replace(bundle, manifest=manifest)
        defaults = read_defaults(manifest)
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
    scorer = Scorer(pool.scorer, manifest.shape, config.queue_size, metrics)
    request = request_limits(config, pool.rows, manifest.shape)
    # In a thread, since it decodes every token of the vocabulary, which takes a second for 250,000.
    model = await asyncio.to_thread(
        ServedModel, bundle, pool, scorer, str(pool.device), request, metrics.unseen, defaults
    )
    return LoadedVersion(ServedVersion(model), pool, scorer, metrics, time.monotonic() - started)


def _compare_runtime(model: str, oldest: str, device: Device | None) -> None:
    """Warns if ONNX Runtime is older than the oldest release that the bundle was checked with, except on a GPU.

    GPU releases differ: they come later than those for CPUs, and lack other features.

    Args:
        oldest: The oldest checked release, from the manifest; may be empty.
        device: None if the model could not be loaded.
    """
    if device is not None and device.kind != "cpu":
        return
    if oldest and _release(onnxruntime.__version__) < _release(oldest):
        log.warning(
            "onnxruntime is older than all releases the bundle was checked with: it may fail or answer differently",
            model=model,
            onnxruntime=onnxruntime.__version__,
            oldest_checked=oldest,
        )


def _release(version: str) -> list[int]:
    """Returns [1, 32] for "1.32.0"."""
    return [int(part) for part in version.split(".")[:2]]


async def _start(
    bundle: Bundle, options: EngineOptions, hosts: Sequence[Host] | None, on_change: Callable[[], None]
) -> tuple[EnginePool, ModelMetrics]:
    """Starts an engine pool. If a worker dies, it tries again: that need not be the bundle's fault.

    Raises:
        BundleError, DeviceError, WorkerLostError: See EnginePool.start.
    """
    for attempt in range(1, MAX_ATTEMPTS + 1):
        metrics = ModelMetrics()
        pool = EnginePool(bundle, options, metrics, hosts, on_change)
        try:
            await pool.start()
        except WorkerLostError as error:
            if attempt == MAX_ATTEMPTS:
                raise
            log.warning("retrying the load", model=bundle.manifest.name, reason=str(error))
            await asyncio.sleep(RETRY_SECONDS)
        else:
            break
    return pool, metrics
