"""Waits for conditions that another process, thread or task brings about, however slow the machine is."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator

PATIENCE = 60.0  # seconds; only a failing test waits this long
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.02  # seconds
MIN_CHECKS = 100  # even if the whole machine stalls for longer than PATIENCE


def until(condition: Callable[[], object], otherwise: Callable[[], object] = lambda: "") -> None:
    """Waits until a condition holds.

    Args:
        condition: Checks the condition.
        otherwise: Returns the state for the error message after a timeout.
    """
    pauses = _pauses(otherwise)
    while not condition():
        time.sleep(next(pauses))


async def until_async(
    condition: Callable[[], object | Awaitable[object]], otherwise: Callable[[], object] = lambda: ""
) -> None:
    """Like `until`, but lets other tasks run; the condition may be a coroutine function."""
    pauses = _pauses(otherwise)
    while not await _result(condition()):  # noqa: ASYNC110  # the condition may change outside this event loop
        await asyncio.sleep(next(pauses))


async def _result(checked: object | Awaitable[object]) -> object:
    return await checked if inspect.isawaitable(checked) else checked


def _pauses(otherwise: Callable[[], object]) -> Iterator[float]:
    """Yields the pauses between checks in seconds, short at first."""
    deadline, checks, pause = time.monotonic() + PATIENCE, 0, FIRST_PAUSE
    while time.monotonic() < deadline or checks < MIN_CHECKS:
        yield pause
        checks += 1
        pause = min(2 * pause, LONGEST_PAUSE)
    raise AssertionError(f"the condition did not hold in time: {otherwise()}")
