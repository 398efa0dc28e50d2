"""Retries: when a failed call is sent again, and the state machines of generate_batch and generate_many."""

import random
from collections import deque
from functools import partial
from typing import Any, Literal

import grpc
import pytest

from dragoman.errors import (
    DeadlineExceededError,
    DragomanError,
    InvalidArgumentError,
    ItemError,
    NotFoundError,
    ResourceExhaustedError,
    ServerError,
    UnavailableError,
)
from dragoman.pipeline import Batch, Job, Pipeline, Window
from dragoman.results import FinishReason, Hypothesis, Result
from dragoman.retry import NO_RETRY, Attempts, RetryPolicy
from dragoman.v1 import generation_pb2 as pb
from tests.support.clock import Clock
from tests.support.scripted_server import Fail

POLICY = RetryPolicy(attempts=4, initial_delay=0.1, factor=2, max_delay=1, jitter=0.5)
NO_JITTER = RetryPolicy(attempts=3, initial_delay=0.1, jitter=0)
FULL = ResourceExhaustedError("full", retry_after=0.3)
GONE = UnavailableError("gone")
LOST = pb.BatchItem(error=Fail(grpc.StatusCode.UNAVAILABLE, "a worker died").status())
LATER = pb.BatchItem(error=Fail(grpc.StatusCode.UNAVAILABLE, "stopping", retry_after=0.5).status())


def attempts(timeout: float | None = None, *, chance: float = 0, **arguments: Any) -> Attempts:
    return Attempts(POLICY, timeout, chance=lambda: chance, **arguments)


def unconnected(failure: Literal["unready", "tls", "network"]) -> UnavailableError:
    error = UnavailableError("no server")
    error.connection_failure = failure
    return error


def test_the_delay_doubles_until_the_attempts_are_used_up() -> None:
    call = attempts()
    assert [call.delay_after(GONE) for _ in range(4)] == [*map(pytest.approx, (0.1, 0.2, 0.4)), None]
    bounded = Attempts(RetryPolicy(attempts=100, max_delay=1, jitter=0), None)
    assert [bounded.delay_after(GONE) for _ in range(50)][-1] == 1


@pytest.mark.parametrize(
    ("error", "delays"),
    [
        (GONE, (0.1, 0.15)),
        (FULL, (0.3, 0.45)),
        (UnavailableError("draining", retry_after=0.3), (0.3, 0.45)),
        (InvalidArgumentError("no"), (None, None)),
        (ResourceExhaustedError("message larger than max"), (None, None)),
    ],
)
def test_the_delay_is_at_least_the_server_s_plus_jitter(
    error: DragomanError, delays: tuple[float | None, float | None]
) -> None:
    found = [attempts(chance=chance).delay_after(error) for chance in (0, 1)]
    assert found == [delay if delay is None else pytest.approx(delay) for delay in delays]


def test_no_delay_goes_past_the_timeout(clock: Clock) -> None:
    call = attempts(0.35, clock=clock)
    assert call.delay_after(FULL) == pytest.approx(0.3)
    clock.now += 0.3
    assert call.remaining() == pytest.approx(0.05)
    assert call.delay_after(GONE) is None
    clock.now += 1
    assert call.remaining() == 0


def test_a_patient_call_bears_refusals_until_its_timeout(clock: Clock) -> None:
    call = attempts(1000, patient=True, clock=clock)
    assert all(call.delay_after(FULL) for _ in range(100))
    assert [call.delay_after(GONE) is None for _ in range(4)] == [False, False, False, True], "other failures count"
    clock.now += 999.9
    assert call.delay_after(FULL) is None


def test_without_a_timeout_retries_last_a_minute(clock: Clock) -> None:
    call = Attempts(RetryPolicy(jitter=0), None, clock=clock)
    start = clock.now
    while (delay := call.delay_after(GONE)) is not None:
        clock.now += delay
    assert 55 < clock.now - start <= 60
    assert call.remaining() is None
    patient = attempts(patient=True, clock=clock)
    for _ in range(100):
        clock.now += 10
        assert patient.delay_after(FULL)


@pytest.mark.parametrize("timeout", [1.0, 60.0])
def test_by_default_retries_last_as_long_as_the_timeout(timeout: float, clock: Clock) -> None:
    call = Attempts(RetryPolicy(), timeout, clock=clock, chance=lambda: 1.0)
    delays: list[float] = []
    while (delay := call.delay_after(GONE)) is not None:
        delays.append(delay)
        clock.now += delay
    assert timeout - 0.2 <= sum(delays) < timeout, "the last attempt comes near the end, and within it"
    assert max(delays) <= 5 * 1.25
    assert len(delays) < 30
    assert call.remaining()


def test_on_retry_gets_the_error_and_the_delay() -> None:
    seen: list[tuple[str, float]] = []
    policy = RetryPolicy(attempts=2, jitter=0, on_retry=lambda error, delay: seen.append((str(error), delay)))
    call = Attempts(policy, 10)
    assert call.delay_after(GONE) == pytest.approx(0.1)
    assert call.delay_after(UnavailableError("gone again")) is None
    assert seen == [("gone", 0.1)]


