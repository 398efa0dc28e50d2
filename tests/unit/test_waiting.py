"""Waiting for a condition in tests, and the error after a timeout."""

import asyncio

import pytest

from tests.support import waiting
from tests.support.waiting import until, until_async


class Slow:
    """A condition that holds at the third check."""

    def __init__(self) -> None:
        self.checks = 0

    def __call__(self) -> bool:
        self.checks += 1
        return self.checks == 3


async def test_waits_until_the_condition_holds() -> None:
    slow = Slow()
    until(slow)
    assert slow.checks == 3
    slow = Slow()
    await until_async(slow)
    assert slow.checks == 3

    async def checks() -> bool:
        return slow()

    slow = Slow()
    await until_async(checks)
    assert slow.checks == 3


async def test_other_tasks_run_meanwhile() -> None:
    happened = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, happened.set)
    await until_async(happened.is_set)


async def test_timeout_reports_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE", 0.01)
    monkeypatch.setattr(waiting, "LONGEST_PAUSE", 0.001)
    checks: list[None] = []
    with pytest.raises(AssertionError, match="the condition did not hold in time: 5 of 6 are here"):
        until(lambda: checks.append(None), lambda: "5 of 6 are here")
    assert len(checks) > waiting.MIN_CHECKS
    with pytest.raises(AssertionError, match="the condition did not hold in time"):
        await until_async(lambda: False)
