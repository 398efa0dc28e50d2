"""A server over a real engine whose steps are held up."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman_server.engine.pool import EnginePool
from tests.support.counting_engines import CountingRuntime, at_rest, pool_of
from tests.support.fake_engines import FakeServer, serve_fake
from tests.support.waiting import until_async


@asynccontextmanager
async def serve_pool(
    rows: int, queue_size: int = 1000
) -> AsyncIterator[tuple[FakeServer, EnginePool, CountingRuntime]]:
    """A server over one real engine, which is in an endless step until its gate opens."""
    runtime = CountingRuntime(rows)
    runtime.gate.clear()
    async with pool_of(runtime, queue_size=queue_size, max_rows=rows) as pool, serve_fake(pool=pool) as server:
        yield server, pool, runtime
        runtime.gate.set()
        await until_async(lambda: at_rest(pool))


def waiting(pool: EnginePool) -> int:
    """Returns the number of jobs in the queue."""
    assert pool._queue is not None
    return pool._queue.scheduler.waiting
