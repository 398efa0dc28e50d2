"""What tests wait with: it looks until something is true, and gives up in words where it never is."""

import asyncio

import pytest

from tests.support import waiting
from tests.support.waiting import until, until_async


class Slow:
    """True at the third look."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> bool:
        self.looks += 1
        return self.looks == 3


async def test_it_looks_until_it_is_true() -> None:
    slow = Slow()
    until(slow)
    assert slow.looks == 3
    slow = Slow()
    await until_async(slow)
    assert slow.looks == 3

    async def looks() -> bool:
        return slow()

    slow = Slow()
    await until_async(looks)
    assert slow.looks == 3


async def test_others_run_meanwhile() -> None:
    happened = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, happened.set)
    await until_async(happened.is_set)


async def test_it_gives_up_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE", 0.01)
    monkeypatch.setattr(waiting, "LONGEST_PAUSE", 0.001)
    looks: list[None] = []
    with pytest.raises(AssertionError, match="the condition did not hold in time: 5 of 6 are here"):
        until(lambda: looks.append(None), lambda: "5 of 6 are here")
    assert len(looks) > waiting.MIN_CHECKS
    with pytest.raises(AssertionError, match="the condition did not hold in time"):
        await until_async(lambda: False)
