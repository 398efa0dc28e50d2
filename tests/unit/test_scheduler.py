"""The waiting queue and the row table, without threads, clock or ONNX Runtime."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_server.core.errors import QueueFullError
from dragoman_server.core.requests import GenerationRequest
from dragoman_server.core.search_options import BeamOptions, SearchOptions
from dragoman_server.decoding.factory import make_search
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.engine.job import Job
from dragoman_server.engine.rows import RowTable
from dragoman_server.engine.scheduler import Scheduler
from tests.support.counting_engines import eager
from tests.support.fake_engines import letters, letters_bundle

TEXT, TOKENS = TargetDecoder(letters()), letters_bundle().manifest.tokens


def job(arrived: float = 0.0, source: int = 4, rows: int = 1, **times: Any) -> Job:
    options = SearchOptions(5, beam=BeamOptions(rows) if rows > 1 else None)
    search = make_search(options, TOKENS, 30, TEXT)
    assert search.rows == rows
    return Job(GenerationRequest([5] * source, options, **times), search, arrived)


def scheduler(
    engines: int = 1, queue_size: int = 100, gather_share: float = 0.5, encode_tokens: int = 1000
) -> Scheduler:
    return Scheduler(
        engines,
        eager(queue_size=queue_size, gather_share=gather_share, gather_seconds=0.25, encode_tokens=encode_tokens),
    )


def test_first_come_first_served_up_to_the_free_rows() -> None:
    queue = scheduler()
    jobs = [job() for _ in range(5)]
    for each in jobs:
        queue.submit(each)
    assert queue.take(0, 3, 0.0).admitted == jobs[:3]
    assert (queue.waiting, queue.running) == (2, 3)


def test_full_queue_refuses_at_once_and_names_a_delay() -> None:
    queue = scheduler(queue_size=2)
    queue.submit(job())
    queue.submit(job())
    with pytest.raises(QueueFullError) as refused:
        queue.submit(job())
    assert 0 < refused.value.retry_after <= 5
    assert queue.waiting == 2


def test_expired_job_is_never_admitted_and_its_place_is_free_again() -> None:
    queue = scheduler(queue_size=2)
    late, fine = job(deadline=1.0), job(deadline=3.0)
    queue.submit(late)
    queue.submit(fine)
    admission = queue.take(0, 8, 2.0)
    assert (admission.expired, admission.admitted) == ([late], [fine])


def test_waiting_jobs_expire_while_there_is_no_room_for_them() -> None:
    queue = scheduler()
    late = job(deadline=1.0)
    queue.submit(late)
    assert queue.take(0, 0, 1.0).expired == [late]
    assert queue.waiting == 0


def test_time_limit_passed_while_waiting_is_told_apart_from_a_deadline() -> None:
    queue = scheduler()
    limited = job(time_limit=1.0)
    queue.submit(limited)
    admission = queue.take(0, 8, 1.5)
    assert (admission.out_of_time, admission.expired, admission.admitted) == ([limited], [], [])


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


@given(st.data())
def test_row_table_stays_dense_and_moves_carry_every_row(data: st.DataObject) -> None:
    """Against a model: each row's content must follow its owner, whoever comes, grows, shrinks and leaves."""
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
