"""Who gets rows when: shares of the priorities, wide requests among narrow ones, bounds. A fake clock, no engine."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman_server.core.errors import QueueFullError
from dragoman_server.core.requests import GenerationRequest, Priority
from dragoman_server.core.search import Search
from dragoman_server.core.search_options import SearchOptions
from dragoman_server.engine.job import CallQueue, Job
from dragoman_server.engine.scheduler import BATCH_RESERVE, Scheduler
from tests.support.counting_engines import eager

INTERACTIVE, BATCH = Priority.INTERACTIVE, Priority.BATCH
OPTIONS = SearchOptions(5)


class Rows:
    """A search, as far as the scheduler looks at it."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


def job(priority: Priority = INTERACTIVE, rows: int = 1, source: int = 4, arrived: float = 0.0, **times: Any) -> Job:
    request = GenerationRequest([5] * source, OPTIONS, priority=priority, **times)
    return Job(request, cast(Search, Rows(rows)), arrived)


def scheduler(
    engines: int = 1, queue_size: int = 1000, queue_tokens: int = 10**6, encode_tokens: int = 10**6
) -> Scheduler:
    options = eager(queue_size=queue_size, queue_tokens=queue_tokens, encode_tokens=encode_tokens, gather_share=0.0)
    return Scheduler(engines, options)


class Engines:
    """Engines that end each job a given number of turns after its start.

    Attributes:
        started: jobs in the order of their start.
        ends: turns that each job takes.
    """

    def __init__(self, queue: Scheduler, max_rows: int, engines: int = 1) -> None:
        self.queue, self.max_rows = queue, max_rows
        self.running: list[dict[Job, int]] = [{} for _ in range(engines)]
        self.ends: dict[Job, int] = {}
        self.started: list[Job] = []
        self.dropped: list[Job] = []
        self.now = 0.0

    def submit(self, new: Job, ends: int = 1, call: CallQueue | None = None) -> Job:
        self.queue.submit(new, call)
        self.ends[new] = ends
        return new

    def rows(self, engine: int, *priorities: Priority) -> int:
        wanted = priorities or tuple(Priority)
        return sum(each.search.rows for each in self.running[engine] if each.request.priority in wanted)

    def turn(self, engine: int = 0) -> list[Job]:
        """Lets jobs of an engine end, and starts others; gives those."""
        running = self.running[engine]
        for each in running:
            running[each] -= 1
        over = [each for each, turns in running.items() if turns <= 0]
        for each in over:
            del running[each]
        if freed := sum(each.search.rows for each in over):
            self.queue.release(engine, freed, self.now, len(over))
        used = self.rows(engine)
        admission = self.queue.take(engine, self.max_rows - used, self.now, self.rows(engine, BATCH))
        self.dropped += admission.expired + admission.out_of_time
        for each in admission.admitted:
            running[each] = self.ends[each]
        self.started += admission.admitted
        self.now += 1.0
        return admission.admitted


def test_of_the_rows_that_start_interactive_requests_get_four_of_five() -> None:
    engines = Engines(scheduler(), max_rows=1)
    for _ in range(40):
        engines.submit(job(BATCH))
        engines.submit(job(INTERACTIVE))
    for _ in range(50):
        engines.turn()
    assert Counter(each.request.priority for each in engines.started[:50]) == {INTERACTIVE: 40, BATCH: 10}
    for start in range(0, 45, 5):
        assert [each.request.priority for each in engines.started[start : start + 5]].count(BATCH) == 1


def test_rows_count_and_not_requests() -> None:
    engines = Engines(scheduler(), max_rows=4)
    for _ in range(100):
        engines.submit(job(INTERACTIVE, rows=4))
        engines.submit(job(BATCH, rows=1))
    for _ in range(60):
        engines.turn()
    rows = Counter[Priority]()
    for each in engines.started:
        rows[each.request.priority] += each.search.rows
    assert rows[BATCH] / (rows[BATCH] + rows[INTERACTIVE]) == pytest.approx(1 / 5, abs=0.05)


def test_an_empty_priority_saves_up_nothing() -> None:
    engines = Engines(scheduler(), max_rows=1)
    for _ in range(100):
        engines.submit(job(INTERACTIVE))
        engines.turn()
    for _ in range(20):
        engines.submit(job(BATCH))
        engines.submit(job(INTERACTIVE))
    engines.started.clear()
    for _ in range(10):
        engines.turn()
    assert [each.request.priority for each in engines.started].count(BATCH) == 2


