"""When the client sends a failed call again."""

from typing import Literal

import pytest

from dragoman.errors import (
    DragomanError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from dragoman.retry import NO_RETRY, Attempts, RetryPolicy

POLICY = RetryPolicy(attempts=4, initial_delay=0.1, factor=2, max_delay=1, jitter=0.5)
FULL = ResourceExhaustedError("full", retry_after=0.3)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def attempts(timeout: float | None = None, *, chance: float = 0, patient: bool = False, clock: Clock) -> Attempts:
    return Attempts(POLICY, timeout, patient=patient, clock=clock, chance=lambda: chance)


def test_the_wait_doubles_until_the_attempts_are_used_up() -> None:
    call = attempts(clock=Clock())
    waits = [call.delay_after(UnavailableError("gone")) for _ in range(4)]
    assert waits == [pytest.approx(0.1), pytest.approx(0.2), pytest.approx(0.4), None]


def test_the_wait_is_bounded() -> None:
    call = Attempts(RetryPolicy(attempts=100, max_delay=1, jitter=0), None)
    assert [call.delay_after(UnavailableError("gone")) for _ in range(50)][-1] == 1


def test_jitter_adds_to_the_wait() -> None:
    assert attempts(chance=1, clock=Clock()).delay_after(UnavailableError("gone")) == pytest.approx(0.15)


@pytest.mark.parametrize("error", [FULL, UnavailableError("draining", retry_after=0.3)])
def test_the_server_s_delay_is_the_least_wait(error: DragomanError) -> None:
    assert attempts(clock=Clock()).delay_after(error) == pytest.approx(0.3)
    assert attempts(chance=1, clock=Clock()).delay_after(error) == pytest.approx(0.45)


@pytest.mark.parametrize("error", [InvalidArgumentError("no"), ResourceExhaustedError("message larger than max")])
def test_what_would_fail_again_is_not_sent_again(error: DragomanError) -> None:
    assert attempts(clock=Clock()).delay_after(error) is None


def test_a_wait_past_the_timeout_is_not_begun() -> None:
    clock = Clock()
    call = attempts(0.35, clock=clock)
    assert call.delay_after(FULL) == pytest.approx(0.3)
    clock.now += 0.3
    assert call.remaining() == pytest.approx(0.05)
    assert call.delay_after(UnavailableError("gone")) is None
    clock.now += 1
    assert call.remaining() == 0


def test_a_patient_call_bears_refusals_until_its_timeout() -> None:
    clock = Clock()
    call = attempts(1000, patient=True, clock=clock)
    assert all(call.delay_after(FULL) for _ in range(100))
    assert call.delay_after(UnavailableError("gone"))  # these still count
    assert [call.delay_after(UnavailableError("gone")) is None for _ in range(3)] == [False, False, True]
    clock.now += 999.9
    assert call.delay_after(FULL) is None


def test_no_timeout_means_no_limit_to_a_call_and_a_minute_of_retries() -> None:
    clock = Clock()
    call = Attempts(RetryPolicy(jitter=0), None, clock=clock)
    waited = 0.0
    while (delay := call.delay_after(UnavailableError("gone"))) is not None:
        clock.now += delay
        waited += delay
    assert 55 < waited <= 60
    assert call.remaining() is None
    patient = attempts(None, patient=True, clock=clock)
    for _ in range(100):
        clock.now += 10
        assert patient.delay_after(FULL)


@pytest.mark.parametrize("timeout", [1.0, 60.0])
def test_by_default_retries_last_as_long_as_the_timeout(timeout: float) -> None:
    clock = Clock()
    call = Attempts(RetryPolicy(), timeout, clock=clock, chance=lambda: 1.0)
    waits: list[float] = []
    while (delay := call.delay_after(UnavailableError("gone"))) is not None:
        waits.append(delay)
        clock.now += delay
    assert timeout - 0.2 <= sum(waits) < timeout, "the last attempt comes near the end, and within it"
    assert max(waits) <= 5 * 1.25
    assert len(waits) < 30
    assert call.remaining()


def test_a_retry_is_told_of_with_its_wait() -> None:
    told: list[tuple[str, float]] = []
    policy = RetryPolicy(attempts=2, jitter=0, on_retry=lambda error, delay: told.append((str(error), delay)))
    call = Attempts(policy, 10)
    assert call.delay_after(UnavailableError("gone")) == pytest.approx(0.1)
    assert call.delay_after(UnavailableError("gone again")) is None
    assert told == [("gone", 0.1)]


def unconnected(why: Literal["unready", "tls", "network"]) -> UnavailableError:
    error = UnavailableError("no server")
    error.connection_failure = why
    return error


def test_where_no_server_says_that_it_is_ready_the_call_goes_to_them_all_the_same() -> None:
    call = Attempts(POLICY, 10, follow_health=True, clock=Clock(), chance=lambda: 0)
    assert not call.ignore_health
    for wait in (0.1, 0.2, 0.4):
        assert (call.delay_after(unconnected("unready")), call.ignore_health) == (0.0, True)
        assert (call.delay_after(unconnected("unready")), call.ignore_health) == (wait, False)
    assert (call.delay_after(unconnected("network")), call.ignore_health) == (0.0, True)
    assert call.delay_after(UnavailableError("it is draining")) is None, "it has said so itself, at the last attempt"


def test_without_retries_too_but_not_past_the_timeout() -> None:
    clock = Clock()
    assert Attempts(NO_RETRY, None, follow_health=True).delay_after(unconnected("unready")) == 0.0
    late = Attempts(NO_RETRY, 1, follow_health=True, clock=clock)
    clock.now += 2
    assert late.delay_after(unconnected("unready")) is None


def test_where_health_is_not_followed_every_call_goes_ignore_health() -> None:
    call = attempts(clock=Clock())
    assert call.ignore_health
    assert call.delay_after(unconnected("network")) == pytest.approx(0.1)
    assert call.ignore_health


def test_what_servers_answer_to_a_call_is_no_news_of_their_health() -> None:
    call = Attempts(POLICY, 10, follow_health=True, clock=Clock(), chance=lambda: 0)
    assert call.delay_after(UnavailableError("it is draining")) == pytest.approx(0.1)
    assert not call.ignore_health


def test_a_disagreement_on_tls_is_not_waited_out() -> None:
    clock = Clock()
    call = Attempts(RetryPolicy(), 1000, clock=clock)
    assert [call.delay_after(unconnected("tls")) is None for _ in range(5)] == [False] * 4 + [True]


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_is_more_than_nothing(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout: expected more than 0 seconds"):
        Attempts(POLICY, timeout)


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"initial_delay": 0}, {"max_delay": 0.01}, {"factor": 0.5}, {"jitter": -1}]
)
def test_a_policy_is_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        RetryPolicy(**wrong)  # type: ignore[arg-type]
