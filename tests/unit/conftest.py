"""Fixtures of the unit tests."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.clock import Clock
from tests.support.fake_engines import FakeServer, serve_fake


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FakeServer]:
    """A gRPC server over fake engines that answer with the reversed source."""
    async with serve_fake() as server:
        yield server


@pytest.fixture
def clock() -> Clock:
    """A clock that the test advances."""
    return Clock()


@pytest.fixture(autouse=True)
def untrimmed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps models that are unloaded from trimming the memory of this process, whose objects take a second to scan."""
    monkeypatch.setattr("dragoman_server.models.manager.trim_memory", lambda: None)
