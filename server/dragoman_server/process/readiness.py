"""Whether the server has started, is ready and is alive, for the health service and the probes of the kubelet."""

import asyncio
import time
from collections.abc import Callable, Mapping

from dragoman_server.api.health_service import Health

MIN_HANG_SECONDS = 1.0  # a burst of calls may well keep a busy event loop for a good part of that
MAX_BEAT_SECONDS = 0.5


class Probes:
    """Answers the startup, readiness and liveness probes.

    Kubernetes waits and sends no other probe until `startupz` passes, sends no requests while `readyz` fails, and
    kills the process when `livez` fails.

    Args:
        hang_seconds: Seconds without a beat after which the event loop hangs; at least MIN_HANG_SECONDS.
        clock: Returns monotonic seconds.
    """

    def __init__(self, hang_seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._hang_seconds = max(hang_seconds, MIN_HANG_SECONDS)
        self._clock = clock
        self._beat = clock()
        self._started = False
        self._unready: str | None = "the model is loading"
        self._failure: str | None = None

    def serving(self) -> None:
        """Marks the server as started and ready."""
        self._started, self._unready = True, None

    def not_serving(self, reason: str) -> None:
        """Marks the server as not ready."""
        self._unready = reason

    def failed(self, reason: str) -> None:
        """Marks the process as broken for good."""
        self._failure = self._unready = reason

    def beat(self) -> None:
        """Shows that the event loop runs; it must call this several times per hang_seconds."""
        self._beat = self._clock()

    async def beat_forever(self) -> None:
        while True:
            self.beat()
            await asyncio.sleep(min(MAX_BEAT_SECONDS, self._hang_seconds / 4))

    def startupz(self) -> str | None:
        """Returns None if the probe passes, else the reason; so do the other two."""
        return None if self._started else self._unready

    def readyz(self) -> str | None:
        return self._unready or self.livez()

    def livez(self) -> str | None:
        if self._failure is not None:
            return self._failure
        hanging = self._clock() - self._beat
        return f"the event loop has been hanging for {hanging:.0f} s" if hanging > self._hang_seconds else None


class Readiness:
    """Sets the health service and the probes.

    The server is ready once it has tried to load all models, while at least one of them takes requests.
    """

    def __init__(self, health: Health, probes: Probes) -> None:
        self._health = health
        self._probes = probes
        self._models: Mapping[str, bool] = {}
        self._started = self._ended = False

    def models(self, serving: Mapping[str, bool]) -> None:
        """Sets the models, and whether each takes requests."""
        self._models = dict(serving)
        self._health.set_models(serving)
        self._update_probes()

    def start(self) -> None:
        """Notes that all models have been tried."""
        self._started = True
        self._probes.serving()
        self._health.set_serving(True)
        self._update_probes()

    def end(self, failure: str | None = None) -> None:
        """Makes the server unready for good.

        Args:
            failure: What failed; None if the server was asked to stop.
        """
        self._ended = True
        self._health.set_serving(False)
        if failure is not None:
            self._probes.failed(failure)
        else:
            self._probes.not_serving("the server is draining")

    def _update_probes(self) -> None:
        if self._started and not self._ended:
            if any(self._models.values()):
                self._probes.serving()
            else:
                self._probes.not_serving("no model can answer at the moment" if self._models else "no model is loaded")
