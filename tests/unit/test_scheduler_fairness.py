"""Fairness of the scheduler: shares of priorities and calls, wide jobs among narrow ones, bounds of the queue.

The clock is fake and there are no engines.
"""

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
from dragoman_server.engine.batch_share import BATCH_RESERVE, LEAST_ROWS
from dragoman_server.engine.job import CallQueue, Job
from dragoman_server.engine.scheduler import Scheduler
from tests.support.counting_engines import eager

INTERACTIVE, BATCH = Priority.INTERACTIVE, Priority.BATCH
OPTIONS = SearchOptions(5)


class FakeSearch:
    """A fake search; the scheduler reads only its rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


def make_job(
    priority: Priority = INTERACTIVE, rows: int = 1, source: int = 4, arrived: float = 0.0, **times: Any
) -> Job:
    request = GenerationRequest([5] * source, OPTIONS, priority=priority, **times)
    return Job(request, cast(Search, FakeSearch(rows)), arrived)


def scheduler(engines: int = 1, **options: float) -> Scheduler:
    limits = {"queue_size": 1000, "queue_tokens": 10**6, "encode_tokens": 10**6, "batch_slowdown": 1000, **options}
    return Scheduler(engines, eager(**limits, gather_share=0.0))


class Engines:
    """Fake engines that end each job a fixed number of turns after its start.

    Attributes:
        started: Jobs in the order of their start.
        dropped: Jobs that expired or ran out of time in the queue.
        turns: Turns that each job takes.
    """

    def __init__(self, queue: Scheduler, max_rows: int, engines: int = 1) -> None:
        self.queue, self.max_rows = queue, max_rows
        self.running: list[dict[Job, int]] = [{} for _ in range(engines)]
        self.turns: dict[Job, int] = {}
        self.started: list[Job] = []
        self.dropped: list[Job] = []
        self.now = 0.0

    def submit(self, new: Job, turns: int = 1, call: CallQueue | None = None) -> Job:
        self.queue.submit(new, call)
        self.turns[new] = turns
        return new

    def fill(self, count: int, priority: Priority = INTERACTIVE, rows: int = 1, **options: Any) -> list[Job]:
        return [self.submit(make_job(priority, rows), **options) for _ in range(count)]

    def rows(self, engine: int, *priorities: Priority) -> int:
        """Returns the rows in use by jobs of some priorities, by default of all."""
        return sum(job.search.rows for job in self.running[engine] if job.request.priority in (priorities or Priority))

    def turn(self, engine: int = 0) -> list[Job]:
        """Ends the jobs of an engine that are over, and starts others; returns those."""
        running = self.running[engine]
        for job in running:
            running[job] -= 1
        ended = [job for job, turns in running.items() if turns <= 0]
        for job in ended:
            del running[job]
        if freed := sum(job.search.rows for job in ended):
            self.queue.release(engine, freed, self.now, len(ended))
        used = self.rows(engine)
        admission = self.queue.take(engine, self.max_rows - used, self.now, self.rows(engine, BATCH))
        self.dropped += admission.expired + admission.out_of_time
        for job in admission.admitted:
            running[job] = self.turns[job]
        self.started += admission.admitted
        self.now += 1.0
        return admission.admitted

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.turn()


def test_interactive_jobs_get_four_of_five_rows() -> None:
    engines = Engines(scheduler(), max_rows=1)
    engines.fill(40, BATCH)
    engines.fill(40, INTERACTIVE)
    engines.run(50)
    assert Counter(job.request.priority for job in engines.started[:50]) == {INTERACTIVE: 40, BATCH: 10}
    for start in range(0, 45, 5):
        assert [job.request.priority for job in engines.started[start : start + 5]].count(BATCH) == 1


def test_shares_count_rows_not_jobs() -> None:
    engines = Engines(scheduler(), max_rows=4)
    engines.fill(100, INTERACTIVE, rows=4)
    engines.fill(100, BATCH, rows=1)
    engines.run(60)
    rows = Counter[Priority]()
    for job in engines.started:
        rows[job.request.priority] += job.search.rows
    assert rows[BATCH] / (rows[BATCH] + rows[INTERACTIVE]) == pytest.approx(1 / 5, abs=0.05)


def test_idle_priority_earns_no_credit() -> None:
    engines = Engines(scheduler(), max_rows=1)
    for _ in range(100):
        engines.submit(make_job(INTERACTIVE))
        engines.turn()
    engines.fill(20, BATCH)
    engines.fill(20, INTERACTIVE)
    engines.started.clear()
    engines.run(10)
    assert [job.request.priority for job in engines.started].count(BATCH) == 2


def test_long_batch_jobs_leave_rows_for_interactive_ones() -> None:
    engines = Engines(scheduler(), max_rows=16)
    engines.fill(100, BATCH, turns=1000)
    engines.turn()
    assert engines.rows(0) == 14, "one of eight rows stays free"
    new = engines.fill(2, INTERACTIVE, turns=1000)
    assert engines.turn() == new


def test_batch_jobs_make_steps_only_so_much_longer_beside_interactive_ones() -> None:
    engines = Engines(scheduler(batch_slowdown=3, turn_rows=4), max_rows=80)
    engines.fill(500, BATCH, turns=1000)
    engines.turn()
    assert engines.rows(0, BATCH) == 70, "alone they get all but the reserve"
    assert engines.queue.batch_limits() == {0: 70}

    engines = Engines(scheduler(batch_slowdown=3, turn_rows=4), max_rows=80)
    engines.fill(6, INTERACTIVE, turns=2)
    engines.fill(500, BATCH, turns=1000)
    engines.turn()
    assert engines.rows(0, INTERACTIVE) == 6
    assert engines.rows(0, BATCH) == 2 * (4 + 6), "as many as make a turn, that costs 4 + 6 rows alone, thrice as long"
    engines.turn()
    engines.now -= 0.5
    engines.turn()
    assert engines.rows(0) == engines.rows(0, BATCH) == 20, "more interactive jobs may come"
    engines.turn()
    assert engines.rows(0, BATCH) == 70


def test_batch_jobs_always_get_some_rows() -> None:
    engines = Engines(scheduler(batch_slowdown=1), max_rows=80)
    engines.fill(1, INTERACTIVE, turns=1000)
    engines.fill(500, BATCH, turns=1000)
    engines.turn()
    assert engines.rows(0, BATCH) == LEAST_ROWS


def test_interactive_rows_count_as_the_mean_of_all_engines() -> None:
    engines = Engines(scheduler(engines=2, batch_slowdown=2, turn_rows=4), max_rows=80, engines=2)
    engines.fill(40, INTERACTIVE, turns=1000)
    for engine in (0, 1, 0, 1):
        engines.turn(engine)
    engines.fill(500, BATCH, turns=1000)
    engines.turn(0)
    assert engines.rows(0, INTERACTIVE) + engines.rows(1, INTERACTIVE) == 40
    assert engines.rows(0, BATCH) == 4 + 20


def test_batch_jobs_earn_no_credit_for_reserved_rows() -> None:
    engines = Engines(scheduler(), max_rows=8)
    engines.fill(200, BATCH, turns=3)
    for _ in range(50):  # batch jobs always occupy seven rows, interactive ones the eighth
        engines.submit(make_job(INTERACTIVE), turns=1)
        engines.turn()
    engines.fill(50, INTERACTIVE, turns=1)
    engines.started.clear()
    engines.run(20)
    assert Counter(job.request.priority for job in engines.started)[INTERACTIVE] >= 20


@pytest.mark.parametrize("priority", Priority)
@pytest.mark.parametrize("rows", [5, 8])
def test_wide_job_starts_among_endless_narrow_ones_that_keep_running(priority: Priority, rows: int) -> None:
    engines = Engines(scheduler(), max_rows=8)
    for _ in range(7):  # so that rows are freed one by one
        engines.submit(make_job(INTERACTIVE), turns=8)
        engines.turn()
    wide = engines.submit(make_job(priority, rows), turns=5)
    turns = narrow = 0
    while wide not in engines.started:
        for other in Priority:
            engines.submit(make_job(other), turns=8)
        narrow += len(engines.turn())
        turns += 1
        assert turns <= 2 * rows * 8
    assert narrow > rows / 2, "narrow jobs keep starting"


def test_wide_jobs_start_in_order() -> None:
    engines = Engines(scheduler(), max_rows=8)
    for _ in range(8):
        engines.submit(make_job(), turns=3)
        engines.turn()
    wide = [engines.submit(make_job(rows=rows), turns=3) for rows in (8, 4, 6, 8, 2)]
    for _ in range(200):
        engines.submit(make_job(), turns=3)
        engines.turn()
    assert [job for job in engines.started if job.search.rows > 4] == [wide[0], wide[2], wide[3]]
    assert set(wide) <= set(engines.started)


def test_wide_job_takes_the_first_engine_with_room() -> None:
    engines = Engines(scheduler(engines=2), max_rows=4, engines=2)
    engines.fill(8, turns=100)
    engines.turn(0)
    engines.turn(1)
    wide = engines.submit(make_job(rows=4))
    engines.turn(0)
    for job in engines.running[1]:
        engines.running[1][job] = 1
    assert engines.turn(1) == [wide]


def test_cancelled_reservation_frees_its_rows() -> None:
    engines = Engines(scheduler(), max_rows=4)
    for turns in (1, 9, 9):
        engines.submit(make_job(), turns=turns)
    engines.turn()
    wide = engines.submit(make_job(rows=4))
    late = engines.submit(make_job(rows=4, deadline=2.5))
    engines.turn()
    assert engines.queue.cancel(wide)
    engines.run(2)
    assert engines.dropped == [late]
    new = engines.fill(2)
    assert engines.turn() == new, "the reserved rows are free again"
    assert engines.queue.waiting == 0


def started_of(engines: Engines, jobs: Sequence[Job]) -> int:
    return sum(job in jobs for job in engines.started)


def test_batch_calls_take_turns_whatever_their_number_of_jobs() -> None:
    engines = Engines(scheduler(), max_rows=1)
    large, small = CallQueue(), CallQueue()
    large_jobs = engines.fill(200, BATCH, call=large)
    engines.run(50)
    small_jobs = engines.fill(10, BATCH, call=small)
    engines.run(10)
    assert (started_of(engines, large_jobs), started_of(engines, small_jobs)) == (55, 5), "an idle call earns no credit"


def test_batch_calls_share_rows_not_jobs() -> None:
    engines = Engines(scheduler(), max_rows=3)
    wide, narrow = CallQueue(), CallQueue()
    wide_jobs = engines.fill(90, rows=2, call=wide)
    narrow_jobs = engines.fill(90, call=narrow)
    engines.run(40)
    assert started_of(engines, narrow_jobs) == pytest.approx(2 * started_of(engines, wide_jobs), abs=3)


@pytest.mark.parametrize("priority", Priority)
@pytest.mark.parametrize("calls", [1, 3])
def test_single_and_batch_calls_take_turns(priority: Priority, calls: int) -> None:
    engines = Engines(scheduler(queue_size=2), max_rows=1)
    items = [
        engines.submit(make_job(priority), call=call) for call in [CallQueue() for _ in range(calls)] for _ in range(30)
    ]
    singles = []
    for _ in range(40):
        while True:  # keep the queue full
            try:
                singles.append(engines.submit(make_job(priority)))
            except QueueFullError:
                break
        engines.turn()
    assert started_of(engines, items) == 40 - started_of(engines, singles) == pytest.approx(20, abs=1)


def test_batch_is_refused_at_its_first_job_only_and_takes_no_room_from_single_calls() -> None:
    queue = scheduler(queue_size=2, queue_tokens=20)
    call, late = CallQueue(), CallQueue()
    for _ in range(50):
        queue.submit(make_job(BATCH), call)
    for _ in range(2):
        queue.submit(make_job(BATCH))
    for refused in (None, late):
        with pytest.raises(QueueFullError):
            queue.submit(make_job(BATCH), refused)
    queue.submit(make_job(BATCH), call)
    assert queue.backlog() == (53, 4 * 53)
    first = queue.take(0, 1, 0.0).admitted
    queue.take(0, 1, 0.0)
    queue.submit(make_job(BATCH, source=16), late)
    assert queue.backlog() == (52, 4 * 51 + 16), "a single call has started"
    assert first[0].queue is None


def test_wide_job_of_a_batch_call_starts_soon_and_delays_nobody() -> None:
    engines = Engines(scheduler(), max_rows=8)
    narrow, wide = CallQueue(), CallQueue()
    for _ in range(7):  # so that rows are freed one by one
        engines.submit(make_job(), turns=7)
        engines.turn()
    widest = engines.submit(make_job(rows=8), turns=1, call=wide)
    others = engines.fill(100, turns=7, call=narrow)
    turns = 0
    while widest not in engines.started:
        engines.turn()
        turns += 1
        assert turns < 60
    assert started_of(engines, others) > 4


def test_jobs_of_a_batch_call_expire_and_cancel_like_others() -> None:
    queue = scheduler()
    early, late = CallQueue(), CallQueue()
    early_jobs = [make_job(deadline=2.0) for _ in range(3)]
    late_jobs = [make_job(time_limit=3.0) for _ in range(3)]
    for job in early_jobs:
        queue.submit(job, early)
    for job in late_jobs:
        queue.submit(job, late)
    assert queue.cancel(early_jobs[0])
    assert not queue.cancel(early_jobs[0])
    assert queue.sweep(2.5).expired == early_jobs[1:]
    assert queue.next_expiry == 3.0
    assert queue.sweep(3.0).out_of_time == late_jobs
    assert (queue.backlog(), queue.take(0, 8, 3.0).admitted) == ((0, 0), [])
    queue.submit(make_job(), early)
    assert queue.remove_engine(0)
    assert queue.waiting == 0


class RandomLoad:
    """Random jobs on fake engines; checks the scheduler's bounds at every step."""

    def __init__(self, seed: int, engines: int, max_rows: int) -> None:
        self.draw = draw = random.Random(seed)
        self.limits = {"queue_size": draw.randint(1, 30), "queue_tokens": draw.randint(5, 200)}
        self.encode_tokens = draw.randint(5, 100)
        self.queue = scheduler(engines, **self.limits, encode_tokens=self.encode_tokens)
        self.engines, self.count, self.max_rows = Engines(self.queue, max_rows, engines), engines, max_rows
        self.calls = {priority: [CallQueue() for _ in range(3)] for priority in Priority}
        self.deadlines = {self.calls[priority][0]: float(draw.randint(1, 300)) for priority in (BATCH, INTERACTIVE)}
        self.call_of: dict[Job, CallQueue | None] = {}
        self.waiting: set[Job] = set()
        self.accepted: list[Job] = []
        self.cancelled: set[Job] = set()

    def submit(self) -> None:
        """Submits a job; it must be accepted if and only if the queue has room or its call is accepted already."""
        draw = self.draw
        priority = draw.choice(list(Priority))
        rows = draw.choice([1, 1, 1, 2, draw.randint(1, self.max_rows)])
        call = draw.choice([None, None, None, *self.calls[priority]])
        times = {"deadline": self.engines.now + draw.randint(1, 40)} if draw.random() < 0.2 else {}
        if call is not None:
            times = {"deadline": self.deadlines[call]} if call in self.deadlines else {}
        new = make_job(priority, min(rows, self.max_rows), draw.randint(1, 30), self.engines.now, **times)
        self.call_of[new] = call
        singles = [job for job in self.waiting if job.request.priority is priority and self.call_of[job] is None]
        tokens = sum(len(job.request.source_ids) for job in [*singles, new])
        fits = not singles or (len(singles) < self.limits["queue_size"] and tokens <= self.limits["queue_tokens"])
        fits = fits or (call is not None and call.accepted)
        try:
            self.engines.submit(new, draw.randint(1, 6), call)
        except QueueFullError:
            assert not fits
        else:
            assert fits
            self.waiting.add(new)
            self.accepted.append(new)

    def cancel(self) -> None:
        job = self.draw.choice(sorted(self.waiting, key=self.accepted.index))
        assert self.queue.cancel(job)
        self.waiting.discard(job)
        self.cancelled.add(job)

    def turn(self) -> None:
        engines, max_rows = self.engines, self.max_rows
        engine = self.draw.randrange(self.count)
        batch_before = engines.rows(engine, BATCH)
        started = engines.turn(engine)
        self.waiting.difference_update(started, engines.dropped)
        rows = [engines.rows(index) for index in range(self.count)]
        assert max(rows) <= max_rows
        assert self.queue.running == sum(rows)
        assert self.queue.backlog() == (len(self.waiting), sum(len(job.request.source_ids) for job in self.waiting))
        tokens = [len(job.request.source_ids) for job in started]
        assert len(tokens) <= 1 or sum(tokens) <= self.encode_tokens
        narrow = [job for job in started if job.request.priority is BATCH and job.search.rows == 1]
        if narrow and batch_before:
            widest = max(job.search.rows for job in engines.running[engine])
            assert widest > 1 or engines.rows(engine, BATCH) <= max_rows - max_rows // BATCH_RESERVE
        assert not any(job.expired(engines.now - 1.0) for job in started)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 20))
def test_bounds_hold_and_every_job_starts_under_random_load(seed: int, engine_count: int, max_rows: int) -> None:
    load = RandomLoad(seed, engine_count, max_rows)
    for _ in range(load.draw.randint(10, 150)):
        for _ in range(load.draw.randint(0, 3)):
            load.submit()
        if load.waiting and load.draw.random() < 0.1:
            load.cancel()
        load.turn()
    turns = 0
    while load.waiting or load.queue.running:
        load.turn()
        turns += 1
        assert turns < 40 * (len(load.accepted) + 10) * engine_count, "a job waits too long"
    started = load.engines.started
    assert set(started) | set(load.engines.dropped) | load.cancelled == set(load.accepted)
    assert len(started) == len(set(started))
    order: dict[tuple[Priority, CallQueue | None], list[int]] = {}
    for job in started:
        if job.search.rows == 1:
            order.setdefault((job.request.priority, load.call_of[job]), []).append(load.accepted.index(job))
    assert all(indices == sorted(indices) for indices in order.values()), "equal jobs start in their order of arrival"
