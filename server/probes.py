"""Whether the process has started, serves and lives: for the kubelet, which has no certificate and asks over HTTP."""

import asyncio
import time
from collections.abc import Callable

# Far more than the longest step of the event loop; a loop that hangs so long has clients waiting.
HANG_SECONDS = 10.0
BEAT_SECONDS = 0.5


class Probes:
    """What the three probes answer.

    They differ in what Kubernetes does about a "no": before `startupz` says yes it waits and asks no other; where
    `readyz` says no it sends no requests; where `livez` says no it kills the process.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
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
        """To be called by the event loop, more often than HANG_SECONDS."""
        self._beat = self._clock()

    async def beat_forever(self) -> None:
        while True:
            self.beat()
            await asyncio.sleep(BEAT_SECONDS)

    def startupz(self) -> str | None:
        """None for yes, else why not; also of the others."""
        return None if self._started else self._unready

    def readyz(self) -> str | None:
        return self._unready or self.livez()

    def livez(self) -> str | None:
        if self._failure is not None:
            return self._failure
        hanging = self._clock() - self._beat
        return f"the event loop has been hanging for {hanging:.0f} s" if hanging > HANG_SECONDS else None
