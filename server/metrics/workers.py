"""The processes that compute: which of them run, and how often they were started anew."""

from collections.abc import Iterable
from typing import Literal, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

RestartReason = Literal["died", "hung", "errors"]


class WorkerMetrics:
    """For use from any thread."""

    def __init__(self) -> None:
        self._up: dict[str, bool] = {}
        self._restarts: dict[str, dict[RestartReason, int]] = {}

    def up(self, worker: str, up: bool) -> None:
        # Zeros come first, since the first restart of a series that begins with it looks like none.
        self._restarts.setdefault(worker, dict.fromkeys(get_args(RestartReason), 0))
        self._up[worker] = up

    def restarted(self, worker: str, reason: RestartReason) -> None:
        self._restarts.setdefault(worker, dict.fromkeys(get_args(RestartReason), 0))[reason] += 1

    def forget(self, worker: str) -> None:
        self._up.pop(worker, None)
        self._restarts.pop(worker, None)

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("dragoman_worker_up", "1 where a worker process runs", labels=["worker"])
        restarts = CounterMetricFamily(
            "dragoman_worker_restarts", "Worker processes started anew", labels=["worker", "reason"]
        )
        for worker, running in list(self._up.items()):
            up.add_metric([worker], running)
        for worker, counts in list(self._restarts.items()):
            for reason, count in counts.items():
                restarts.add_metric([worker, reason], count)
        yield from (up, restarts)
