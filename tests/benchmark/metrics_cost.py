"""What counting costs: the calls that engines make to their metrics, timed without engines."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import generate_latest

from server.engine.requests import FinishReason
from server.live.history import EVERY_SECONDS, KEPT, History
from server.metrics import ModelMetrics, ServerMetrics
from tests.benchmark.engine_work import EngineWork

CALLS, ROUNDS = 2000, 7
ROWS = 64


@dataclass(frozen=True)
class MetricsCost:
    """Seconds of one thread that nobody disturbs.

    Attributes:
        step: of what an engine counts at a step.
        request: of what it counts once for a request.
        page: of writing /metrics.
        point: of a point of the page that draws the last minutes; there is one every EVERY_SECONDS.
    """

    step: float
    request: float
    page: float
    point: float

    def share(self, work: EngineWork, requests: int) -> float:
        """Of the time of the steps that engines took to answer so many requests, what counting adds."""
        return (self.step * work.steps + self.request * requests) / work.step_seconds

    @property
    def point_share(self) -> float:
        """Of one core's time."""
        return self.point / EVERY_SECONDS


def measure_metrics() -> MetricsCost:
    """Of each call the best of several rounds, since what is to be known is what it costs and not what else ran."""
    metrics = ServerMetrics()
    model = metrics.model("measured")
    model.cache(0, 1 << 26)
    history = History(metrics)

    def point() -> None:
        _step(model)  # so that it differs from the one before
        history.sample()

    costs = MetricsCost(
        _seconds(lambda: _step(model), CALLS),
        _seconds(lambda: _request(model), CALLS),
        _seconds(lambda: generate_latest(metrics.registry), 10),
        _seconds(point, 100),
    )
    assert len(history.told()["points"]) == KEPT
    return costs


def _step(model: ModelMetrics) -> None:
    model.state(0, ROWS, ROWS)
    model.stepped(0.001, ROWS, 0.0011)


def _request(model: ModelMetrics) -> None:
    """An encoder run is shared by several requests; here each has one, which can only be more."""
    model.admitted(0.002)
    model.encoded(0.001, 1, 9, 0)
    model.first_token(0.004)
    model.finished(FinishReason.EOS, 9, 8, 0.02)


def _seconds(call: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(times):
            call()
        best = min(best, time.perf_counter() - started)
    return best / times
