"""Measurements of a server under rising load, and when its queue and its latency rise."""

from collections.abc import Callable
from dataclasses import dataclass

SLOW = 2.0  # multiple of the latency of a full server; more than sharing explains
CONSECUTIVE = 3  # seconds above a limit; a single one may be chance


@dataclass(frozen=True)
class Moment:
    """The measurements of one second; None if there was nothing to measure.

    Attributes:
        second: Seconds since the start.
        offered: Calls due in this second.
        answered, refused: Calls that ended in it.
        p50_seconds, p95_seconds: Latency of the answered calls that were due in it.
        waiting: Mean of dragoman_requests_waiting.
        running: Mean of dragoman_rows_running.
    """

    second: int
    offered: int
    answered: int
    refused: int
    p50_seconds: float | None
    p95_seconds: float | None
    waiting: float | None
    running: float | None


@dataclass(frozen=True)
class Ramp:
    """A server under rising load.

    Attributes:
        rows: Cache rows of the server.
        capacity: Calls per second with all rows busy and an empty queue.
        full_p95_seconds: 95th percentile of latency at that rate.
        moments: Measurements of each second.
    """

    rows: int
    capacity: float
    full_p95_seconds: float
    moments: tuple[Moment, ...]

    @property
    def slow_seconds(self) -> float:
        return SLOW * self.full_p95_seconds

    def queue_rises(self, threshold: float) -> Moment | None:
        """Returns the first second from which more requests wait than `threshold`."""
        return self._first(lambda moment: moment.waiting is not None and moment.waiting > threshold)

    def latency_rises(self) -> Moment | None:
        """Returns the first second from which the 95th percentile of latency exceeds `slow_seconds`."""
        return self._first(lambda moment: moment.p95_seconds is not None and moment.p95_seconds > self.slow_seconds)

    def _first(self, exceeds: Callable[[Moment], bool]) -> Moment | None:
        for first in range(len(self.moments) - CONSECUTIVE + 1):
            if all(map(exceeds, self.moments[first : first + CONSECUTIVE])):
                return self.moments[first]
        return None