def test_an_interactive_request_finds_rows_while_long_batch_requests_have_all_they_may() -> None:
    engines = Engines(scheduler(), max_rows=16)
    for _ in range(100):
        engines.submit(job(BATCH), ends=1000)
    engines.turn()
    assert engines.rows(0) == 14, "one of eight rows stays free"
    comes = [engines.submit(job(INTERACTIVE), ends=1000) for _ in range(2)]
    assert engines.turn() == comes


def test_batch_jobs_do_not_save_up_rows_that_they_may_not_have() -> None:
    engines = Engines(scheduler(), max_rows=8)
    for _ in range(200):
        engines.submit(job(BATCH), ends=3)
    for _ in range(50):  # seven rows are taken by batch requests all the time, the eighth by interactive ones
        engines.submit(job(INTERACTIVE), ends=1)
        engines.turn()
    for _ in range(50):
        engines.submit(job(INTERACTIVE), ends=1)
    engines.started.clear()
    for _ in range(20):
        engines.turn()
    assert Counter(each.request.priority for each in engines.started)[INTERACTIVE] >= 20


@pytest.mark.parametrize("priority", Priority)
@pytest.mark.parametrize("rows", [5, 8])
def test_a_wide_request_starts_among_ever_more_narrow_ones_which_go_on_meanwhile(priority: Priority, rows: int) -> None:
    engines = Engines(scheduler(), max_rows=8)
    for _ in range(7):  # so that rows become free one by one
        engines.submit(job(INTERACTIVE), ends=8)
        engines.turn()
    wide = engines.submit(job(priority, rows), ends=5)
    turns = narrow = 0
    while wide not in engines.started:
        for each in Priority:
            engines.submit(job(each), ends=8)
        narrow += len(engines.turn())
        turns += 1
        assert turns <= 2 * rows * 8
    assert narrow > rows / 2, "others were not held up"


def test_wide_requests_start_in_their_order() -> None:
    engines = Engines(scheduler(), max_rows=8)
    for _ in range(8):
        engines.submit(job(), ends=3)
        engines.turn()
    wide = [engines.submit(job(rows=rows), ends=3) for rows in (8, 4, 6, 8, 2)]
    for _ in range(200):
        engines.submit(job(), ends=3)
        engines.turn()
    assert [each for each in engines.started if each.search.rows > 4] == [wide[0], wide[2], wide[3]]
    assert set(wide) <= set(engines.started)


def test_a_wide_request_takes_the_first_engine_that_has_room() -> None:
    engines = Engines(scheduler(engines=2), max_rows=4, engines=2)
    for _ in range(8):
        engines.submit(job(), ends=100)
    engines.turn(0)
    engines.turn(1)
    wide = engines.submit(job(rows=4))
    engines.turn(0)
    for each in engines.running[1]:
        engines.running[1][each] = 1
    assert engines.turn(1) == [wide]


def test_a_cancelled_reservation_frees_its_rows() -> None:
    engines = Engines(scheduler(), max_rows=4)
    for ends in (1, 9, 9):
        engines.submit(job(), ends=ends)
    engines.turn()
    wide = engines.submit(job(rows=4))
    late = engines.submit(job(rows=4, deadline=2.5))
    engines.turn()
    assert engines.queue.cancel(wide)
    engines.turn()
    engines.turn()
    assert engines.dropped == [late]
    comes = [engines.submit(job()) for _ in range(2)]
    assert engines.turn() == comes, "what was set aside is free again"
    assert engines.queue.waiting == 0


def test_each_priority_has_a_queue_of_its_own_bounded_in_requests_and_in_source_tokens() -> None:
    queue = scheduler(queue_size=3, queue_tokens=20)
    for _ in range(3):
        queue.submit(job(BATCH))
    with pytest.raises(QueueFullError) as full:
        queue.submit(job(BATCH))
    assert full.value.bound == "requests"
    queue.submit(job(INTERACTIVE, source=15))
    with pytest.raises(QueueFullError) as full:
        queue.submit(job(INTERACTIVE, source=6))
    assert full.value.bound == "tokens"
    assert 0 < full.value.retry_after <= 5
    queue.submit(job(INTERACTIVE, source=5))
    assert queue.backlog() == (5, 32)


def test_a_request_with_more_tokens_than_the_queue_allows_may_wait_alone() -> None:
    queue = scheduler(queue_tokens=20)
    queue.submit(job(source=30))
    with pytest.raises(QueueFullError):
        queue.submit(job(source=1))


