"""The GenerateMany calls of generate_many: which source goes where, timeouts, and what the end of a call means."""

from collections.abc import Iterable

import pytest
from google.rpc import code_pb2, status_pb2

from dragoman.errors import (
    TIMED_OUT,
    CallCancelledError,
    DeadlineExceededError,
    DragomanError,
    ResourceExhaustedError,
    ServerError,
    UnavailableError,
)
from dragoman.many import LARGE_BYTES, MESSAGE_BYTES, RENEW_SECONDS, ManyCall, ManyCalls
from dragoman.pipeline import Job
from dragoman.results import Result
from dragoman.retry import NO_RETRY, Attempts
from dragoman.v1 import generation_pb2 as pb
from tests.support.clock import Clock

ITEMS = 4  # in one call
DEFAULTS = {"model": "m", "options": pb.GenerationOptions(beam_size=3), "details": pb.Details(), "priority": 2}


@pytest.fixture
def streams(clock: Clock) -> ManyCalls:
    return ManyCalls(DEFAULTS, ITEMS, clock=clock)


def job(number: int, clock: Clock, text: str = "a", timeout: float | None = None, health: bool = True) -> Job:
    attempts = Attempts(NO_RETRY, timeout, clock=clock)
    attempts.ignore_health = health
    return Job(number, pb.Input(text=text), attempts, number)


def added(streams: ManyCalls, jobs: Iterable[Job]) -> list[Job]:
    jobs = list(jobs)
    for each in jobs:
        streams.add(each)
    return jobs


def sent(streams: ManyCalls) -> list[tuple[ManyCall, pb.GenerateManyRequest]]:
    """Returns the only message of each call that has one."""
    found = []
    for call, messages in streams.messages():
        assert len(messages) <= 1
        found += [(call, message) for message in messages]
    return found


def answer(id_: str, text: str = "A") -> pb.ManyAnswer:
    return pb.ManyAnswer(id=id_, response=pb.GenerateResponse(hypotheses=[pb.Hypothesis(text=text)]))


def ids(message: pb.GenerateManyRequest) -> list[str]:
    return [item.id for item in message.items]


def test_sources_share_calls_of_which_the_first_message_has_the_options(streams: ManyCalls, clock: Clock) -> None:
    added(streams, (job(number, clock) for number in range(1, 7)))
    (first, message), (second, other) = sent(streams)
    assert (ids(message), ids(other)) == (["1", "2", "3", "4"], ["5", "6"])
    assert message.defaults == other.defaults == pb.GenerateRequest(**DEFAULTS)  # type: ignore[arg-type]
    assert message.items[0].request == pb.GenerateRequest(input=pb.Input(text="a"))
    assert sent(streams) == []
    assert [len(found) for found in (first.jobs, second.jobs)] == [4, 2]
    answers = pb.GenerateManyResponse(answers=[answer("2", "B"), answer("1", "A"), answer("9")])
    assert [(each.number, outcome.text) for each, outcome in first.answers(answers) if isinstance(outcome, Result)] == [
        (2, "B"),
        (1, "A"),
    ]
    added(streams, [job(7, clock)])
    [(call, message)] = sent(streams)
    assert call is first, "it has room again"
    assert not message.HasField("defaults")


def test_items_have_errors_of_their_own(streams: ManyCalls, clock: Clock) -> None:
    added(streams, [job(1, clock), job(2, clock)])
    [(call, _)] = sent(streams)
    error = status_pb2.Status(code=code_pb2.RESOURCE_EXHAUSTED, message="the queue is full")
    response = pb.GenerateManyResponse(answers=[pb.ManyAnswer(id="1", error=error), pb.ManyAnswer(id="2")])
    (_, full), (_, incomplete) = call.answers(response)
    assert isinstance(full, ResourceExhaustedError)
    assert full.request_id == call.attempts.request_id
    assert isinstance(incomplete, ServerError)


def test_sources_for_unready_servers_have_calls_of_their_own(streams: ManyCalls, clock: Clock) -> None:
    added(streams, [job(1, clock, health=False), job(2, clock), job(3, clock, health=False)])
    assert [(call.attempts.ignore_health, ids(message)) for call, message in sent(streams)] == [
        (False, ["1", "3"]),
        (True, ["2"]),
    ]


