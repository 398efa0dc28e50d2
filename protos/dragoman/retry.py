"""When a failed call is retried. Pure: clock and randomness are passed in.

gRPC's own retry policy ignores google.rpc.RetryInfo, so the client decides.
"""

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from dragoman.errors import REQUEST_ID, DragomanError, ResourceExhaustedError, UnavailableError
from dragoman.requests import number

SECONDS_WITHOUT_TIMEOUT = 60.0
MOST_SECONDS = 1e9  # gRPC takes a deadline that is much later for one that has passed
TLS_ATTEMPTS = 5  # a disagreement on TLS hardly ever passes by itself

Metadata = tuple[tuple[str, str], ...]

_PROCESS_ID, _COUNTER = os.urandom(6).hex(), count(1)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When failed calls are retried: after UNAVAILABLE, and after RESOURCE_EXHAUSTED with a retry delay.

    (RESOURCE_EXHAUSTED without a delay means that a message is over the size limit; it would fail again.)
    The n-th retry waits `initial_delay * factor ** (n - 1)` seconds, at most `max_delay` and at least as long as the
    server asked for. Retries go on until the timeout of the call, or for a minute if it has none.

    Args:
        attempts: Maximum number of attempts, the first included; 1 disables retries. None for no maximum.
        initial_delay: Seconds before the first retry.
        factor: Growth of the delay from one retry to the next.
        max_delay: Longest delay, in seconds.
        jitter: Maximum share of the delay that is added at random, so that clients that were refused together do not
            return together.
        on_retry: Called before every retry with the error and the delay in seconds.

    Raises:
        ValueError: A number is out of range.
    """

    attempts: int | None = None
    initial_delay: float = 0.1
    factor: float = 2.0
    max_delay: float = 5.0
    jitter: float = 0.25
    on_retry: Callable[[DragomanError, float], object] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.attempts is not None and self.attempts < 1:
            raise ValueError(f"attempts: expected at least 1, got {self.attempts}")
        if self.initial_delay <= 0 or self.max_delay < self.initial_delay:
            raise ValueError("initial_delay: expected more than 0 and not more than max_delay")
        if self.factor < 1 or self.jitter < 0:
            raise ValueError("factor: expected at least 1; jitter: expected at least 0")


NO_RETRY = RetryPolicy(attempts=1)


class Attempts:
    """The attempts of one call, within its timeout.

    Args:
        policy: When to retry.
        timeout: Seconds for all attempts and the delays between them; None for no limit.
        patient: Do not count refusals by a full server as attempts: only the timeout ends them.
        follow_health: The channel follows the servers' health. If no server reports that it is ready, the call is
            retried at once over the channel that ignores health: the report may be that of one server among several
            behind one address, and a server that drains still answers.
        clock: Returns monotonic seconds.
        chance: Returns a number from 0 to 1 for the jitter.

    Attributes:
        request_id: Unique id of the call, the same for all attempts.
        ignore_health: Whether the next attempt is sent to servers regardless of their health.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        timeout: float | None,
        *,
        patient: bool = False,
        follow_health: bool = False,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        seconds = None if timeout is None else number(timeout, "timeout")
        if seconds is not None and not seconds > 0:
            raise ValueError(f"timeout: expected more than 0 seconds, got {timeout}")
        self.request_id = f"{_PROCESS_ID}-{next(_COUNTER):x}"
        self.ignore_health = not follow_health
        self._policy = policy
        self._patient = patient
        self._follow_health = follow_health
        self._clock = clock
        self._chance = chance
        self._deadline = None if seconds is None else clock() + min(seconds, MOST_SECONDS)
        self._last_retry: float | None = None  # without a timeout: a minute after the first counted failure
        self._failures = 0
        self._counted = 0

    def metadata(self, metadata: Metadata | None) -> Metadata:
        """Returns the client's metadata with the request id of this call."""
        return (*(metadata or ()), (REQUEST_ID, self.request_id))

    def remaining(self) -> float | None:
        """Returns the seconds left for the next attempt; None for no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock())

    def delay_after(self, error: DragomanError) -> float | None:
        """Returns the seconds to wait before the next attempt; None if there is none and the error is final."""
        refused = isinstance(error, ResourceExhaustedError) and error.retry_after is not None
        if not refused and not isinstance(error, UnavailableError):
            return None
        if self._follow_health:
            unsent = isinstance(error, UnavailableError) and error.connection_failure is not None
            self.ignore_health = unsent and not self.ignore_health
            if self.ignore_health:
                return None if self.remaining() == 0 else 0.0
        self._failures += 1
        counts = not (refused and self._patient)
        if counts:
            self._counted += 1
            if self._counted == self._policy.attempts:
                return None
            tls = isinstance(error, UnavailableError) and error.connection_failure == "tls"
            if tls and self._counted >= TLS_ATTEMPTS:
                return None
        delay = self._delay(error.retry_after or 0.0, self._time_left(counts=counts))
        if delay is not None and self._policy.on_retry is not None:
            self._policy.on_retry(error, delay)
        return delay

    def _time_left(self, *, counts: bool) -> float | None:
        """Returns the seconds left for retries; None for no limit."""
        if self._deadline is not None or not counts:
            return self.remaining()
        if self._last_retry is None:
            self._last_retry = self._clock() + SECONDS_WITHOUT_TIMEOUT
        return max(0.0, self._last_retry - self._clock())

    def _delay(self, minimum: float, time_left: float | None) -> float | None:
        """Returns the delay in seconds, `minimum` at least; None if no retry fits into `time_left`.

        Near the end the delay is half of the time left, so that the last attempt comes close to the deadline.
        """
        policy = self._policy
        # The exponent is bounded because a call may fail thousands of times.
        delay = min(policy.max_delay, policy.initial_delay * policy.factor ** min(self._failures - 1, 32))
        delay = max(delay, minimum)
        delay += delay * policy.jitter * self._chance()
        if time_left is None or delay < time_left:
            return delay
        delay = max(time_left / 2, minimum)
        return delay if policy.initial_delay <= delay < time_left else None
