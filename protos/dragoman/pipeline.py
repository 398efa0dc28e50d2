"""Many sources: the state machines behind generate_batch (Batch) and generate_many (Pipeline).

Both are pure: they send nothing and never wait. Each client drives them.
"""

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dragoman.calls import batch_outcome
from dragoman.errors import (
    DragomanError,
    ItemError,
    ResourceExhaustedError,
    ServerError,
    UnavailableError,
    concerns_one_input,
)
from dragoman.requests import Source, check_sources, input_or_error, request_fields
from dragoman.results import Result
from dragoman.retry import Attempts
from dragoman.v1 import generation_pb2 as pb

DEFAULT_IN_FLIGHT = 128
_INITIAL_LIMIT = 8.0


class Batch:
    """The state of one generate_batch: items that fail with UNAVAILABLE are sent again.

    The driver sends `request` until it is None, and reports each response or failure.

    Args:
        sources: The sources, in order.
        options: GenerateOptions.

    Raises:
        ValueError: An option does not fit its field.
        TypeError: A source is neither text nor ids, or there is no such option.
    """

    def __init__(self, sources: Iterable[Source], **options: Any) -> None:
        check_sources(sources)
        self._fields = request_fields(**options)
        self._pending: dict[int, pb.Input] = {}  # by index of the source
        self._outcomes: dict[int, Result | ItemError] = {}
        self._answered = False
        for index, source in enumerate(sources):
            message = input_or_error(index, source, options)
            if isinstance(message, ItemError):
                self._outcomes[index] = message
            else:
                self._pending[index] = message

    @property
    def request(self) -> pb.GenerateBatchRequest | None:
        """The next request; None when all sources have an outcome."""
        return pb.GenerateBatchRequest(inputs=self._pending.values(), **self._fields) if self._pending else None

    def answered(self, response: pb.GenerateBatchResponse, attempts: Attempts) -> float:
        """Takes the response to `request`.

        Returns:
            Seconds to wait before the next request; 0 if there is none.

        Raises:
            ServerError: The number of items is not the number of inputs, or an item is incomplete.
        """
        if len(response.items) != len(self._pending):
            raise ServerError(
                f"the server answered {len(response.items)} of {len(self._pending)} inputs", code="INTERNAL"
            )
        outcomes = {
            index: batch_outcome(index, item) for index, item in zip(self._pending, response.items, strict=True)
        }
        self._outcomes |= outcomes
        self._answered = True
        lost = {
            index: outcome.error
            for index, outcome in outcomes.items()
            if isinstance(outcome, ItemError) and isinstance(outcome.error, UnavailableError)
        }
        delay = None
        if lost:
            delay = attempts.delay_after(max(lost.values(), key=lambda error: error.retry_after or 0.0))
        self._pending = {index: self._pending[index] for index in lost} if delay is not None else {}
        return delay or 0.0

    def failed(self, error: DragomanError) -> None:
        """Takes the failure of the request: it becomes the outcome of all pending sources.

        Raises:
            DragomanError: The error itself, if no earlier request was answered.
        """
        if not self._answered:
            raise error
        self._outcomes |= {index: ItemError(index, error) for index in self._pending}
        self._pending = {}

    def outcomes(self) -> list[Result | ItemError]:
        """Returns the outcome of every source, in order, once `request` is None."""
        return [self._outcomes[index] for index in sorted(self._outcomes)]


class Window:
    """The number of sources that may be in flight: it doubles every round until the server refuses one, then adapts.

    (TCP's slow start, additive increase and multiplicative decrease.)
    """

    def __init__(self, maximum: int) -> None:
        if maximum < 1:
            raise ValueError(f"max_in_flight: expected at least 1, got {maximum}")
        self._maximum = maximum
        self._limit = min(_INITIAL_LIMIT, maximum)
        self._refused = False
        self._cut_at = 0  # number of sources sent when the limit was last cut

    @property
    def limit(self) -> int:
        return int(self._limit)

    def accepted(self) -> None:
        self._limit = min(self._maximum, self._limit + (1 / self._limit if self._refused else 1))

    def refused(self, number: int, sent: int) -> None:
        """Takes the refusal of the `number`-th of `sent` sources."""
        self._refused = True
        # Sources that were in flight at the last cut carry no new information.
        if number > self._cut_at:
            self._limit = max(1.0, self._limit / 2)
            self._cut_at = sent


