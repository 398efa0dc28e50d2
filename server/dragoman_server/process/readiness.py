"""What the health service and the probes say of the server, and of its models."""

from collections.abc import Mapping

from dragoman_server.api.health_service import Health
from dragoman_server.process.probes import Probes


class Readiness:
    """The server is ready once it has tried all of its models, as long as one of them takes requests."""

    def __init__(self, health: Health, probes: Probes) -> None:
        self._health = health
        self._probes = probes
        self._models: Mapping[str, bool] = {}
        self._started = self._ended = False

    def models(self, serving: Mapping[str, bool]) -> None:
        """These models there are, and whether they take requests."""
        self._models = dict(serving)
        self._health.set_models(serving)
        self._tell()

    def start(self) -> None:
        """All models were tried."""
        self._started = True
        self._probes.serving()
        self._health.set_serving(True)
        self._tell()

    def end(self, failure: str | None = None) -> None:
        """No more requests are taken.

        Args:
            failure: why not, where that was not asked for.
        """
        self._ended = True
        self._health.set_serving(False)
        if failure is not None:
            self._probes.failed(failure)
        else:
            self._probes.not_serving("the server is draining")

    def _tell(self) -> None:
        if self._started and not self._ended:
            if any(self._models.values()):
                self._probes.serving()
            else:
                self._probes.not_serving("no model can answer at the moment" if self._models else "no model is loaded")
