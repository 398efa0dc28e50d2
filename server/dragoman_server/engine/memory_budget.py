"""How many cache rows the memory allows. Pure arithmetic, and its explanation."""

from dataclasses import dataclass

from dragoman_server.machine import format_bytes

# Of an engine, where nobody asks for more. Many more make a CPU no faster; but with as many a batch of 64 is decoded
# at once beside the rows that are kept for single calls, which gave a large model in one engine a quarter more tokens.
DEFAULT_ROWS = 80
SPARE = 10  # one byte of so many that are free stays free, where nobody gives a budget


class MemoryBudgetError(Exception):
    """There is not enough memory for the rows that are needed; the message does the sum in one sentence."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What there is.

    Attributes:
        free: bytes that can still be had, weights loaded,
        place: and where: "machine", "container" or "GPU".
        used: bytes that the process has there already.
        budget: bytes that it may have there in all; None for what is free.
    """

    free: int
    place: str
    used: int
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of the memory.

    Attributes:
        rows: of each engine.
        explanation: for the log.
    """

    rows: int
    explanation: str


def plan_rows(memory: Memory, working: int, row: int, engines: int, asked: int | None) -> Plan:
    """Shares out what memory is left.

    Args:
        working: bytes for what engines compute, all of them together.
        row: bytes of one cache row.
        asked: rows of each engine; None for DEFAULT_ROWS, or what there is room for.

    Raises:
        MemoryBudgetError: there is no room for the rows asked for, or not even for one in each engine.
    """
    explained, left = _left(memory, working)
    fitting = max(left, 0) // (row * engines)
    rows = min(fitting, DEFAULT_ROWS) if asked is None else asked
    each = "1 engine" if engines == 1 else f"each of {engines} engines"
    if rows < 1 or rows > fitting:
        wanted = f"{rows:,} rows" if asked else "even one cache row"
        remedy = "lower --max-rows, or allow more with --memory-budget" if asked else "allow more with --memory-budget"
        if memory.budget is None:
            remedy = "lower --max-rows, or give it more memory" if asked else "give it more memory"
        room = f"there is room for {fitting:,}" if fitting else "there is room for none"
        needed = format_bytes(max(rows, 1) * row * engines)
        raise MemoryBudgetError(f"not enough memory for {wanted} in {each}, {needed}: {explained}, so {room}; {remedy}")
    reason = "as --max-rows says" if asked else "the default" if rows == DEFAULT_ROWS else "what there is room for"
    total = format_bytes(rows * row * engines)
    what = "1 cache row" if rows == 1 else f"{rows} cache rows"
    return Plan(rows, f"{explained}; {each} gets {what} ({reason}) of {format_bytes(row)}, together {total}")


def _left(memory: Memory, working: int) -> tuple[str, int]:
    """What is left for rows, explained."""
    kept = f"{format_bytes(working)} are kept for computing"
    open_to_all = memory.free - memory.free // SPARE
    if memory.budget is not None and memory.budget - memory.used <= memory.free:
        left = memory.budget - memory.used - working
        start = f"of the budget of {format_bytes(memory.budget)} {format_bytes(memory.used)} are in use"
    else:
        left = open_to_all - working
        spare = format_bytes(memory.free // SPARE)
        start = f"of {format_bytes(memory.free)} that the {memory.place} has free {spare} stay free"
        if memory.budget is not None:
            start = f"the {memory.place} has less than the budget of {format_bytes(memory.budget)}; {start}"
    rest = f"which leaves {format_bytes(left)} for cache rows" if left > 0 else "which leaves nothing for cache rows"
    return f"{start} and {kept}, {rest}", left
