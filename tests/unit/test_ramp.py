"""When queue and latency rise under rising load."""

import pytest

from tests.ramp.measure import arrival_times
from tests.ramp.results import CONSECUTIVE, SLOW, Moment, Ramp


def ramp(*moments: tuple[float | None, float | None]) -> Ramp:
    """Returns a ramp from the waiting requests and the latency of each second; a full server's latency is 1 s."""
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


def test_rise_lasts_several_seconds() -> None:
    low, high = (0.0, 0.5), (5.0, SLOW + 0.1)
    assert second(ramp(low, *[high] * CONSECUTIVE, low).queue_rises(4)) == 1
    assert second(ramp(low, *[high] * CONSECUTIVE, low).latency_rises()) == 1
    chance = ramp(high, low, *[high] * (CONSECUTIVE - 1), low)
    assert chance.queue_rises(4) is None
    assert chance.latency_rises() is None
    assert second(ramp(*[(5.0, 0.5)] * 2, *[high] * CONSECUTIVE).queue_rises(4)) == 0
    assert second(ramp(*[(5.0, 0.5)] * 2, *[high] * CONSECUTIVE).latency_rises()) == 2


def test_neither_the_limit_itself_nor_a_missing_measurement_is_a_rise() -> None:
    assert ramp(*[(4.0, SLOW)] * 5).queue_rises(4) is None
    assert ramp(*[(4.0, SLOW)] * 5).latency_rises() is None
    assert ramp(*[(None, None)] * 5).queue_rises(4) is None
    assert ramp(*[(None, None)] * 5).latency_rises() is None


def test_arrival_rate_rises_linearly() -> None:
    due = arrival_times(100, 500, 10, seed=1)
    assert due == sorted(due)
    assert 0 < due[0] < due[-1] < 10
    halves = [sum(low <= at < low + 5 for at in due) for low in (0, 5)]
    assert halves == pytest.approx([1000, 2000], rel=0.1)
