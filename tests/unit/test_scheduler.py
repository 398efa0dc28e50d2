"""The scheduler and the row table: which job starts when, and in which engine."""

import asyncio
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman_server.core.errors import QueueFullError
from dragoman_server.core.requests import GenerationRequest, Priority
from dragoman_server.core.search_options import BeamOptions, SearchOptions
from dragoman_server.decoding.factory import make_search
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.engine.job import Job
from dragoman_server.engine.rows import RowTable
from dragoman_server.engine.scheduler import Scheduler
from dragoman_server.engine.shared_queue import SharedQueue
from tests.support.counting_engines import CountingRuntime, at_rest, eager, pool_of, request
from tests.support.fake_engines import letters, letters_bundle
from tests.support.waiting import until_async

GROUP, CALLS, SLOTS = 4, 12, 16

TEXT, TOKENS = TargetDecoder(letters()), letters_bundle().manifest.tokens


def job(arrived: float = 0.0, source: int = 4, rows: int = 1, **times: Any) -> Job:
    options = SearchOptions(5, beam=BeamOptions(rows) if rows > 1 else None)
    search = make_search(options, TOKENS, 30, TEXT)
    assert search.rows == rows
    return Job(GenerationRequest([5] * source, options, **times), search, arrived)


def scheduler(engines: int = 1, **options: Any) -> Scheduler:
    defaults = {"queue_size": 100, "gather_share": 0.5, "gather_seconds": 0.25, "encode_tokens": 1000}
    return Scheduler(engines, eager(**{**defaults, **options}))


def test_first_come_first_served_up_to_the_free_rows() -> None:
    queue = scheduler()
    jobs = [job() for _ in range(5)]
    for each in jobs:
        queue.submit(each)
    assert queue.take(0, 3, 0.0).admitted == jobs[:3]
    assert (queue.waiting, queue.running) == (2, 3)


@pytest.mark.parametrize("free_rows", [0, 8])
def test_overdue_jobs_leave_the_queue_and_are_never_admitted(free_rows: int) -> None:
    queue = scheduler(queue_size=3)
    late, limited, fine = job(deadline=1.0), job(time_limit=1.5), job(deadline=3.0)
    for each in (late, limited, fine):
        queue.submit(each)
    admission = queue.take(0, free_rows, 2.0)
    assert (admission.expired, admission.out_of_time) == ([late], [limited])
    assert admission.admitted == ([fine] if free_rows else [])
    assert queue.waiting == (0 if free_rows else 1), "their places are free again"


def test_queue_of_each_priority_is_bounded_in_requests_and_source_tokens() -> None:
    queue = scheduler(queue_size=3, queue_tokens=20)
    for _ in range(3):
        queue.submit(job(priority=Priority.BATCH))
    with pytest.raises(QueueFullError) as full:
        queue.submit(job(priority=Priority.BATCH))
    assert full.value.bound == "requests"
    queue.submit(job(priority=Priority.INTERACTIVE, source=15))
    with pytest.raises(QueueFullError) as full:
        queue.submit(job(priority=Priority.INTERACTIVE, source=6))
    assert full.value.bound == "tokens"
    assert 0 < full.value.retry_after <= 5
    queue.submit(job(priority=Priority.INTERACTIVE, source=5))
    assert queue.backlog() == (5, 32)


def test_job_with_more_tokens_than_the_queue_allows_may_wait_alone() -> None:
    queue = scheduler(queue_tokens=20)
    queue.submit(job(source=30))
    with pytest.raises(QueueFullError):
        queue.submit(job(source=1))


def test_sweep_removes_overdue_jobs_and_updates_the_next_expiry() -> None:
    queue = scheduler()
    jobs = [job(priority=Priority.BATCH, deadline=2.0), job(priority=Priority.INTERACTIVE, time_limit=3.0)]
    jobs += [job(priority=Priority.BATCH, deadline=9.0), job(priority=Priority.BATCH)]
    for each in jobs:
        queue.submit(each)
    assert queue.next_expiry == 2.0
    assert queue.sweep(1.9).expired == []
    admission = queue.sweep(3.0)
    assert (admission.expired, admission.out_of_time, admission.admitted) == ([jobs[0]], [jobs[1]], [])
    assert (queue.next_expiry, *queue.backlog()) == (9.0, 2, 8)