def test_after_some_time_sources_go_into_a_new_call(streams: ManyCalls, clock: Clock) -> None:
    added(streams, [job(1, clock)])
    [(old, _)] = sent(streams)
    clock.now += RENEW_SECONDS - 1
    assert sent(streams) == []
    clock.now += 2
    added(streams, [job(2, clock)])
    [(new, message)] = sent(streams)
    assert (new is not old, ids(message)) == (True, ["2"])
    assert not old.closed, "its source may have to be cancelled"
    assert len(list(old.answers(pb.GenerateManyResponse(answers=[answer("1")])))) == 1
    assert list(streams.messages()) == [(old, [])]
    assert (old.closed, new.closed) == (True, False)
    assert streams.ended(old, None) == ([], None)


def test_a_source_in_an_old_call_is_cancelled_as_well(streams: ManyCalls, clock: Clock) -> None:
    added(streams, [job(1, clock, timeout=2 * RENEW_SECONDS)])
    [(call, _)] = sent(streams)
    clock.now += RENEW_SECONDS + 1
    assert sent(streams) == []
    clock.now += RENEW_SECONDS
    assert len(streams.expired()) == 1
    [(_, [message])] = streams.messages()
    assert list(message.cancel) == ["1"]
    assert call.closed, "it has nothing left to do"


def test_large_sources_are_sent_alone_and_messages_stay_small(streams: ManyCalls, clock: Clock) -> None:
    large, small = job(1, clock, "x" * (LARGE_BYTES + 1)), job(2, clock)
    assert [streams.needs_own_call(each) for each in (large, small)] == [True, False]
    wide = ManyCalls(DEFAULTS, 100, clock=clock)
    added(wide, (job(number, clock, "x" * (LARGE_BYTES - 100)) for number in range(20)))
    [(_, messages)] = list(wide.messages())
    assert [number for message in messages for number in ids(message)] == [str(number) for number in range(20)]
    assert max(message.ByteSize() for message in messages) < MESSAGE_BYTES + 2 * LARGE_BYTES < 4 * 2**20
    assert [message.HasField("defaults") for message in messages] == [True] + [False] * (len(messages) - 1)


def test_a_source_whose_timeout_passes_fails_and_is_cancelled(streams: ManyCalls, clock: Clock) -> None:
    first, second, _ = added(streams, [job(1, clock, timeout=5), job(2, clock, timeout=3), job(3, clock, timeout=None)])
    [(call, _)] = sent(streams)
    assert (streams.delay(), streams.expired()) == (3, [])
    clock.now += 3.5
    [(expired, error)] = streams.expired()
    assert expired is second
    assert isinstance(error, DeadlineExceededError)
    assert str(error) == TIMED_OUT
    assert streams.delay() == pytest.approx(1.5)
    [(_, message)] = sent(streams)
    assert (list(message.cancel), ids(message)) == (["2"], [])
    late = pb.GenerateManyResponse(answers=[answer("2"), answer("1")])
    assert [each for each, _ in call.answers(late)] == [first]
    clock.now += 10
    assert (streams.expired(), streams.delay()) == ([], None)


@pytest.mark.parametrize(
    "error",
    [
        UnavailableError("gone"),
        ResourceExhaustedError("this API key is limited to 1 call at once", retry_after=0.25),
        CallCancelledError("closed"),
        ServerError("no", code="PERMISSION_DENIED"),
    ],
)
def test_the_failure_of_a_call_is_that_of_its_sources(streams: ManyCalls, clock: Clock, error: DragomanError) -> None:
    jobs = added(streams, [job(1, clock), job(2, clock)])
    [(call, _)] = sent(streams)
    assert streams.ended(call, error) == (jobs, error)
    assert not any(map(streams.needs_own_call, jobs))


@pytest.mark.parametrize(
    "error",
    [
        ResourceExhaustedError("message larger than max"),
        ServerError("Internal error from Core", code="INTERNAL"),
        None,
    ],
)
def test_sources_of_a_call_that_broke_are_sent_alone(
    streams: ManyCalls, clock: Clock, error: DragomanError | None
) -> None:
    jobs = added(streams, [job(1, clock), job(2, clock)])
    [(call, _)] = sent(streams)
    assert streams.ended(call, error) == (jobs, None)
    assert all(map(streams.needs_own_call, jobs))
    assert not streams.needs_own_call(job(3, clock))


def test_an_older_server_gets_a_call_for_each_source(streams: ManyCalls, clock: Clock) -> None:
    jobs = added(streams, [job(1, clock), job(2, clock)])
    [(call, _)] = sent(streams)
    assert streams.ended(call, ServerError("Method not found!", code="UNIMPLEMENTED")) == (jobs, None)
    assert all(map(streams.needs_own_call, [*jobs, job(3, clock)]))
    assert not any(each.alone for each in jobs)