def test_a_call_keeps_its_request_id_and_shares_it_with_no_other() -> None:
    several = [Attempts(NO_RETRY, None) for _ in range(10)]
    assert len({call.request_id for call in several}) == 10
    request_id = ("x-request-id", several[0].request_id)
    assert several[0].metadata(None) == several[0].metadata(None) == (request_id,)
    assert several[0].metadata((("authorization", "Bearer key"),)) == (("authorization", "Bearer key"), request_id)


def test_if_no_server_is_ready_the_call_ignores_health_at_once() -> None:
    call = attempts(10, follow_health=True)
    assert not call.ignore_health
    for delay in (0.1, 0.2, 0.4):
        assert (call.delay_after(unconnected("unready")), call.ignore_health) == (0.0, True)
        assert (call.delay_after(unconnected("unready")), call.ignore_health) == (delay, False)
    assert (call.delay_after(unconnected("network")), call.ignore_health) == (0.0, True)
    assert call.delay_after(UnavailableError("draining")) is None, "an answer of a server, at the last attempt"


def test_ignoring_health_needs_no_retries_but_time(clock: Clock) -> None:
    assert Attempts(NO_RETRY, None, follow_health=True).delay_after(unconnected("unready")) == 0.0
    late = Attempts(NO_RETRY, 1, follow_health=True, clock=clock)
    clock.now += 2
    assert late.delay_after(unconnected("unready")) is None


@pytest.mark.parametrize(
    ("follow_health", "error"), [(False, unconnected("network")), (True, UnavailableError("draining"))]
)
def test_otherwise_health_is_followed_or_ignored_throughout(follow_health: bool, error: DragomanError) -> None:
    call = attempts(10, follow_health=follow_health)
    assert call.delay_after(error) == pytest.approx(0.1)
    assert call.ignore_health is not follow_health


def test_a_disagreement_on_tls_ends_after_five_attempts(clock: Clock) -> None:
    call = Attempts(RetryPolicy(), 1000, clock=clock)
    assert [call.delay_after(unconnected("tls")) is None for _ in range(5)] == [False] * 4 + [True]


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_the_timeout_must_be_positive(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout: expected more than 0 seconds"):
        attempts(timeout)


def test_the_timeout_must_be_a_number() -> None:
    with pytest.raises(TypeError, match=r"^timeout: expected a number, got '1'"):
        attempts("1")  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [1e19, float("inf"), 10**400])
def test_an_endless_timeout_is_one_that_grpc_understands(timeout: float, clock: Clock) -> None:
    assert Attempts(NO_RETRY, timeout, clock=clock).remaining() == pytest.approx(1e9)


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"initial_delay": 0}, {"max_delay": 0.01}, {"factor": 0.5}, {"jitter": -1}]
)
def test_a_policy_is_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        RetryPolicy(**wrong)  # type: ignore[arg-type]


def answer(text: str) -> pb.BatchItem:
    return pb.BatchItem(response=pb.GenerateResponse(hypotheses=[pb.Hypothesis(text=text)]))


def response(*items: pb.BatchItem) -> pb.GenerateBatchResponse:
    return pb.GenerateBatchResponse(items=items)


def pending(batch: Batch) -> list[str]:
    return [message.text for message in batch.request.inputs] if batch.request is not None else []


def texts(outcomes: list[Result | ItemError]) -> list[str]:
    return [str(each) if isinstance(each, ItemError) else each.text for each in outcomes]


def test_a_batch_leaves_out_what_cannot_be_sent_and_keeps_the_order() -> None:
    batch, call = Batch(["a", "\ud800", "b"]), Attempts(NO_JITTER, None)
    assert pending(batch) == ["a", "b"]
    with pytest.raises(ServerError, match="answered 1 of 2 inputs"):
        batch.answered(response(answer("A")), call)
    refusal = Fail(grpc.StatusCode.INVALID_ARGUMENT, "is bad", field="inputs[1].text").status()
    assert batch.answered(response(answer("A"), pb.BatchItem(error=refusal)), call) == 0
    assert batch.request is None
    first, second, third = batch.outcomes()
    assert texts([first, third]) == ["A", "input 2: inputs[1].text is bad"]
    assert isinstance(second, ItemError)
    assert (second.index, second.code, "lone surrogate" in str(second)) == (1, "INVALID_ARGUMENT", True)
    unsendable = Batch(["\ud800"])
    assert (unsendable.request, len(unsendable.outcomes())) == (None, 1)
    assert (Batch([]).request, Batch([]).outcomes()) == (None, [])


def test_lost_items_are_sent_again_after_the_longest_delay_of_the_server() -> None:
    batch, call = Batch(list("abcd")), Attempts(NO_JITTER, None)
    assert batch.answered(response(LOST, answer("B"), LATER, answer("D")), call) == 0.5
    assert pending(batch) == ["a", "c"]
    assert batch.answered(response(LOST, answer("C")), call) == pytest.approx(0.2)
    assert pending(batch) == ["a"]
    assert batch.answered(response(answer("A")), call) == 0
    assert (pending(batch), texts(batch.outcomes())) == ([], ["A", "B", "C", "D"])