def test_cancelled_job_leaves_the_queue() -> None:
    queue = scheduler()
    first, second = job(), job()
    queue.submit(first)
    queue.submit(second)
    assert queue.cancel(first)
    assert queue.take(0, 8, 0.0).admitted == [second]
    assert not queue.cancel(second), "it runs: its engine has to let it go"
    assert second.cancelled


def test_busy_engine_gathers_newcomers_until_enough_or_long_enough() -> None:
    queue = scheduler(gather_share=0.5)
    queue.submit(job(rows=6))
    assert len(queue.take(0, 16, 0.0).admitted) == 1, "an idle engine does not wait"
    queue.submit(job(arrived=1.0))
    assert not queue.take(0, 10, 1.125).admitted
    queue.submit(job(arrived=1.125))
    queue.submit(job(arrived=1.125))
    assert len(queue.take(0, 10, 1.25).admitted) == 3, "half as many as it runs"
    queue.submit(job(arrived=2.0))
    assert not queue.take(0, 7, 2.125).admitted
    assert len(queue.take(0, 7, 2.25).admitted) == 1, "long enough"


def test_busy_engine_makes_some_steps_before_it_takes_few_however_long_they_take() -> None:
    queue = Scheduler(1, eager(gather_seconds=0.25, gather_steps=2))
    queue.submit(job(rows=6))
    assert len(queue.take(0, 16, 0.0).admitted) == 1, "an idle engine does not wait"
    for late in (1.0, 11.0):
        queue.submit(job(arrived=late))
        assert [len(queue.take(0, 10, late + seconds).admitted) for seconds in (1.0, 2.0, 3.0)] == [0, 0, 1]
        queue.release(0, 1, late + 4.0)
        assert not queue.take(0, 10, late + 4.0).admitted, "nobody waits"
    for _ in range(3):
        queue.submit(job(arrived=20.0))
    assert len(queue.take(0, 10, 20.0).admitted) == 3, "half as many as it runs"
    queue.submit(job(arrived=20.0))
    assert [len(queue.take(0, 7, 30.0 + seconds).admitted) for seconds in range(3)] == [0, 0, 1]


def test_busy_engine_waits_for_a_share_of_its_rows_where_jobs_never_run_out() -> None:
    queue = scheduler(gather_share=0, min_free_share=0.25)
    for _ in range(20):
        queue.submit(job())
    assert len(queue.take(0, 8, 0.0).admitted) == 8
    queue.release(0, 1, 0.0)
    assert queue.take(0, 1, 9.0).admitted == []
    queue.release(0, 1, 9.0)
    assert len(queue.take(0, 2, 9.0).admitted) == 2
    queue.release(0, 8, 9.0)
    assert len(queue.take(0, 8, 9.0).admitted) == 8


def test_engines_share_evenly() -> None:
    queue = scheduler(engines=2, gather_share=0)
    for _ in range(10):
        queue.submit(job())
    assert len(queue.take(0, 32, 0.0).admitted) == 5
    assert len(queue.take(1, 32, 0.0).admitted) == 5
    for _ in range(4):
        queue.submit(job())
    queue.release(0, 4, 0.0)
    assert len(queue.take(1, 32, 0.0).admitted) == 0, "the other one has more room"
    assert len(queue.take(0, 32, 0.0).admitted) == 4


def test_busy_engines_do_not_split_newcomers_into_groups_too_small_to_encode() -> None:
    queue = scheduler(engines=2, gather_share=0.5)
    for _ in range(16):
        queue.submit(job())
    assert [len(queue.take(engine, 32, 0.0).admitted) for engine in (0, 1)] == [8, 8]
    for _ in range(4):
        queue.submit(job())
    assert len(queue.take(0, 32, 0.0).admitted) == 4, "two each would be even, but cost more"
    for _ in range(4):
        queue.submit(job())
    assert len(queue.take(0, 32, 0.0).admitted) == 0, "now it is the other one's turn"
    assert len(queue.take(1, 32, 0.0).admitted) == 4


