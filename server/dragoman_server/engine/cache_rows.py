"""How many cache rows each engine of a model gets."""

from collections.abc import Sequence

import structlog

from dragoman_server.bundle.load import Bundle
from dragoman_server.engine.encoder_batches import PADDING_SHARE
from dragoman_server.engine.host import HostedModel
from dragoman_server.engine.layout import EngineOptions
from dragoman_server.engine.memory_budget import DEFAULT_ROWS, Memory, MemoryBudgetError, plan_rows
from dragoman_server.runtime.device import Device, DeviceError
from dragoman_server.runtime.device_memory import row_bytes, working_bytes

log = structlog.get_logger()


def rows_for(bundle: Bundle, options: EngineOptions, models: Sequence[HostedModel], used: int = 0) -> int:
    """Rows for each engine, by the memory that is left now that the weights are loaded.

    Args:
        models: the bundle, wherever it is loaded. On a CPU all share the machine's memory; each GPU has its own, and
            the one with the least decides.
        used: bytes of the machine's memory that the server uses beside what they tell.

    Raises:
        DeviceError: it does not suffice.
    """
    places: dict[Device, list[HostedModel]] = {}
    for model in models:
        places.setdefault(model.device, []).append(model)
    return min(_rows_of(bundle, options, sharing, used) for sharing in places.values())


def _rows_of(bundle: Bundle, options: EngineOptions, models: Sequence[HostedModel], used: int) -> int:
    manifest, device, itemsize = bundle.manifest, models[0].device, models[0].itemsize
    engines = sum(model.engines for model in models)
    tokens = int(options.scheduling.encode_tokens / (1 - PADDING_SHARE))
    working = engines * working_bytes(manifest, tokens, options.max_rows or DEFAULT_ROWS, itemsize)
    told = [model.memory() for model in models]
    free, place, _ = told[-1]
    taken = sum(each for *_, each in told) + used if device.kind == "cpu" else told[-1][2]
    memory = Memory(free, place, taken, options.memory_budget)
    try:
        plan = plan_rows(memory, working, row_bytes(manifest, itemsize), engines, options.max_rows)
    except MemoryBudgetError as error:
        raise DeviceError(str(error)) from None
    log.info("memory", model=manifest.name, device=str(device), sum=plan.explanation)
    return plan.rows
