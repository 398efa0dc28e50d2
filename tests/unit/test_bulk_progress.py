"""Progress of long work: what it says of rates and of the time left."""

import time

import pytest

from dragoman.bulk import progress
from dragoman.bulk.progress import Meter, describe_seconds


def test_earlier_lines_count_for_the_time_left_but_not_for_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    done = 0, 0
    meter = Meter(1000, 400, lambda: done)
    assert meter.numbers() == "0.0 lines/s  0.0 tokens/s"
    now, done = 110.0, (200, 1234)
    assert meter.numbers() == "20 lines/s  123 tokens/s  20 s left"
    done = 20, 25
    assert meter.numbers() == "2.0 lines/s  2.5 tokens/s  4.8 min left"
    done = 600, 90_000
    assert meter.numbers() == "60 lines/s  9,000 tokens/s"


def test_lines_appear_now_and_then_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
    measured = 0

    def measure() -> tuple[int, int]:
        nonlocal measured
        measured += 1
        return min(measured, 3), 0

    with Meter(10, 5, measure):
        while measured < 8:
            time.sleep(0.001)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("6/10 lines  ")
    assert lines[0].endswith(" left")
    assert lines[-1].startswith("8/10 lines  ")


def test_durations_are_told_as_people_do() -> None:
    assert [describe_seconds(seconds) for seconds in (3.4, 89, 90, 3600, 7200)] == [
        "3 s",
        "89 s",
        "1.5 min",
        "60.0 min",
        "2.0 h",
    ]
