"""How a model's engines are set up: how many there are, and what each may use."""

from dataclasses import dataclass

from server.runtime.device import Device

# From this size on the operators of a step are large enough for several threads to compute one of them together.
LARGE_MODEL = 30_000_000  # parameters
MOST_THREADS = 8  # of one engine
# Measured with a model of 5 million parameters on two cores: up to eight requests one engine answers a tenth more than
# two, in three quarters of the processor's time.
GROUP = 8


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a model's engines are set up.

    Attributes:
        device: see choose_device.
        engines: None chooses by device, cores and model size.
        threads_per_engine: None shares the cores out evenly.
        cores: that this process may use.
        cuda_graphs: the most steps that are recorded on a GPU.
        max_rows: cache rows of each engine, the most it decodes at once; None for what suits, or there is room for.
        memory_budget: bytes that the process may have on the device, weights included; None for what is free.
        queue_size: requests of each priority that may wait,
        queue_tokens: and their source tokens.
        gather_share, gather_seconds: see Scheduler.
        group: see Scheduler; of engines of one process that have one thread each.
        encode_tokens: see Scheduler.
        most_errors: see Engine.
        hang_seconds: a turn of an engine that takes so long never ends.
    """

    device: str = "auto"
    engines: int | None = None
    threads_per_engine: int | None = None
    cores: int = 1
    cuda_graphs: int = 128
    max_rows: int | None = None
    memory_budget: int | None = None
    queue_size: int = 1024
    queue_tokens: int = 262_144
    gather_share: float = 0.5
    gather_seconds: float = 0.005
    group: int = GROUP
    encode_tokens: int = 4096
    most_errors: int = 3
    hang_seconds: float = 60.0


def layout(options: EngineOptions, device: Device, parameters: int) -> tuple[int, int]:
    """How many engines, and threads in each, where the options leave it open.

    On a GPU one engine feeds the device. On a CPU it depends on the model (both measured on two cores): threads of one
    engine meet after every operator, so that a small model (5 million parameters) is served about a tenth faster with
    one engine per core, alone and at 64 requests; a large one (77 million) is a third faster at 8 rows in one engine
    whose threads share the reading of the weights, and no slower at 64. Where there are more cores than one engine
    makes use of, they are shared out evenly.

    Args:
        parameters: of the model.
    """
    if device.kind == "cuda":
        return options.engines or 1, options.threads_per_engine or 1
    if options.engines is not None:
        return options.engines, options.threads_per_engine or max(1, options.cores // options.engines)
    threads = options.threads_per_engine
    if threads is None:
        threads = 1 if parameters < LARGE_MODEL else options.cores // -(-options.cores // MOST_THREADS)
    return max(1, options.cores // threads), threads
