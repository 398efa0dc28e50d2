"""Counts of calls, by method."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from dragoman_server.core.errors import Rejection
from dragoman_server.metrics.histogram import REQUEST_SECONDS, Histogram

# Success, and the failures that are not the caller's fault. They are exposed from a method's first call on: Prometheus
# sees no increase, and so no error, in a series that begins with one.
CODES = ("OK", "UNKNOWN", "INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")


class CallMetrics:
    """Counts calls for the interceptor. Only `collect` may be called outside the event loop.

    Attributes:
        requests: Finished calls, by method and code.
        in_flight: Running calls, by method.
        seconds: Durations of calls, by method.
        items: Answered items of batches and GenerateMany calls, by method and code.
        rejections: Refused requests and items, by reason.
    """

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = {}
        self.in_flight: dict[str, int] = {}
        self.seconds: dict[str, Histogram] = {}
        self.items: dict[tuple[str, str], int] = {}
        self.rejections = dict.fromkeys(Rejection, 0)

    def begin(self, method: str) -> None:
        self.in_flight[method] = self.in_flight.get(method, 0) + 1
        if method not in self.seconds:
            self.seconds[method] = Histogram(REQUEST_SECONDS)
            self.requests |= {(method, code): 0 for code in CODES}

    def end(self, method: str, code: str, seconds: float) -> None:
        self.requests[method, code] = self.requests.get((method, code), 0) + 1
        self.seconds[method].observe(seconds)
        self.in_flight[method] -= 1  # last: if none is in flight, all have been counted

    def item(self, method: str, code: str) -> None:
        """Counts an answered item of a call."""
        if (method, code) not in self.items:
            self.items = {(method, known): 0 for known in (*CODES, code)} | self.items
        self.items[method, code] += 1

    @property
    def begun(self) -> int:
        """All calls so far, running ones included."""
        return sum(self.requests.values()) + sum(self.in_flight.values())

    def running(self, *services: str) -> int:
        """Returns how many calls of some services run now."""
        return sum(count for method, count in self.in_flight.items() if method.partition("/")[0] in services)

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "dragoman_requests", "Finished calls, by gRPC status code", labels=["method", "code"]
        )
        in_flight = GaugeMetricFamily("dragoman_requests_in_flight", "Calls in progress", labels=["method"])
        seconds = HistogramMetricFamily(
            "dragoman_request_seconds", "From a call's arrival to its last message", labels=["method"], unit="seconds"
        )
        items = CounterMetricFamily(
            "dragoman_items",
            "Answered items of batches and GenerateMany calls, by status code",
            labels=["method", "code"],
        )
        rejections = CounterMetricFamily(
            "dragoman_rejections", "Requests and items refused before they reached the queue", labels=["reason"]
        )
        for labels, count in list(self.requests.items()):
            requests.add_metric(labels, count)
        for method, running in list(self.in_flight.items()):
            in_flight.add_metric([method], running)
        for method, histogram in list(self.seconds.items()):
            histogram.write(seconds, (method,))
        for labels, count in list(self.items.items()):
            items.add_metric(labels, count)
        for reason, count in self.rejections.items():
            rejections.add_metric([reason.value], count)
        yield from (requests, in_flight, seconds, items, rejections)