@dataclass(slots=True)
class Job:
    """One source of a pipeline.

    Attributes:
        index: Index of the source.
        source: Its message.
        attempts: Its retries.
        number: Number of its last attempt among all attempts of the pipeline.
        alone: Whether it has to be sent in a call of its own.
    """

    index: int
    source: pb.Input
    attempts: Attempts
    number: int = 0
    alone: bool = False


class Pipeline:
    """The state of one generate_many: as many sources in flight as the server accepts, outcomes in order.

    The driver adds sources while `has_room()`, sends the `due()` jobs, reports every outcome, passes on what `pop()`
    returns, and sleeps until the next outcome, `delay()` seconds at most.

    Args:
        make_attempts: Starts the retries of a source when it is added.
        max_in_flight: Maximum number of sources in flight.
        languages: GenerateOptions, of which the languages belong to each source.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        make_attempts: Callable[[], Attempts],
        max_in_flight: int,
        *,
        languages: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_attempts = make_attempts
        self._languages = languages or {}
        self._clock = clock
        self._window = Window(max_in_flight)
        self._max_outcomes = 2 * max_in_flight
        self._first = 0  # index of the next outcome to return
        self._outcomes: deque[Result | ItemError | None] = deque()  # of sources `first`, `first` + 1, ...
        self._new: deque[Job] = deque()  # due at once
        self._retries: list[tuple[float, int, Job]] = []  # a heap by the time to send them
        self._in_flight = 0
        self._sent = 0
        self._served = False  # whether a server has answered yet

    def has_room(self) -> bool:
        """Returns whether to add another source: one may be sent, and not too many outcomes wait for the first."""
        busy = self._in_flight + len(self._new) + len(self._retries)
        return busy < self._window.limit and len(self._outcomes) < self._max_outcomes

    def add(self, source: Source) -> None:
        """Adds the next source.

        Raises:
            TypeError: The source is neither text nor ids.
        """
        index = self._first + len(self._outcomes)
        message = input_or_error(index, source, self._languages)
        if isinstance(message, ItemError):
            self._outcomes.append(message)
            return
        self._outcomes.append(None)
        self._new.append(Job(index, message, self._make_attempts()))

    def due(self) -> list[Job]:
        """Returns the jobs to send now. Report each to `answered` or `failed` afterwards."""
        jobs = []
        while self._in_flight < self._window.limit:
            if self._retries and self._retries[0][0] <= self._clock():
                job = heapq.heappop(self._retries)[2]
            elif self._new:
                job = self._new.popleft()
            else:
                break
            self._in_flight += 1
            self._sent += 1
            job.number = self._sent
            jobs.append(job)
        return jobs

    def again(self, job: Job) -> None:
        """Takes back a job that is due again at once, without having failed itself."""
        self._in_flight -= 1
        self._new.appendleft(job)

    def delay(self) -> float | None:
        """Returns the seconds until the next retry; None if only an outcome or a new source leads on."""
        if not self._retries or self._in_flight >= self._window.limit:
            return None
        return max(0.0, self._retries[0][0] - self._clock())

    def answered(self, job: Job, result: Result) -> None:
        self._in_flight -= 1
        self._served = True
        self._window.accepted()
        self._outcomes[job.index - self._first] = result

    def failed(self, job: Job, error: DragomanError) -> None:
        """Schedules a retry, or makes the error the outcome of the source.

        Raises:
            DragomanError: The error itself, if it concerns every source: no such model, an invalid option, or no
                server so far.
        """
        self._in_flight -= 1
        lost = isinstance(error, UnavailableError)
        self._served |= not lost
        if isinstance(error, ResourceExhaustedError) and error.retry_after is not None:
            self._window.refused(job.number, self._sent)
        delay = job.attempts.delay_after(error)
        if delay is not None:
            heapq.heappush(self._retries, (self._clock() + delay, job.index, job))
        elif concerns_one_input(error) or (lost and self._served):  # a server that was there may come back
            self._outcomes[job.index - self._first] = ItemError(job.index, error)
        else:
            raise error

    def pop(self) -> Result | ItemError | None:
        """Returns the next outcome in order; None if it is not there yet."""
        if not self._outcomes or self._outcomes[0] is None:
            return None
        self._first += 1
        return self._outcomes.popleft()

    @property
    def empty(self) -> bool:
        """Whether every outcome has been returned."""
        return not self._outcomes
