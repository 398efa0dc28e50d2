"""When a failed call is sent again. Pure: clock and chance come from outside.

gRPC's own retry policy knows nothing of google.rpc.RetryInfo, so the client decides.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dragoman.errors import DragomanError, ResourceExhaustedError, UnavailableError
from dragoman.names import new_request_id


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries of UNAVAILABLE, and of RESOURCE_EXHAUSTED where the server says when to come again.

    (RESOURCE_EXHAUSTED without a delay is a message over the size limit: it would fail again.)
    The n-th retry waits `initial_delay * factor ** (n - 1)` seconds, at most `max_delay`, and not less than the server
    asked for; up to `jitter` of the wait is added by chance, so that clients refused together do not return together.
    Calls are sent again for as long as their timeout allows, or for a minute where they have none.

    Attributes:
        attempts: in all, at most; 1 means no retry; None for as many as there is time for.
        on_retry: called for each failure that is tried again, with the seconds until then.

    Raises:
        ValueError: a number is out of its range.
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


Methods = tuple[Any, Any]
"""A method of a service by the channel that follows health, and by the one that does not: see Attempts.regardless."""

NO_RETRY = RetryPolicy(attempts=1)
SECONDS_WITHOUT_TIMEOUT = 60.0
ATTEMPTS_AT_TLS = 5  # that client and server do not agree on TLS hardly ever passes by itself


class Attempts:
    """The attempts of one call, within its timeout.

    Args:
        timeout: seconds for all attempts and the waits between them; None for no limit.
        patient: refusals for want of room do not count as attempts: only the timeout ends them.
        followed: the servers' health is. Where none of them says that it is ready, the call is sent to them all the
            same, at once: one's word need not be that of all behind its address, and one that leaves still answers.
        clock: seconds, monotonic.
        chance: a number from 0 to 1 for the jitter.

    Attributes:
        request_id: name of the call, the same in all attempts.
        regardless: whether the next attempt is sent to servers whatever they say of their health; index of Methods.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        timeout: float | None,
        *,
        patient: bool = False,
        followed: bool = False,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout: expected more than 0 seconds, got {timeout}")
        self.request_id = new_request_id()
        self.regardless = not followed
        self._policy = policy
        self._patient = patient
        self._followed = followed
        self._clock = clock
        self._chance = chance
        self._deadline = None if timeout is None else clock() + timeout
        self._last_retry: float | None = None  # without a timeout, since the first failure that counts
        self._failures = 0
        self._counted = 0

    def remaining(self) -> float | None:
        """Seconds for the next attempt; None for no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock())

    def delay_after(self, error: DragomanError) -> float | None:
        """Seconds to wait before the next attempt; None where there is none, and the error is the call's."""
        refused = isinstance(error, ResourceExhaustedError) and error.retry_after is not None
        if not refused and not isinstance(error, UnavailableError):
            return None
        if self._followed:
            unsent = isinstance(error, UnavailableError) and error.unconnected is not None
            self.regardless = unsent and not self.regardless
            if self.regardless:
                return None if self.remaining() == 0 else 0.0
        self._failures += 1
        if not (refused and self._patient):
            self._counted += 1
            if self._counted == self._policy.attempts:
                return None
            if isinstance(error, UnavailableError) and error.unconnected == "tls" and self._counted >= ATTEMPTS_AT_TLS:
                return None
        wait = self._wait(error.retry_after or 0.0, self._time_left(counted=not (refused and self._patient)))
        if wait is not None and self._policy.on_retry is not None:
            self._policy.on_retry(error, wait)
        return wait

    def _time_left(self, *, counted: bool) -> float | None:
        """Seconds for retries; None for no limit."""
        if self._deadline is not None or not counted:
            return self.remaining()
        if self._last_retry is None:
            self._last_retry = self._clock() + SECONDS_WITHOUT_TIMEOUT
        return max(0.0, self._last_retry - self._clock())

    def _wait(self, least: float, left: float | None) -> float | None:
        """Seconds; as the time runs out half of what is left, so that the last attempt comes near its end.

        Args:
            least: what the server asked for.
        """
        policy = self._policy
        # The exponent is bounded because a call may fail thousands of times.
        wait = min(policy.max_delay, policy.initial_delay * policy.factor ** min(self._failures - 1, 32))
        wait = max(wait, least)
        wait += wait * policy.jitter * self._chance()
        if left is None or wait < left:
            return wait
        wait = max(left / 2, least)
        return wait if policy.initial_delay <= wait < left else None