def started_of(engines: Engines, jobs: Sequence[Job]) -> int:
    return sum(each in jobs for each in engines.started)


def test_batch_calls_start_rows_in_turn_however_many_jobs_they_have() -> None:
    engines = Engines(scheduler(), max_rows=1)
    large, small = CallQueue(), CallQueue()
    of_large = [engines.submit(job(BATCH), call=large) for _ in range(200)]
    for _ in range(50):
        engines.turn()
    of_small = [engines.submit(job(BATCH), call=small) for _ in range(10)]
    for _ in range(10):
        engines.turn()
    assert (started_of(engines, of_large), started_of(engines, of_small)) == (55, 5), "it has saved up nothing"


def test_batch_calls_share_rows_and_not_jobs() -> None:
    engines = Engines(scheduler(), max_rows=3)
    wide, narrow = CallQueue(), CallQueue()
    of_wide = [engines.submit(job(rows=2), call=wide) for _ in range(90)]
    of_narrow = [engines.submit(job(), call=narrow) for _ in range(90)]
    for _ in range(40):
        engines.turn()
    assert started_of(engines, of_narrow) == pytest.approx(2 * started_of(engines, of_wide), abs=3)


@pytest.mark.parametrize("priority", Priority)
@pytest.mark.parametrize("calls", [1, 3])
def test_single_calls_and_batch_calls_start_by_turns(priority: Priority, calls: int) -> None:
    engines = Engines(scheduler(queue_size=2), max_rows=1)
    items = [
        engines.submit(job(priority), call=call) for call in [CallQueue() for _ in range(calls)] for _ in range(30)
    ]
    singles = []
    for _ in range(40):
        while True:  # they come again and again, and fill the queue
            try:
                singles.append(engines.submit(job(priority)))
            except QueueFullError:
                break
        engines.turn()
    assert started_of(engines, items) == 40 - started_of(engines, singles) == pytest.approx(20, abs=1)


def test_a_batch_is_refused_with_its_first_job_or_not_at_all_and_takes_no_room_from_single_calls() -> None:
    queue = scheduler(queue_size=2, queue_tokens=20)
    call, late = CallQueue(), CallQueue()
    for _ in range(50):
        queue.submit(job(BATCH), call)
    for _ in range(2):
        queue.submit(job(BATCH))
    for refused in (None, late):
        with pytest.raises(QueueFullError):
            queue.submit(job(BATCH), refused)
    queue.submit(job(BATCH), call)
    assert queue.backlog() == (53, 4 * 53)
    first = queue.take(0, 1, 0.0).admitted
    queue.take(0, 1, 0.0)
    queue.submit(job(BATCH, source=16), late)
    assert queue.backlog() == (52, 4 * 51 + 16), "a single call has started"
    assert first[0].queue is None


def test_a_wide_job_of_a_batch_call_is_not_overtaken_for_long_and_holds_up_nobody() -> None:
    engines = Engines(scheduler(), max_rows=8)
    narrow, wide = CallQueue(), CallQueue()
    for _ in range(7):  # so that rows become free one by one
        engines.submit(job(), ends=7)
        engines.turn()
    widest = engines.submit(job(rows=8), ends=1, call=wide)
    others = [engines.submit(job(), ends=7, call=narrow) for _ in range(100)]
    turns = 0
    while widest not in engines.started:
        engines.turn()
        turns += 1
        assert turns < 60
    assert started_of(engines, others) > 4


def test_jobs_of_a_batch_call_expire_and_leave_like_others() -> None:
    queue = scheduler()
    early, late = CallQueue(), CallQueue()
    of_early = [job(deadline=2.0) for _ in range(3)]
    of_late = [job(time_limit=3.0) for _ in range(3)]
    for each in of_early:
        queue.submit(each, early)
    for each in of_late:
        queue.submit(each, late)
    assert queue.cancel(of_early[0])
    assert not queue.cancel(of_early[0])
    assert queue.sweep(2.5).expired == of_early[1:]
    assert queue.next_expiry == 3.0
    assert queue.sweep(3.0).out_of_time == of_late
    assert (queue.backlog(), queue.take(0, 8, 3.0).admitted) == ((0, 0), [])
    queue.submit(job(), early)
    assert queue.remove_engine(0)
    assert queue.waiting == 0


