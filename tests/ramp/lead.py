"""Which rises first under rising load, the queue or the latency. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

SLOW = 2.0  # so many times the latency of a server that is full is more than sharing explains
IN_A_ROW = 3  # seconds; a single one may be chance


@dataclass(frozen=True)
class Moment:
    """One second. None: there was nothing to measure.

    Attributes:
        second: from the start.
        offered: calls that were due in it,
        answered, refused: and that ended.
        p50_seconds, p95_seconds: of the answered ones that were due in it, from then to their answer.
        waiting: dragoman_requests_waiting, mean,
        running: and dragoman_rows_running.
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
        rows: cache rows of the server.
        capacity: calls per second with all rows busy and nobody waiting,
        full_p95_seconds: and the latency within which 95 of 100 of them are answered.
    """

    rows: int
    capacity: float
    full_p95_seconds: float
    moments: tuple[Moment, ...]

    @property
    def slow_seconds(self) -> float:
        return SLOW * self.full_p95_seconds

    def queue_rises(self, threshold: float) -> Moment | None:
        """The first second from which on more than so many requests wait."""
        return self._first(lambda moment: moment.waiting is not None and moment.waiting > threshold)

    def latency_rises(self) -> Moment | None:
        """The first second from which on 95 of 100 calls take longer than `slow_seconds`."""
        return self._first(lambda moment: moment.p95_seconds is not None and moment.p95_seconds > self.slow_seconds)

    def _first(self, risen: Callable[[Moment], bool]) -> Moment | None:
        for first in range(len(self.moments) - IN_A_ROW + 1):
            if all(map(risen, self.moments[first : first + IN_A_ROW])):
                return self.moments[first]
        return None
