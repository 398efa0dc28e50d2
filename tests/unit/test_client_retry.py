"""When the client sends a failed call again."""

import pytest

from dragoman.errors import (
    DragomanError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from dragoman.retry import Attempts, RetryPolicy

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


def test_no_timeout_means_no_limit() -> None:
    assert attempts(None, clock=Clock()).remaining() is None


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