def test_a_sweep_removes_overdue_jobs_and_updates_the_next_expiry() -> None:
    queue = scheduler()
    times: list[tuple[Priority, dict[str, Any]]] = [
        (BATCH, {"deadline": 2.0}),
        (INTERACTIVE, {"time_limit": 3.0}),
        (BATCH, {"deadline": 9.0}),
        (BATCH, {}),
    ]
    jobs = [job(priority, **limits) for priority, limits in times]
    for each in jobs:
        queue.submit(each)
    assert queue.next_expiry == 2.0
    assert queue.sweep(1.9).expired == []
    admission = queue.sweep(3.0)
    assert (admission.expired, admission.out_of_time, admission.admitted) == ([jobs[0]], [jobs[1]], [])
    assert (queue.next_expiry, *queue.backlog()) == (9.0, 2, 8)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 20))
def test_bounds_hold_and_every_job_starts_under_random_load(seed: int, engines_count: int, max_rows: int) -> None:
    draw = random.Random(seed)
    queue_size, queue_tokens, encode_tokens = draw.randint(1, 30), draw.randint(5, 200), draw.randint(5, 100)
    queue = scheduler(engines_count, queue_size, queue_tokens, encode_tokens)
    engines = Engines(queue, max_rows, engines_count)
    calls = {priority: [CallQueue() for _ in range(3)] for priority in Priority}
    times_of = {call: {"deadline": float(draw.randint(1, 300))} for call in (calls[BATCH][0], calls[INTERACTIVE][0])}
    call_of: dict[Job, CallQueue | None] = {}
    waiting: set[Job] = set()
    accepted: list[Job] = []
    left = set()

    def turn() -> None:
        engine = draw.randrange(engines_count)
        batch_before = engines.rows(engine, BATCH)
        started = engines.turn(engine)
        waiting.difference_update(started, engines.dropped)
        for index in range(engines_count):
            assert engines.rows(index) <= max_rows
        assert queue.running == sum(engines.rows(index) for index in range(engines_count))
        assert queue.backlog() == (len(waiting), sum(len(each.request.source_ids) for each in waiting))
        tokens = [len(each.request.source_ids) for each in started]
        assert len(tokens) <= 1 or sum(tokens) <= encode_tokens
        narrow = [each for each in started if each.request.priority is BATCH and each.search.rows == 1]
        if narrow and batch_before:
            widest = max(each.search.rows for each in engines.running[engine])
            assert widest > 1 or engines.rows(engine, BATCH) <= max_rows - max_rows // BATCH_RESERVE
        for each in started:
            assert not each.expired(engines.now - 1.0)

    for _ in range(draw.randint(10, 150)):
        for _ in range(draw.randint(0, 3)):
            priority = draw.choice(list(Priority))
            rows = draw.choice([1, 1, 1, 2, draw.randint(1, max_rows)])
            call = draw.choice([None, None, None, *calls[priority]])
            times = {"deadline": engines.now + draw.randint(1, 40)} if draw.random() < 0.2 else {}
            times = times if call is None else times_of.get(call, {})
            new = job(priority, min(rows, max_rows), draw.randint(1, 30), engines.now, **times)
            call_of[new] = call
            of_priority = [each for each in waiting if each.request.priority is priority and call_of[each] is None]
            length = len(new.request.source_ids)
            tokens = sum(len(each.request.source_ids) for each in of_priority)
            fits = not of_priority or (len(of_priority) < queue_size and tokens + length <= queue_tokens)
            fits = fits or (call is not None and call.accepted)
            try:
                engines.submit(new, draw.randint(1, 6), call)
                took = True
            except QueueFullError:
                took = False
            assert took == fits
            if took:
                waiting.add(new)
                accepted.append(new)
        if waiting and draw.random() < 0.1:
            gone = draw.choice(sorted(waiting, key=accepted.index))
            assert queue.cancel(gone)
            waiting.discard(gone)
            left.add(gone)
        turn()
    turns = 0
    while waiting or queue.running:  # nobody waits for ever, nor for very long
        turn()
        turns += 1
        assert turns < 40 * (len(accepted) + 10) * engines_count
    assert set(engines.started) | set(engines.dropped) | left == set(accepted)
    assert len(engines.started) == len(set(engines.started))
    singles = [each for each in engines.started if each.search.rows == 1]
    for priority, call in {(each.request.priority, call_of[each]) for each in singles}:
        alike = [each for each in singles if (each.request.priority, call_of[each]) == (priority, call)]
        order = [accepted.index(each) for each in alike]
        assert order == sorted(order), "of equal ones the first come starts first"
