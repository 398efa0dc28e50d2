"""Whether the process has started, serves and lives: for the kubelet, which has no certificate and asks over HTTP."""

import asyncio
import time
from collections.abc import Callable

LEAST_HANG_SECONDS = 1.0  # a busy event loop may well take a good part of that for what came in at once
MOST_BEAT_SECONDS = 0.5


class Probes:
    """What the three probes answer.

    They differ in what Kubernetes does about a "no": before `startupz` says yes it waits and asks no other; where
    `readyz` says no it sends no requests; where `livez` says no it kills the process.

    Args:
        hang_seconds: an event loop that does not beat for so long hangs; LEAST_HANG_SECONDS where this is less.
        clock: seconds, monotonic.
    """

    def __init__(self, hang_seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._hang_seconds = max(hang_seconds, LEAST_HANG_SECONDS)
        self._clock = clock
        self._beat = clock()
        self._started = False
        self._unready: str | None = "the model is loading"
        self._failure: str | None = None

    def serving(self) -> None:
        """Requests are answered from now on."""
        self._started, self._unready = True, None

    def not_serving(self, reason: str) -> None:
        self._unready = reason

    def failed(self, reason: str) -> None:
        """The process is beyond hope, whatever it still does."""
        self._failure = self._unready = reason

    def beat(self) -> None:
        """To be called by the event loop, several times while it would have to hang."""
        self._beat = self._clock()

    async def beat_forever(self) -> None:
        while True:
            self.beat()
            await asyncio.sleep(min(MOST_BEAT_SECONDS, self._hang_seconds / 4))

    def startupz(self) -> str | None:
        """None for yes, else why not; also of the others."""
        return None if self._started else self._unready

    def readyz(self) -> str | None:
        return self._unready or self.livez()

    def livez(self) -> str | None:
        if self._failure is not None:
            return self._failure
        hanging = self._clock() - self._beat
        return f"the event loop has been hanging for {hanging:.0f} s" if hanging > self._hang_seconds else None