@pytest.mark.parametrize("call", [Attempts(NO_RETRY, None), Attempts(NO_JITTER, 0.05)])
def test_without_another_attempt_lost_items_stay_lost(call: Attempts) -> None:
    batch = Batch(["a", "b"])
    assert batch.answered(response(LOST, answer("B")), call) == 0
    assert (pending(batch), texts(batch.outcomes())) == ([], ["input 0: a worker died", "B"])


def test_the_failure_of_a_retry_concerns_the_lost_items_only() -> None:
    batch, call = Batch(["a", "b"]), Attempts(NO_JITTER, None)
    with pytest.raises(DeadlineExceededError):
        batch.failed(DeadlineExceededError("late"))
    batch.answered(response(LOST, answer("B")), call)
    batch.failed(DeadlineExceededError("late"))
    assert (pending(batch), texts(batch.outcomes())) == ([], ["input 0: late", "B"])


@pytest.fixture
def pipeline(clock: Clock) -> Pipeline:
    start = partial(Attempts, NO_JITTER, 10, patient=True, clock=clock)
    return Pipeline(start, 32, clock=clock)


def result(text: str) -> Result:
    return Result((Hypothesis(text, FinishReason.EOS, 1),), 1, "m")


def fill(pipeline: Pipeline, sources: deque[str]) -> list[Job]:
    while sources and pipeline.has_room():
        pipeline.add(sources.popleft())
    return pipeline.due()


def drained(pipeline: Pipeline) -> list[str]:
    popped = []
    while (outcome := pipeline.pop()) is not None:
        popped.append(outcome)
    return texts(popped)


def test_outcomes_have_the_order_of_the_sources(pipeline: Pipeline) -> None:
    first, second, third = fill(pipeline, deque(["a", "\ud800", "b", "c"]))
    assert [job.source.text for job in (first, second, third)] == ["a", "b", "c"]
    pipeline.answered(third, result("C"))
    assert drained(pipeline) == []
    pipeline.answered(first, result("A"))
    answered, unsendable = drained(pipeline)
    assert (answered, unsendable[:15]) == ("A", "input 1: text: ")
    pipeline.failed(second, DeadlineExceededError("late"))
    assert drained(pipeline) == ["input 2: late", "C"]
    assert pipeline.empty


def test_a_failure_that_concerns_all_sources_is_raised(pipeline: Pipeline) -> None:
    first, *_ = fill(pipeline, deque("ab"))
    with pytest.raises(NotFoundError):
        pipeline.failed(first, NotFoundError("no such model"))


def test_a_server_that_never_answered_is_tried_again_and_then_raises(pipeline: Pipeline, clock: Clock) -> None:
    (job,) = fill(pipeline, deque("a"))
    for delay in (0.1, 0.2):
        pipeline.failed(job, GONE)
        assert pipeline.due() == []
        assert pipeline.delay() == pytest.approx(delay)
        clock.now += delay
        assert pipeline.due() == [job]
    with pytest.raises(UnavailableError):
        pipeline.failed(job, GONE)


@pytest.mark.parametrize("error", [None, InvalidArgumentError("no")])
def test_a_server_that_was_there_costs_only_the_sources_it_lost(
    pipeline: Pipeline, clock: Clock, error: DragomanError | None
) -> None:
    first, second, third = fill(pipeline, deque("abc"))
    pipeline.answered(first, result("A")) if error is None else pipeline.failed(first, error)
    for _ in range(3):
        pipeline.failed(second, GONE)
        clock.now += 1
        pipeline.due()
    pipeline.answered(third, result("C"))
    assert drained(pipeline) == ["A" if error is None else "input 0: no", "input 1: gone", "C"]
    assert pipeline.empty


def test_a_refused_source_is_sent_after_the_server_s_delay_until_its_timeout(pipeline: Pipeline, clock: Clock) -> None:
    (job,) = fill(pipeline, deque("a"))
    start, sent = clock.now, 1
    while True:
        pipeline.failed(job, FULL)
        if (delay := pipeline.delay()) is None:
            break
        assert delay >= 0.3 - 1e-9
        clock.now += delay
        assert pipeline.due() == [job]
        sent += 1
    assert drained(pipeline) == ["input 0: full"]
    assert sent > (NO_JITTER.attempts or 0)
    assert clock.now - start <= 10


def test_reading_stops_while_the_first_answer_holds_up_the_others(pipeline: Pipeline) -> None:
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
    assert window.limit == 16  # now one per round
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
def test_every_source_is_answered_once_and_in_order_by_a_capricious_server(seed: int, clock: Clock) -> None:
    chance = random.Random(seed)
    start = partial(Attempts, NO_JITTER, 1e6, patient=True, clock=clock)
    pipeline = Pipeline(start, 16, clock=clock)
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
            pipeline.answered(job, result(job.source.text))
        answers += drained(pipeline)
    assert answers == list(map(str, range(300)))
