"""What is said of a load that rises."""

import pytest

from tests.ramp.course import rising
from tests.ramp.lead import IN_A_ROW, SLOW, Moment, Ramp


def ramp(*moments: tuple[float | None, float | None]) -> Ramp:
    """Of what waits and of the latency, second by second; 1 s is the latency of a server that is full."""
    return Ramp(
        rows=8,
        capacity=100,
        full_p95_seconds=1,
        moments=tuple(
            Moment(second, 50, 50, 0, latency, latency, waiting, 4) for second, (waiting, latency) in enumerate(moments)
        ),
    )


def second(moment: Moment | None) -> int | None:
    return None if moment is None else moment.second


def test_what_has_risen_stays_risen_for_some_seconds() -> None:
    low, high = (0.0, 0.5), (5.0, SLOW + 0.1)
    assert second(ramp(low, *[high] * IN_A_ROW, low).queue_rises(4)) == 1
    assert second(ramp(low, *[high] * IN_A_ROW, low).latency_rises()) == 1
    chance = ramp(high, low, *[high] * (IN_A_ROW - 1), low)
    assert chance.queue_rises(4) is None
    assert chance.latency_rises() is None
    assert second(ramp(*[(5.0, 0.5)] * 2, *[high] * IN_A_ROW).queue_rises(4)) == 0
    assert second(ramp(*[(5.0, 0.5)] * 2, *[high] * IN_A_ROW).latency_rises()) == 2


def test_as_much_as_the_limit_is_not_above_it_and_no_measurement_is_no_rise() -> None:
    assert ramp(*[(4.0, SLOW)] * 5).queue_rises(4) is None
    assert ramp(*[(4.0, SLOW)] * 5).latency_rises() is None
    assert ramp(*[(None, None)] * 5).queue_rises(4) is None
    assert ramp(*[(None, None)] * 5).latency_rises() is None


def test_calls_come_at_a_rate_that_rises_in_a_straight_line() -> None:
    due = rising(100, 500, 10, seed=1)
    assert due == sorted(due)
    assert 0 < due[0] < due[-1] < 10
    halves = [sum(low <= at < low + 5 for at in due) for low in (0, 5)]
    assert halves == pytest.approx([1000, 2000], rel=0.1)
