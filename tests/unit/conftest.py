"""Fixtures of the unit tests."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.fake_engines import FakeServer, serve_fake


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FakeServer]:
    """A gRPC server over fake engines that answer with the reversed source."""
    async with serve_fake() as server:
        yield server
