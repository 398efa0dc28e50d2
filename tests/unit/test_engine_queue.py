"""Which of several engines starts what waits."""

import asyncio
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman_server.core.requests import Priority
from dragoman_server.engine.job import Job
from dragoman_server.engine.scheduler import Scheduler
from dragoman_server.engine.shared_queue import SharedQueue
from tests.support.counting_engines import CountingRuntime, at_rest, eager, pool_of, request
from tests.support.waiting import until_async
from tests.unit.test_scheduler import job

GROUP, CALLS, SLOTS = 4, 12, 16


def scheduler(engines: int, calls: int = GROUP) -> Scheduler:
    return Scheduler(engines, eager(min_rows_per_engine=GROUP, min_single_rows_per_engine=calls, gather_share=0.0))


def test_the_last_engine_rests_until_the_others_have_a_group_each() -> None:
    queue = scheduler(3)
    rows = [0, 0, 0]
    for number in range(1, 3 * GROUP):
        queue.submit(job())
        for engine in (2, 1, 0):
            rows[engine] += len(queue.take(engine, SLOTS - rows[engine], 0.0).admitted)
        assert sum(rows) == number
        resting = rows.count(0)
        assert resting == (2 if number == 1 else 1 if number <= 2 * GROUP else 0), rows


@pytest.mark.parametrize(
    ("late", "alone"),
    [(job(), CALLS), (job(priority=Priority.BATCH), GROUP), (job(rows=2), GROUP)],
    ids=["a call", "an item of a batch", "a beam"],
)
def test_single_calls_leave_the_last_engine_at_rest_for_longer_than_what_takes_more_of_the_engines(
    late: Job, alone: int
) -> None:
    queue = scheduler(2, CALLS)
    for running in range(1, SLOTS):
        queue.submit(job())
        assert len(queue.take(0, SLOTS - running, 0.0).admitted) == 1
        queue.submit(late)
        assert queue.has_work_for(1) == (running + late.search.rows > alone)
        if queue.has_work_for(1):
            return
        queue.cancel(late)
    raise AssertionError("the last engine rests for ever")


def test_with_a_group_of_one_all_engines_share_from_the_start() -> None:
    queue = Scheduler(2, eager())
    queue.submit(job())
    queue.submit(job())
    assert [len(queue.take(engine, SLOTS, 0.0).admitted) for engine in (0, 1)] == [1, 1]


def test_an_engine_that_is_not_needed_any_more_ends_what_it_has_and_takes_nothing_new() -> None:
    queue = scheduler(2)
    for _ in range(GROUP + 2):
        queue.submit(job())
    rows = [len(queue.take(engine, SLOTS, 0.0).admitted) for engine in (0, 1)]
    assert all(rows)
    queue.release(0, rows[0] - 1, 0.0, rows[0] - 1)
    queue.release(1, rows[1] - 2, 0.0, rows[1] - 2)
    queue.submit(job())
    assert not queue.has_work_for(1)
    assert queue.take(1, SLOTS - 2, 0.0).admitted == []
    assert len(queue.take(0, SLOTS - 1, 0.0).admitted) == 1


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_whatever_waits_is_started_by_someone_who_is_awake_or_woken(data: st.DataObject) -> None:
    engines = data.draw(st.integers(1, 4))
    queue = scheduler(engines, CALLS)
    running: list[list[Job]] = [[] for _ in range(engines)]
    awake: set[int] = set()
    for _ in range(data.draw(st.integers(1, 40))):
        for _ in range(data.draw(st.integers(0, 4))):
            queue.submit(job(rows=data.draw(st.sampled_from([1, 1, 1, 5]))))
            if len(awake) < engines and queue.should_wake_engine(len(awake)):
                awake.add(data.draw(st.sampled_from(sorted(set(range(engines)) - awake))))
        for engine in sorted(awake, key=lambda _: data.draw(st.integers(0, 9))):
            own = running[engine]
            own += queue.take(engine, SLOTS - sum(each.search.rows for each in own), 0.0).admitted
            if bool(own) and data.draw(st.booleans()):
                gone = own.pop(0)
                queue.release(engine, gone.search.rows, 0.0, 1)
            if not own and not queue.has_work_for(engine):
                awake.discard(engine)
        assert awake or not queue.waiting, "somebody waits, and everyone sleeps"
    for _ in range(1000):
        for engine in sorted(awake):
            own = running[engine]
            own += queue.take(engine, SLOTS - sum(each.search.rows for each in own), 0.0).admitted
            for gone in own:
                queue.release(engine, gone.search.rows, 0.0, 1)
            own.clear()
            if not queue.has_work_for(engine):
                awake.discard(engine)
    assert not queue.waiting


def test_who_fell_asleep_last_is_woken_first() -> None:
    queue = SharedQueue(scheduler(2))
    order: list[str] = []

    def sleeper(name: str) -> None:
        with queue.lock:
            queue.sleep()
            order.append(name)

    threads = []
    for name in ("first", "second"):
        threads.append(threading.Thread(target=sleeper, args=(name,)))
        threads[-1].start()
        while len(queue._sleepers) < len(threads):
            time.sleep(0.001)
    with queue.lock:
        queue.wake()
        assert len(queue._sleepers) == 2, "there is nothing to do"
        queue.scheduler.submit(job())
        queue.wake()
    threads[1].join(10)
    assert order == ["second"]
    with queue.lock:
        queue.wake_all()
    threads[0].join(10)
    assert order == ["second", "first"]


async def test_few_requests_run_together_in_one_engine_and_many_in_all() -> None:
    runtimes = [CountingRuntime(SLOTS) for _ in range(2)]
    async with pool_of(
        *runtimes, scheduling={"min_rows_per_engine": GROUP, "min_single_rows_per_engine": GROUP}
    ) as pool:
        queue = pool._queue
        assert queue is not None
        await until_async(lambda: len(queue._sleepers) == 2)
        for _ in range(20):
            await asyncio.gather(*(pool.submit(request(5, 6)).result() for _ in range(GROUP)))
        assert sum(bool(each.encoded) for each in runtimes) == 1
        for each in runtimes:
            each.gate.clear()
        many = [pool.submit(request(5, 6)) for _ in range(6 * GROUP)]
        await until_async(lambda: all(each.encoded for each in runtimes))
        for each in runtimes:
            each.gate.set()
        await asyncio.gather(*(each.result() for each in many))
        await until_async(lambda: at_rest(pool))
