"""The GenerateMany calls of one generate_many: which source goes into which call, and what an end of a call means.

Pure: it sends nothing and never waits. Each client drives it, beside the Pipeline that knows the order of the sources.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.calls import result
from dragoman.errors import (
    TIMED_OUT,
    DeadlineExceededError,
    DragomanError,
    ResourceExhaustedError,
    UnavailableError,
    from_status,
)
from dragoman.pipeline import Job
from dragoman.results import Result
from dragoman.retry import NO_RETRY, Attempts
from dragoman.v1 import generation_pb2 as pb

# Sources that one call has in flight. With more, there are several calls, which may reach different servers.
CALL_ITEMS, CALL_ITEMS_OF_SEVERAL_SERVERS = 64, 32
# After this time new sources go into a new call, perhaps to a server that is new or has less to do.
RENEW_SECONDS = 10.0
# A source of more bytes is sent in a call of its own: a message over the server's limit would end a call of many.
LARGE_BYTES = 64 * 1024
MESSAGE_BYTES = 256 * 1024  # after which another message begins
CLOSE_SECONDS = 1.0  # for the server to end a call without sources

Outcome = tuple[Job, Result | DragomanError]


@dataclass(slots=True, eq=False)
class ManyCall:
    """One GenerateMany call.

    Attributes:
        attempts: Source of its request id, and whether it goes to servers regardless of their health.
        renew_at: Time at which new sources go into another call.
        jobs: Sources without an answer, by their ids.
        unsent: Sources and cancellations that are not in a message yet.
        closed: Whether the last message has been made.
    """

    attempts: Attempts
    renew_at: float
    jobs: dict[str, Job] = field(default_factory=dict)
    unsent: list[Job] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    started: bool = False
    closed: bool = False

    def answers(self, response: pb.GenerateManyResponse) -> Iterator[Outcome]:
        """Yields the sources that a message answers, with their results or errors."""
        for answer in response.answers:
            job = self.jobs.pop(answer.id, None)
            if job is None:  # its timeout has passed
                continue
            try:
                outcome = from_status(answer.error) if answer.HasField("error") else result(answer.response)
            except DragomanError as error:
                outcome = error
            if isinstance(outcome, DragomanError):
                outcome.request_id = self.attempts.request_id
            yield job, outcome


class ManyCalls:
    """All calls of one generate_many.

    The driver `add`s jobs, sends the `messages()`, and reports each response to `ManyCall.answers`, each end of a call
    to `ended`. It sends jobs that `needs_own_call` in Generate calls instead.

    Args:
        defaults: Fields of the requests: model, options, details, priority.
        items: Maximum number of sources in one call.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        defaults: Mapping[str, Any],
        items: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._supported = True  # older servers do not have GenerateMany
        self._defaults = defaults
        self._items = items
        self._clock = clock
        self._calls: list[ManyCall] = []
        self._expiry = float("inf")  # before that no timeout of a source passes

    def needs_own_call(self, job: Job) -> bool:
        """Returns whether a source must be sent with Generate."""
        return not self._supported or job.alone or job.source.ByteSize() > LARGE_BYTES

    def add(self, job: Job) -> None:
        """Adds a job that is to be sent."""
        call = self._call_for(job.attempts.ignore_health)
        call.jobs[str(job.number)] = job
        call.unsent.append(job)
        remaining = job.attempts.remaining()
        if remaining is not None:
            self._expiry = min(self._expiry, self._clock() + remaining)

    def messages(self) -> Iterator[tuple[ManyCall, list[pb.GenerateManyRequest]]]:
        """Yields what to send now: for each call its next messages, and for a call that is `closed` none after them."""
        now = self._clock()
        for call in self._calls:
            if call.closed:
                continue
            messages = list(self._messages(call)) if call.unsent or call.cancelled else []
            # An open call can still take cancellations.
            call.closed = now >= call.renew_at and not call.jobs
            if messages or call.closed:
                yield call, messages

    def expired(self) -> list[tuple[Job, DragomanError]]:
        """Returns the jobs whose timeout has passed, with their error; the server will cancel them."""
        now = self._clock()
        if now < self._expiry:
            return []
        self._expiry = float("inf")
        expired: list[tuple[Job, DragomanError]] = []
        for call in self._calls:
            for id_, job in list(call.jobs.items()):
                remaining = job.attempts.remaining()
                if remaining == 0:
                    error = DeadlineExceededError(TIMED_OUT)
                    error.request_id = call.attempts.request_id
                    expired.append((job, error))
                    del call.jobs[id_]
                    call.cancelled.append(id_)
                elif remaining is not None:
                    self._expiry = min(self._expiry, now + remaining)
        return expired

    def delay(self) -> float | None:
        """Returns the seconds until a timeout may pass; None for never."""
        return None if self._expiry == float("inf") else max(0.0, self._expiry - self._clock())

    def ended(self, call: ManyCall, error: DragomanError | None) -> tuple[list[Job], DragomanError | None]:
        """Takes the end of a call.

        Args:
            error: Why it failed; None if it ended regularly.

        Returns:
            Its jobs without an answer, and the error that is theirs; None if they are to be sent again at once, because
            the error may not be theirs.
        """
        self._calls.remove(call)
        jobs = list(call.jobs.values())
        if error is not None and error.code == "UNIMPLEMENTED":
            self._supported = False
            return jobs, None
        if error is not None and _concerns_the_call(error):
            return jobs, error
        # One of them, perhaps with an answer that is too large, broke the call for all; or gRPC lost the status: if the
        # server ends a call while a message is written, grpc.aio reports an internal error of its own.
        for job in jobs:
            job.alone = True
        return jobs, None

    def _call_for(self, ignore_health: bool) -> ManyCall:
        """Returns the first call with room, or a new one."""
        now = self._clock()
        for call in self._calls:
            fits = len(call.jobs) < self._items and call.attempts.ignore_health == ignore_health
            if fits and not call.closed and now < call.renew_at:
                return call
        attempts = Attempts(NO_RETRY, None)
        attempts.ignore_health = ignore_health
        self._calls.append(call := ManyCall(attempts, now + RENEW_SECONDS))
        return call

    def _messages(self, call: ManyCall) -> Iterator[pb.GenerateManyRequest]:
        message = pb.GenerateManyRequest(cancel=call.cancelled)
        if not call.started:
            call.started = True
            message.defaults.CopyFrom(pb.GenerateRequest(**self._defaults))
        size = 0
        for job in call.unsent:
            source = job.source
            if size > MESSAGE_BYTES:
                yield message
                message, size = pb.GenerateManyRequest(), 0
            message.items.add(id=str(job.number)).request.input.CopyFrom(source)
            size += source.ByteSize()
        call.unsent, call.cancelled = [], []
        yield message


def _concerns_the_call(error: DragomanError) -> bool:
    """Returns whether a call failed for reasons of its own, rather than for those of one of its items."""
    refused = isinstance(error, ResourceExhaustedError) and error.retry_after is not None
    fates = ("UNAUTHENTICATED", "PERMISSION_DENIED", "CANCELLED")
    return refused or isinstance(error, UnavailableError) or error.code in fates
