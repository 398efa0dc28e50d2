"""Many inputs, answered in order, as many in flight as the server takes. Pure: it sends nothing and never waits.

A driver (one in each client) reads inputs while `room()`, sends what `due()` gives, reports every outcome, hands on
what `pop()` gives, and sleeps until an outcome or for `wait()` seconds.
"""

import heapq
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dragoman.errors import DragomanError, ItemError, ResourceExhaustedError, UnavailableError, concerns_one_input
from dragoman.fields import Source
from dragoman.messages import Call, input_or_error
from dragoman.results import Result
from dragoman.retry import Attempts, RetryPolicy

DEFAULT_IN_FLIGHT = 128
_FIRST_LIMIT = 8.0


class Window:
    """How many calls may be in flight: doubles each round until the server first refuses, then feels its way.

    (TCP's slow start, additive increase and multiplicative decrease.)
    """

    def __init__(self, most: int) -> None:
        if most < 1:
            raise ValueError(f"max_in_flight: expected at least 1, got {most}")
        self._most = most
        self._limit = min(_FIRST_LIMIT, most)
        self._refused = False
        self._cut_at = 0  # the number of calls sent when the limit was last cut

    @property
    def limit(self) -> int:
        return int(self._limit)

    def accepted(self) -> None:
        self._limit = min(self._most, self._limit + (1 / self._limit if self._refused else 1))

    def refused(self, number: int, sent: int) -> None:
        """The server had no room for the `number`-th call; `sent` have been sent by now."""
        self._refused = True
        # Refusals of calls that were under way at the last cut are the same news.
        if number > self._cut_at:
            self._limit = max(1.0, self._limit / 2)
            self._cut_at = sent


@dataclass(slots=True)
class Job:
    """One input on its way. `number` is the place of its last attempt among all calls sent."""

    index: int
    call: Call[Result]
    attempts: Attempts
    number: int = 0


class Pipeline:
    """The state of one generate_many.

    Args:
        make_call: the call for an input.
        timeout: seconds for each input, from when it is first sent; None for no limit.
        max_in_flight: bound of the calls in flight, whatever the server takes.
        followed: the servers' health is, as in Attempts.
    """

    def __init__(
        self,
        make_call: Callable[..., Call[Result]],
        policy: RetryPolicy,
        timeout: float | None,
        max_in_flight: int,
        *,
        followed: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_call = make_call
        self._policy = policy
        self._timeout = timeout
        self._followed = followed
        self._clock = clock
        self._window = Window(max_in_flight)
        self._most_held = 2 * max_in_flight
        self._first = 0  # index of the next outcome to hand on
        self._outcomes: deque[Result | ItemError | None] = deque()  # those of inputs `first`, `first` + 1, ...
        self._fresh: deque[Job] = deque()  # never sent
        self._again: list[tuple[float, int, Job]] = []  # a heap by the time to send them
        self._in_flight = 0
        self._sent = 0
        self._served = False  # whether a server has answered yet

    def room(self) -> bool:
        """Whether another input is wanted: its call has a place, and not too many outcomes wait for the first."""
        busy = self._in_flight + len(self._fresh) + len(self._again)
        return busy < self._window.limit and len(self._outcomes) < self._most_held

    def add(self, source: Source) -> None:
        """Takes the next input.

        Raises:
            TypeError: it is neither text nor ids.
        """
        index = self._first + len(self._outcomes)
        built = input_or_error(index, source)
        if isinstance(built, ItemError):
            self._outcomes.append(built)
            return
        self._outcomes.append(None)
        attempts = Attempts(self._policy, self._timeout, patient=True, followed=self._followed, clock=self._clock)
        self._fresh.append(Job(index, self._make_call(built), attempts))

    def due(self) -> list[Job]:
        """The jobs to send now; each must be reported to `answered` or `failed` afterwards."""
        jobs = []
        while self._in_flight < self._window.limit:
            if self._again and self._again[0][0] <= self._clock():
                job = heapq.heappop(self._again)[2]
            elif self._fresh:
                job = self._fresh.popleft()
            else:
                break
            self._in_flight += 1
            self._sent += 1
            job.number = self._sent
            jobs.append(job)
        return jobs

    def wait(self) -> float | None:
        """Seconds until a job must be sent again; None where only an outcome or a new input can bring news."""
        if not self._again or self._in_flight >= self._window.limit:
            return None
        return max(0.0, self._again[0][0] - self._clock())

    def answered(self, job: Job, result: Result) -> None:
        self._in_flight -= 1
        self._served = True
        self._window.accepted()
        self._outcomes[job.index - self._first] = result

    def failed(self, job: Job, error: DragomanError) -> None:
        """Sends the job again later, makes the error its outcome, or

        Raises:
            DragomanError: the error, where it concerns every input: no such model, a wrong option, no server ever.
        """
        self._in_flight -= 1
        lost = isinstance(error, UnavailableError)
        self._served |= not lost
        if isinstance(error, ResourceExhaustedError) and error.retry_after is not None:
            self._window.refused(job.number, self._sent)
        delay = job.attempts.delay_after(error)
        if delay is not None:
            heapq.heappush(self._again, (self._clock() + delay, job.index, job))
        elif concerns_one_input(error) or (lost and self._served):  # a server that was there may come back
            self._outcomes[job.index - self._first] = ItemError(job.index, error)
        else:
            raise error

    def pop(self) -> Result | ItemError | None:
        """The next outcome in order; None where it is not there yet."""
        if not self._outcomes or self._outcomes[0] is None:
            return None
        self._first += 1
        return self._outcomes.popleft()

    @property
    def empty(self) -> bool:
        """Whether every input has been handed on."""
        return not self._outcomes
