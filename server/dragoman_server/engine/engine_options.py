"""How a model's engines are set up: how many there are, and what each may use."""

from dataclasses import dataclass, field, replace

from dragoman_server.bundle.manifest import Manifest
from dragoman_server.config import ServerConfig
from dragoman_server.engine.scheduler import SchedulerOptions
from dragoman_server.machine import usable_cpus
from dragoman_server.runtime.device import Device

LARGE_WEIGHTS = 150_000_000  # bytes from which reading the weights takes so long that several threads should share it
MAX_THREADS = 8  # of one engine
SMALL_MODEL = 30_000_000  # a small model has fewer parameters
GPU_TURN_ROWS = 64  # up to which a step of a GPU takes about as long as one of a single row


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a model's engines are set up.

    Attributes:
        device: Device option, see choose_device.
        engines: Number of engines, None to choose by device, cores and model size.
        threads_per_engine: Threads of each engine, None to divide the cores evenly.
        cores: Cores that this process may use.
        cuda_graphs: Maximum number of steps that are recorded on a GPU.
        max_rows: Cache rows of each engine, None for the default, or fewer if the memory allows no more.
        memory_budget: Bytes that the process may use on the device, weights included; None for what is free.
        scheduling: How jobs wait and start.
        max_errors: Errors of a device in a row that end an engine.
        hang_seconds: Time after which a turn of an engine counts as hanging.
    """

    device: str = "auto"
    engines: int | None = None
    threads_per_engine: int | None = None
    cores: int = 1
    cuda_graphs: int = 128
    max_rows: int | None = None
    memory_budget: int | None = None
    scheduling: SchedulerOptions = field(default_factory=SchedulerOptions)
    max_errors: int = 3
    hang_seconds: float = 60.0


def engine_options(config: ServerConfig) -> EngineOptions:
    """Returns how the server's options set up the engines of one model, on the cores of this process."""
    return EngineOptions(
        device=config.device,
        engines=config.engines,
        threads_per_engine=config.threads_per_engine,
        cores=usable_cpus(),
        cuda_graphs=config.cuda_graphs,
        max_rows=config.max_rows,
        memory_budget=config.memory_budget,
        scheduling=SchedulerOptions(
            queue_size=config.queue_size, queue_tokens=config.queue_tokens, batch_slowdown=config.batch_slowdown
        ),
        max_errors=config.max_device_errors,
        hang_seconds=config.hang_seconds,
    )


def choose_engines(options: EngineOptions, device: Device, weights: int) -> tuple[int, int]:
    """Returns the number of engines, and of threads in each.

    On a GPU one engine feeds the device. On a CPU the choice depends on how much a step reads (all measured on two
    cores): the threads of one engine meet after every operator, and wait for each other if one of them has lost its
    core to the event loop. So one engine for each core serves a tenth more with 5 million parameters; and with 77
    million in int8 (78 MB) a seventh more alone, as much at 8 requests, and 1.2 to 1.5 times as much at 64. In fp32
    (308 MB) an engine whose threads share the reading is a tenth faster up to 16 requests. If there are more cores
    than such an engine can use, they are divided evenly.

    Args:
        weights: Bytes of the model's weights.
    """
    if device.kind == "cuda":
        return options.engines or 1, options.threads_per_engine or 1
    if options.engines is not None:
        return options.engines, options.threads_per_engine or max(1, options.cores // options.engines)
    threads = options.threads_per_engine
    if threads is None:
        threads = 1 if weights < LARGE_WEIGHTS else options.cores // -(-options.cores // MAX_THREADS)
    return max(1, options.cores // threads), threads


def weight_bytes(manifest: Manifest) -> int:
    """Returns the approximate size of the weights: they are by far the largest part of a bundle."""
    return sum(file.bytes for file in manifest.files.values())


def scheduling_for(
    options: EngineOptions, manifest: Manifest, rows: int, device: Device, shared: bool
) -> SchedulerOptions:
    """Returns the scheduler's options for the engines of one model.

    Args:
        rows: Cache rows of each engine; a quarter of them stay free, so that no job waits for a row while the last
            engine rests.
        shared: Whether there is a single-threaded engine for each core, so one shares its core with the event loop.
    """
    scheduling = options.scheduling
    share = shared and manifest.shape.parameters < SMALL_MODEL
    rows_per_engine = max(1, min(scheduling.min_rows_per_engine, rows // 4)) if share else 1
    single_rows = max(1, min(scheduling.min_single_rows_per_engine, rows - rows // 4)) if share else 1
    return replace(
        scheduling,
        min_source_tokens=0 if device.kind == "cpu" else manifest.limits.max_source_tokens,
        min_rows_per_engine=rows_per_engine,
        min_single_rows_per_engine=single_rows,
        turn_rows=scheduling.turn_rows if device.kind == "cpu" else GPU_TURN_ROWS,
    )
