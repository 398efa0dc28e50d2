"""When a failed call is sent again. Pure: clock and chance come from outside.

gRPC's own retry policy knows nothing of google.rpc.RetryInfo, so the client decides.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from dragoman.errors import DragomanError, ResourceExhaustedError, UnavailableError
from dragoman.names import new_request_id


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries of UNAVAILABLE, and of RESOURCE_EXHAUSTED where the server says when to come again.

    (RESOURCE_EXHAUSTED without a delay is a message over the size limit: it would fail again.)
    The n-th retry waits `initial_delay * factor ** (n - 1)` seconds, at most `max_delay`, and not less than the server
    asked for; up to `jitter` of the wait is added by chance, so that clients refused together do not return together.

    Raises:
        ValueError: a number is out of its range.
    """

    attempts: int = 5  # in all; 1 means no retry
    initial_delay: float = 0.1
    factor: float = 2.0
    max_delay: float = 5.0
    jitter: float = 0.25

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts: expected at least 1, got {self.attempts}")
        if self.initial_delay <= 0 or self.max_delay < self.initial_delay:
            raise ValueError("initial_delay: expected more than 0 and not more than max_delay")
        if self.factor < 1 or self.jitter < 0:
            raise ValueError("factor: expected at least 1; jitter: expected at least 0")


NO_RETRY = RetryPolicy(attempts=1)


class Attempts:
    """The attempts of one call, within its timeout.

    Args:
        timeout: seconds for all attempts and the waits between them; None for no limit.
        patient: refusals for want of room do not count as attempts: only the timeout ends them.
        clock: seconds, monotonic.
        chance: a number from 0 to 1 for the jitter.

    Attributes:
        request_id: name of the call, the same in all attempts.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        timeout: float | None,
        *,
        patient: bool = False,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout: expected more than 0 seconds, got {timeout}")
        self.request_id = new_request_id()
        self._policy = policy
        self._patient = patient
        self._clock = clock
        self._chance = chance
        self._deadline = None if timeout is None else clock() + timeout
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
        self._failures += 1
        if not (refused and self._patient):
            self._counted += 1
        if self._counted >= self._policy.attempts:
            return None
        policy = self._policy
        # The exponent is bounded because a patient call may be refused thousands of times.
        wait = min(policy.max_delay, policy.initial_delay * policy.factor ** min(self._failures - 1, 32))
        wait = max(wait, error.retry_after or 0.0)
        wait += wait * policy.jitter * self._chance()
        remaining = self.remaining()
        return None if remaining is not None and wait >= remaining else wait
