"""The order, the window and the retries of generate_many, without a server and on a clock of the test's own."""

import random
from collections import deque

import pytest

from dragoman import calls
from dragoman.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    ItemError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from dragoman.pipeline import Job, Pipeline, Window
from dragoman.results import FinishReason, Hypothesis, Result
from dragoman.retry import Attempts, RetryPolicy

POLICY = RetryPolicy(attempts=3, initial_delay=0.1, jitter=0)
FULL = ResourceExhaustedError("full", retry_after=0.5)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pipeline(clock: Clock) -> Pipeline:
    return Pipeline(calls.generate_many(), lambda: Attempts(POLICY, 10, patient=True, clock=clock), 32, clock=clock)


def result(text: str) -> Result:
    return Result((Hypothesis(text, FinishReason.EOS, 1),), 1, "m")


def fill(pipeline: Pipeline, sources: deque[str]) -> list[Job]:
    while sources and pipeline.has_room():
        pipeline.add(sources.popleft())
    return pipeline.due()


def drained(pipeline: Pipeline) -> list[str]:
    popped = []
    while (outcome := pipeline.pop()) is not None:
        popped.append(str(outcome) if isinstance(outcome, ItemError) else outcome.text)
    return popped


def test_answers_come_in_the_order_of_the_inputs(pipeline: Pipeline) -> None:
    jobs = fill(pipeline, deque("abc"))
    assert [job.call.request.input.text for job in jobs] == ["a", "b", "c"]
    pipeline.answered(jobs[2], result("C"))
    assert drained(pipeline) == []
    pipeline.answered(jobs[0], result("A"))
    assert drained(pipeline) == ["A"]
    pipeline.answered(jobs[1], result("B"))
    assert drained(pipeline) == ["B", "C"]
    assert pipeline.empty


def test_an_input_that_cannot_be_sent_has_its_place(pipeline: Pipeline) -> None:
    jobs = fill(pipeline, deque(["a", "\ud800", "b"]))
    assert len(jobs) == 2
    for job in jobs:
        pipeline.answered(job, result(job.call.request.input.text))
    first, second, third = drained(pipeline)
    assert (first, third) == ("a", "b")
    assert second.startswith("input 1: text: ")


def test_a_failure_of_one_input_is_its_outcome(pipeline: Pipeline) -> None:
    first, second = fill(pipeline, deque("ab"))
    pipeline.failed(first, InvalidArgumentError("no"))
    pipeline.failed(second, DeadlineExceededError("late"))
    assert drained(pipeline) == ["input 0: no", "input 1: late"]


def test_a_failure_of_all_inputs_is_raised(pipeline: Pipeline) -> None:
    first, *_ = fill(pipeline, deque("ab"))
    with pytest.raises(NotFoundError):
        pipeline.failed(first, NotFoundError("no such model"))


def test_a_lost_server_is_asked_again_and_then_given_up(pipeline: Pipeline, clock: Clock) -> None:
    (job,) = fill(pipeline, deque("a"))
    for wait in (0.1, 0.2):
        pipeline.failed(job, UnavailableError("gone"))
        assert pipeline.due() == []
        assert pipeline.delay() == pytest.approx(wait)
        clock.now += wait
        assert pipeline.due() == [job]
    with pytest.raises(UnavailableError):
        pipeline.failed(job, UnavailableError("gone"))


def test_a_server_that_was_there_and_is_lost_costs_only_what_it_lost(pipeline: Pipeline, clock: Clock) -> None:
    first, second, third = fill(pipeline, deque("abc"))
    pipeline.answered(first, result("A"))
    for _ in range(3):
        pipeline.failed(second, UnavailableError("gone"))
        clock.now += 1
        pipeline.due()
    pipeline.answered(third, result("C"))
    assert drained(pipeline) == ["A", "input 1: gone", "C"]
    assert pipeline.empty


def test_a_refusal_too_shows_that_a_server_was_there(pipeline: Pipeline) -> None:
    first, second = fill(pipeline, deque("ab"))
    pipeline.failed(first, InvalidArgumentError("no"))
    for _ in range(3):
        pipeline.failed(second, UnavailableError("gone"))
    assert drained(pipeline) == ["input 0: no", "input 1: gone"]


def test_a_refused_input_is_sent_after_the_server_s_delay_until_its_timeout(pipeline: Pipeline, clock: Clock) -> None:
    (job,) = fill(pipeline, deque("a"))
    sent = 1
    while True:
        pipeline.failed(job, FULL)
        if (wait := pipeline.delay()) is None:
            break
        assert wait >= 0.5
        clock.now += wait
        assert pipeline.due() == [job]
        sent += 1
    assert drained(pipeline) == ["input 0: full"]
    assert POLICY.attempts is not None
    assert sent > POLICY.attempts
    assert clock.now <= 10


def test_reading_stops_when_the_first_answer_keeps_the_others_waiting(pipeline: Pipeline) -> None:
    sources = deque(map(str, range(1000)))
    jobs = fill(pipeline, sources)
    while len(jobs) > 1:
        for job in jobs[1:]:
            pipeline.answered(job, result("later"))
        jobs = [jobs[0], *fill(pipeline, sources)]
    assert 1000 - len(sources) == 64  # twice the calls in flight
    pipeline.answered(jobs[0], result("first"))
    assert len(drained(pipeline)) == 64
    assert pipeline.has_room()


def test_the_window_doubles_then_halves_once_for_refusals_of_one_moment() -> None:
    window = Window(64)
    assert window.limit == 8
    for _ in range(24):
        window.accepted()
    assert window.limit == 32
    for number in range(1, 33):
        window.refused(number, 32)
    assert window.limit == 16
    for _ in range(16):
        window.accepted()
    assert window.limit == 16  # now one a round
    window.accepted()
    assert window.limit == 17
    window.refused(40, 60)
    assert window.limit == 8


def test_the_window_stays_within_its_bounds() -> None:
    window = Window(3)
    for _ in range(100):
        window.accepted()
        assert window.limit == 3
    for number in range(1, 100):
        window.refused(number, number)
    assert window.limit == 1
    with pytest.raises(ValueError, match="max_in_flight"):
        Window(0)


@pytest.mark.parametrize("seed", range(20))
def test_every_input_is_answered_once_and_in_order_by_a_capricious_server(seed: int, clock: Clock) -> None:
    chance = random.Random(seed)
    pipeline = Pipeline(
        calls.generate_many(), lambda: Attempts(POLICY, 1e6, patient=True, clock=clock), 16, clock=clock
    )
    sources = deque(map(str, range(300)))
    in_flight: list[Job] = []
    answers: list[str] = []
    while sources or not pipeline.empty:
        in_flight += fill(pipeline, sources)
        assert len(in_flight) <= 16
        if not in_flight:
            clock.now += pipeline.delay() or 0
            continue
        job = in_flight.pop(chance.randrange(len(in_flight)))
        if chance.random() < 0.3:
            pipeline.failed(job, FULL)
        else:
            pipeline.answered(job, result(job.call.request.input.text))
        answers += drained(pipeline)
    assert answers == list(map(str, range(300)))
