"""Engines that are lost or hang, over fake runtimes: errors of their requests, and restarts."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman_server.core.errors import EngineUnavailableError
from dragoman_server.engine import supervisor
from dragoman_server.engine.engine_options import EngineOptions
from dragoman_server.engine.pool import EnginePool
from dragoman_server.engine.watchdog import Watchdog
from dragoman_server.models import loading
from dragoman_server.runtime.device import WorkerLostError
from tests.support.counting_engines import CountingHost, CountingRuntime, Metrics, at_rest, eager, request
from tests.support.fake_engines import letters_bundle
from tests.support.waiting import PATIENCE, until_async


@pytest.fixture(autouse=True)
def no_long_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "MIN_DELAY_SECONDS", 0.01)


@asynccontextmanager
async def pool_on(
    *hosts: CountingHost, on_change: Callable[[], None] = lambda: None, **options: Any
) -> AsyncIterator[EnginePool]:
    pool = EnginePool(
        letters_bundle(),
        EngineOptions(scheduling=eager(), **options),
        Metrics(),
        hosts,
        on_change=on_change,
    )
    await pool.start()
    try:
        yield pool
    finally:
        for host in hosts:
            for runtime in host.runtimes:
                runtime.gate.set()
        await pool.close()


def host(runtimes: int = 1, fresh: Callable[[], CountingRuntime] = lambda: CountingRuntime(4)) -> CountingHost:
    return CountingHost(*(CountingRuntime(4) for _ in range(runtimes)), fresh=fresh)


def running_engines(pool: EnginePool) -> int:
    assert pool._queue is not None
    return len(pool._queue.scheduler.active)


async def answer(pool: EnginePool, *ids: int) -> list[int]:
    return (await pool.submit(request(*ids)).result()).hypotheses[0].ids


async def test_requests_of_a_lost_worker_fail_and_the_other_worker_serves_the_rest() -> None:
    changes: list[bool] = []
    may_restart = threading.Event()

    def fresh() -> CountingRuntime:
        assert may_restart.wait(PATIENCE)
        return CountingRuntime(4)

    lost, other = host(fresh=fresh), host()
    async with pool_on(lost, other, on_change=lambda: changes.append(pool.available)) as pool:
        for each in (lost, other):
            each.runtimes[0].gate.clear()
        running = [pool.submit(request(5 + i)) for i in range(2)]
        await until_async(lambda: lost.runtimes[0].encoded and other.runtimes[0].encoded)
        waiting = [pool.submit(request(20 + i)) for i in range(6)]
        lost.runtimes[0].errors = [WorkerLostError("killed")]
        for each in (lost, other):
            each.runtimes[0].gate.set()
        answers = await asyncio.gather(*(each.result() for each in running), return_exceptions=True)
        assert sorted(type(each).__name__ for each in answers) == ["EngineUnavailableError", "GenerationResult"]
        assert [(await each.result()).hypotheses[0].ids for each in waiting] == [[20 + i] for i in range(6)]
        assert pool.available
        may_restart.set()
        await until_async(lambda: running_engines(pool) == 2)
        assert (lost.loads, other.loads, lost.broke) == (2, 1, 0)
        assert lost.runtimes[0].encoded == []
        for each in (lost, other):  # the new engine works, too
            each.runtimes[0].gate.clear()
        more = [pool.submit(request(5 + i)) for i in range(2)]
        await until_async(lambda: lost.runtimes[0].encoded and other.runtimes[0].encoded)
        for each in (lost, other):
            each.runtimes[0].gate.set()
        assert [(await each.result()).hypotheses[0].ids for each in more] == [[5], [6]]
        await until_async(lambda: at_rest(pool))
    assert all(changes), "there was always one"
    assert not pool.failed.is_set()


async def test_an_idle_worker_that_is_lost_is_restarted() -> None:
    here = host(runtimes=2)
    changes: list[bool] = []
    async with pool_on(here, on_change=lambda: changes.append(pool.available)) as pool:
        here.lost()
        await until_async(lambda: here.loads == 2 and pool.available)
        assert await answer(pool, 7, 8) == [8, 7]
    assert False in changes, "nobody was there meanwhile"


async def test_without_engines_waiting_requests_end_and_new_ones_are_refused() -> None:
    blocked = threading.Event()

    def fresh() -> CountingRuntime:
        blocked.wait(10)
        return CountingRuntime(4)

    here = CountingHost(CountingRuntime(1), fresh=fresh)
    async with pool_on(here) as pool:
        runtime = here.runtimes[0]
        runtime.gate.clear()
        running = pool.submit(request(5))
        await until_async(lambda: runtime.encoded)
        waiting = pool.submit(request(6))
        runtime.errors = [WorkerLostError("killed")]
        runtime.gate.set()
        for generation in (running, waiting):
            with pytest.raises(EngineUnavailableError, match="worker process"):
                await generation.result()
        assert not pool.available
        with pytest.raises(EngineUnavailableError, match="being restarted"):
            pool.submit(request(7))
        blocked.set()
        await until_async(lambda: pool.available)
        assert await answer(pool, 7) == [7]


async def test_a_worker_that_only_raises_errors_is_restarted() -> None:
    here = host(runtimes=2)
    async with pool_on(here, max_errors=2) as pool:
        here.runtimes[0].errors = [RuntimeError("no kernel image")] * 2
        here.runtimes[1].errors = [RuntimeError("no kernel image")] * 2
        failed = 0
        while here.loads == 1:
            try:
                await answer(pool, 5)
            except EngineUnavailableError:
                failed += 1
            await asyncio.sleep(0.002)
        assert failed >= 2
        assert here.broke >= 1
        await until_async(lambda: pool.available)
        assert await answer(pool, 5) == [5]
        assert not pool.failed.is_set()


async def test_the_pool_fails_if_the_model_can_not_be_loaded_again() -> None:
    def fresh() -> CountingRuntime:
        raise OSError("the bundle is gone")

    here = host(fresh=fresh)
    async with pool_on(here, max_errors=3) as pool:
        here.lost()
        await asyncio.wait_for(pool.failed.wait(), 5)
        assert here.loads == 4, "once, and three restarts"
        with pytest.raises(EngineUnavailableError):
            pool.submit(request(5))


async def test_loading_is_retried_as_long_as_another_worker_runs() -> None:
    tries = 0

    def fresh() -> CountingRuntime:
        nonlocal tries
        tries += 1
        if tries <= 5:
            raise OSError("no device")
        return CountingRuntime(4)

    lost, other = host(fresh=fresh), host()
    async with pool_on(lost, other, max_errors=2) as pool:
        lost.lost()
        while tries <= 5:
            assert await answer(pool, 5) == [5]
            await asyncio.sleep(0.001)
        assert not pool.failed.is_set()


async def test_an_engine_of_this_process_that_hangs_ends_its_requests_and_fails_the_pool() -> None:
    runtime = CountingRuntime(1)
    here = CountingHost(runtime)
    started = time.monotonic()
    async with pool_on(here, hang_seconds=0.5) as pool:  # for which no step of a slow machine lasts
        assert await answer(pool, 5) == [5]
        await asyncio.sleep(0.8)
        assert not pool.failed.is_set(), "one that has nothing to do does not hang"
        runtime.gate.clear()
        running, waiting = pool.submit(request(5)), pool.submit(request(6))
        for generation in (running, waiting):
            with pytest.raises(EngineUnavailableError, match="hangs"):
                await generation.result()
        assert pool.failed.is_set()
        assert not pool.available
        await pool.close()
        assert time.monotonic() - started < 8, "nobody waits for the thread, which the gate holds for ten seconds"


async def test_closing_does_not_wait_for_a_step_that_hangs() -> None:
    runtime = CountingRuntime(1)
    here = CountingHost(runtime)
    async with pool_on(here, hang_seconds=60) as pool:
        runtime.gate.clear()
        running, waiting = pool.submit(request(5)), pool.submit(request(6))
        await until_async(lambda: runtime.encoded)
        started = time.monotonic()
        await pool.close(0.1)
        assert time.monotonic() - started < 8, "the gate holds the step for ten seconds"
        for generation in (running, waiting):
            with pytest.raises(EngineUnavailableError):
                await generation.result()
        assert pool.failed.is_set(), "the process is not to end in order: the step may come to its end meanwhile"


async def test_a_step_that_hangs_is_noticed_while_the_pool_closes() -> None:
    runtime = CountingRuntime(1)
    here = CountingHost(runtime)
    async with pool_on(here, hang_seconds=0.1) as pool:
        runtime.gate.clear()
        running = pool.submit(request(5))
        await until_async(lambda: runtime.encoded)
        started = time.monotonic()
        await pool.close()
        assert time.monotonic() - started < 8
        with pytest.raises(EngineUnavailableError):
            await running.result()


async def test_loading_is_retried_if_a_worker_ends_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "RETRY_SECONDS", 0.01)
    here = CountingHost(CountingRuntime(2))
    here.losing = 2
    pool, _ = await loading._start(letters_bundle(), EngineOptions(), [here], lambda: None)
    assert await answer(pool, 5, 6) == [6, 5]
    await pool.close()
    here.loads, here.losing = 0, 3
    with pytest.raises(WorkerLostError):
        await loading._start(letters_bundle(), EngineOptions(), [here], lambda: None)


async def test_the_pool_can_close_while_a_model_is_loaded_again() -> None:
    here = host(fresh=lambda: CountingRuntime(4))
    async with pool_on(here) as pool:
        here.lost()
        await pool.close()
        await pool.close()


def test_work_that_stays_the_same_for_too_many_checks_hangs() -> None:
    watchdog: Watchdog[str] = Watchdog(3)
    assert watchdog.hanging({"a": 1, "b": 1}) == []
    assert watchdog.hanging({"a": 1, "b": 2}) == []
    assert watchdog.hanging({"a": 1, "b": 2}) == ["a"]
    assert watchdog.hanging({"b": 2}) == ["b"]
    assert watchdog.hanging({"a": 1}) == [], "it had ended meanwhile"
    assert watchdog.hanging({"a": 1}) == []
