"""Waiting for what happens elsewhere, in another process, thread or task, however slow the machine is."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

PATIENCE = 60.0  # seconds; only a test that fails waits so long
BETWEEN_LOOKS = 0.01  # seconds


def until(true: Callable[[], object], seconds: float = PATIENCE, otherwise: Callable[[], object] = lambda: "") -> None:
    """Waits until something is true.

    Args:
        true: looks whether it is.
        seconds: how long to wait at most.
        otherwise: how things stand, for the message when it never comes true.
    """
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"it did not happen in time: {otherwise()}"
        time.sleep(BETWEEN_LOOKS)


async def until_async(
    true: Callable[[], object | Awaitable[object]],
    seconds: float = PATIENCE,
    otherwise: Callable[[], object] = lambda: "",
) -> None:
    """Does the same and lets other tasks run; what looks may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while not await _result(true()):
        assert time.monotonic() < deadline, f"it did not happen in time: {otherwise()}"
        await asyncio.sleep(BETWEEN_LOOKS)


async def _result(looked: object | Awaitable[object]) -> object:
    return await looked if inspect.isawaitable(looked) else looked
