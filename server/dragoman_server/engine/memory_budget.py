"""Computes how many cache rows the memory allows, and explains the sum."""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from dragoman_server.bundle.load import Bundle
from dragoman_server.engine.encoder_batches import PADDING_SHARE
from dragoman_server.engine.engine_options import EngineOptions
from dragoman_server.engine.host import LoadedModel
from dragoman_server.machine import format_bytes
from dragoman_server.runtime.device import Device, DeviceError
from dragoman_server.runtime.device_memory import row_bytes, working_bytes
from dragoman_server.runtime.runtime import ENCODED_TOKENS

log = structlog.get_logger()

# Rows of an engine if --max-rows is not set. Many more make a CPU no faster; but with as many a batch of 64 is decoded
# at once beside the rows kept for single calls, which gave a large model in one engine a quarter more tokens.
DEFAULT_ROWS = 80
SPARE = 10  # without a budget, one of this many free bytes stays free


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one machine, container or GPU, with the weights loaded.

    Attributes:
        free: Bytes that the process may still allocate.
        place: "machine", "container" or "GPU".
        used: Bytes that the process uses.
        budget: Bytes that the process may use in all, None for what is free.
    """

    free: int
    place: str
    used: int
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """How the memory is used.

    Attributes:
        rows: Cache rows of each engine.
        explanation: The sum, for the log.
    """

    rows: int
    explanation: str


def rows_for(bundle: Bundle, options: EngineOptions, models: Sequence[LoadedModel], used: int = 0) -> int:
    """Returns the cache rows of each engine that the memory allows beside the loaded weights.

    Args:
        models: The bundle, wherever it is loaded. On a CPU all share the machine's memory; each GPU has its own, and
            the one with the least decides.
        used: Bytes of the machine's memory that the server uses in addition to what the models report.

    Raises:
        DeviceError: There is not enough memory.
    """
    by_device: dict[Device, list[LoadedModel]] = {}
    for model in models:
        by_device.setdefault(model.device, []).append(model)
    return min(_rows_on_device(bundle, options, sharing, used) for sharing in by_device.values())


def plan_rows(memory: Memory, working: int, row: int, engines: int, requested: int | None) -> Plan:
    """Divides the memory among the engines.

    Args:
        working: Bytes of workspace of all engines together.
        row: Bytes of one cache row.
        requested: Rows of each engine; None for DEFAULT_ROWS, or fewer if the memory allows no more.

    Raises:
        DeviceError: The memory does not allow the requested rows, or not even one for each engine.
    """
    explanation, left = _left(memory, working)
    fitting = max(left, 0) // (row * engines)
    rows = min(fitting, DEFAULT_ROWS) if requested is None else requested
    each = "1 engine" if engines == 1 else f"each of {engines} engines"
    if rows < 1 or rows > fitting:
        shortage = f"{rows:,} rows" if requested else "even one cache row"
        remedy = "give it more memory" if memory.budget is None else "allow more with --memory-budget"
        if requested:
            remedy = f"lower --max-rows, or {remedy}"
        room = f"there is room for {fitting:,}" if fitting else "there is room for none"
        needed = format_bytes(max(rows, 1) * row * engines)
        raise DeviceError(f"not enough memory for {shortage} in {each}, {needed}: {explanation}, so {room}; {remedy}")
    reason = "as --max-rows says" if requested else "the default" if rows == DEFAULT_ROWS else "what there is room for"
    total = format_bytes(rows * row * engines)
    cache_rows = "1 cache row" if rows == 1 else f"{rows} cache rows"
    return Plan(rows, f"{explanation}; {each} gets {cache_rows} ({reason}) of {format_bytes(row)}, together {total}")


def _rows_on_device(bundle: Bundle, options: EngineOptions, models: Sequence[LoadedModel], used: int) -> int:
    manifest, device, itemsize = bundle.manifest, models[0].device, models[0].itemsize
    engines = sum(model.engines for model in models)
    tokens = int(options.scheduling.encode_tokens / (1 - PADDING_SHARE)) if device.kind == "cuda" else ENCODED_TOKENS
    working = engines * working_bytes(manifest, tokens, options.max_rows or DEFAULT_ROWS, itemsize)
    memories = [model.memory() for model in models]
    last = memories[-1]
    if device.kind == "cpu":
        reserved = sum(memory.reserved for memory in memories)
        used += sum(memory.used for memory in memories) + reserved
        memory = Memory(max(last.free - reserved, 0), last.place, used, options.memory_budget)
    else:
        memory = Memory(last.free, last.place, last.used, options.memory_budget)
    plan = plan_rows(memory, working, row_bytes(manifest, itemsize), engines, options.max_rows)
    log.info("memory", model=manifest.name, device=str(device), sum=plan.explanation)
    return plan.rows


def _left(memory: Memory, working: int) -> tuple[str, int]:
    """Returns an explanation, and the bytes left for cache rows."""
    kept = f"{format_bytes(working)} are kept for computing"
    available = memory.free - memory.free // SPARE
    if memory.budget is not None and memory.budget - memory.used <= memory.free:
        left = memory.budget - memory.used - working
        start = f"of the budget of {format_bytes(memory.budget)} {format_bytes(memory.used)} are in use"
    else:
        left = available - working
        spare = format_bytes(memory.free // SPARE)
        start = f"of {format_bytes(memory.free)} that the {memory.place} has free {spare} stay free"
        if memory.budget is not None:
            start = f"the {memory.place} has less than the budget of {format_bytes(memory.budget)}; {start}"
    rest = f"which leaves {format_bytes(left)} for cache rows" if left > 0 else "which leaves nothing for cache rows"
    return f"{start} and {kept}, {rest}", left
