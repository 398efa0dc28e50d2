"""Waiting for what happens elsewhere, in another process, thread or task, however slow the machine is."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator

PATIENCE = 60.0  # seconds; only a test that fails waits so long
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.02  # seconds
LEAST_LOOKS = 100  # also where the whole machine stood still for longer than the patience lasts


def until(true: Callable[[], object], otherwise: Callable[[], object] = lambda: "") -> None:
    """Waits until something is true.

    Args:
        true: looks whether it is.
        otherwise: how things stand, for the message when it never comes true.
    """
    pauses = _pauses(otherwise)
    while not true():
        time.sleep(next(pauses))


async def until_async(
    true: Callable[[], object | Awaitable[object]], otherwise: Callable[[], object] = lambda: ""
) -> None:
    """Does the same and lets other tasks run; what looks may be a coroutine function."""
    pauses = _pauses(otherwise)
    while not await _result(true()):  # noqa: ASYNC110  # it need not be of this event loop
        await asyncio.sleep(next(pauses))


async def _result(looked: object | Awaitable[object]) -> object:
    return await looked if inspect.isawaitable(looked) else looked


def _pauses(otherwise: Callable[[], object]) -> Iterator[float]:
    """Seconds between two looks: few at first, as most things happen at once."""
    deadline, looks, pause = time.monotonic() + PATIENCE, 0, FIRST_PAUSE
    while time.monotonic() < deadline or looks < LEAST_LOOKS:
        yield pause
        looks += 1
        pause = min(2 * pause, LONGEST_PAUSE)
    raise AssertionError(f"it did not happen in time: {otherwise()}")
