"""Simulated time, and cores that threads share."""

import heapq
from collections.abc import Callable
from itertools import count

Action = Callable[[], None]
ROUNDING = 1e-12  # seconds of work that are left by rounding alone


class Clock:
    """Simulated time: runs what is due, in order.

    Attributes:
        now: Seconds since the start.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Action]] = []
        self._order = count()

    def at(self, when: float, action: Action) -> None:
        heapq.heappush(self._due, (when, next(self._order), action))

    def run(self) -> None:
        """Runs until nothing is due any more."""
        due = self._due
        while due:
            self.now, _, action = heapq.heappop(due)
            action()


class Cores:
    """Cores on which threads compute: if they are more than cores, all get equal shares.

    Args:
        cores: Number of cores.
    """

    def __init__(self, clock: Clock, cores: int) -> None:
        self._clock, self._cores = clock, cores
        self._work: list[tuple[float, Action]] = []  # at which value of `_progress` it is done, and what follows
        self._progress = 0.0  # seconds that a thread which always computed would have had
        self._at = 0.0
        self._speed = 1.0
        self._alarm = 0  # number of the latest; earlier ones are void

    def compute(self, seconds: float, then: Action) -> None:
        """Lets a thread compute for so many seconds of a core; calls `then` when it is done."""
        self._advance()
        self._work.append((self._progress + seconds, then))
        self._set_alarm()

    def _advance(self) -> None:
        now = self._clock.now
        self._progress += (now - self._at) * self._speed
        self._at = now

    def _set_alarm(self) -> None:
        work = self._work
        if work:
            self._speed = min(1.0, self._cores / len(work))
            self._alarm = alarm = self._alarm + 1
            left = min([each[0] for each in work])
            when = self._at + max(0.0, left - self._progress) / self._speed
            self._clock.at(when, lambda: self._ring(alarm))

    def _ring(self, alarm: int) -> None:
        if alarm != self._alarm:
            return
        self._advance()
        reached = self._progress + ROUNDING
        done = [then for left, then in self._work if left <= reached]
        self._work = [each for each in self._work if each[0] > reached]
        self._set_alarm()
        for then in done:
            then()