def test_source_tokens_between_two_steps_are_bounded_but_one_request_always_goes() -> None:
    queue = scheduler(encode_tokens=16, gather_share=0)
    for length in (4, 4, 10, 30):
        queue.submit(job(source=length))
    sizes = [[len(j.request.source_ids) for j in queue.take(0, 8, 0.0).admitted] for _ in range(3)]
    assert sizes == [[4, 4], [10], [30]]


def test_source_tokens_are_counted_as_the_device_pads_them() -> None:
    queue = Scheduler(1, eager(gather_share=0.0, encode_tokens=16, min_source_tokens=8))
    for _ in range(5):
        queue.submit(job(source=2))
    assert [len(queue.take(0, 8, 0.0).admitted) for _ in range(3)] == [2, 2, 1]


def test_job_larger_than_an_engines_share_starts_all_the_same() -> None:
    """Nothing else waits, so that an even share of its eight rows would be four for each engine."""
    queue = scheduler(engines=2)
    queue.submit(job(rows=8))
    assert len(queue.take(1, 8, 0.0).admitted) == 1


def shared_scheduler(engines: int, single_rows: int = GROUP) -> Scheduler:
    options = eager(min_rows_per_engine=GROUP, min_single_rows_per_engine=single_rows, gather_share=0.0)
    return Scheduler(engines, options)


def test_the_last_engine_rests_until_the_others_have_enough_rows() -> None:
    queue = shared_scheduler(3)
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
def test_the_last_engine_rests_longer_for_single_calls_than_for_batches_and_beams(late: Job, alone: int) -> None:
    queue = shared_scheduler(2, CALLS)
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


def test_an_engine_that_is_not_needed_finishes_its_jobs_and_starts_none() -> None:
    queue = shared_scheduler(2)
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
def test_every_waiting_job_is_started_by_an_engine_that_is_awake_or_woken(data: st.DataObject) -> None:
    engines = data.draw(st.integers(1, 4))
    queue = shared_scheduler(engines, CALLS)
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


def test_the_engine_that_fell_asleep_last_is_woken_first() -> None:
    queue = SharedQueue(shared_scheduler(2))
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


@settings(deadline=None)
@given(st.data())
def test_row_table_stays_dense_and_moves_carry_every_row(data: st.DataObject) -> None:
    """Model-based: each row's content follows its owner while jobs come, grow, shrink and leave."""
    table = RowTable(12)
    content: dict[int, tuple[int, int]] = {}  # row -> (job number, which of its rows)
    held: dict[Job, tuple[int, list[int]]] = {}  # job number, and which of its rows it has
    for step in range(data.draw(st.integers(1, 40))):
        width = data.draw(st.integers(1, 4))
        what = data.draw(st.sampled_from(["add", "grow", "remove"]))
        can_grow = [each for each, rows in table.rows.items() if len(rows) < each.search.rows]
        if what == "add" and table.reserved + width <= table.max_rows:
            new = job(rows=width)
            content[table.add(new)] = (step, 0)
            held[new] = (step, [0])
        elif what == "grow" and can_grow:
            growing = data.draw(st.sampled_from(can_grow))
            number, parts = held[growing]
            parts.append(max(parts) + 1)
            content[table.grow(growing)] = (number, parts[-1])
        elif what == "remove" and table.rows:
            gone = data.draw(st.lists(st.sampled_from(list(table.rows)), unique=True))
            staying = [each for each in table.rows if each not in gone and len(table.rows[each]) > 1]
            shrinking = data.draw(st.lists(st.sampled_from(staying), unique=True)) if staying else []
            surplus = [table.rows[each][-1] for each in shrinking]
            for each in shrinking:
                held[each][1].pop()
            for source, target in table.remove(gone, surplus):
                content[target] = content[source]
            assert table.settle() == sum(each.search.rows for each in gone)
        assert table.used == sum(len(rows) for rows in table.rows.values())
        assert table.reserved == sum(each.search.rows for each in table.rows)
        assert sorted(row for rows in table.rows.values() for row in rows) == list(range(table.used))
        for owner, rows in table.rows.items():
            number, parts = held[owner]
            assert [content[row] for row in rows] == [(number, part) for part in parts]
            assert all(table.owners[row] is owner for row in rows)
