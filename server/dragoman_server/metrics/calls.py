"""The calls of every method."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from dragoman_server.core.errors import Rejection
from dragoman_server.metrics.histogram import REQUEST_SECONDS, Histogram

# How calls end that are well, and those that fail through no fault of the caller. They are told of from a method's
# first call on: where a series begins with an error Prometheus sees no rise, and takes that error for none.
CODES = ("OK", "UNKNOWN", "INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")


class CallMetrics:
    """Counted by the interceptor; for use from the event loop alone, but for `collect`.

    Attributes:
        requests: that ended, by method and code.
        in_flight, seconds: by method.
        rejections: requests, or items of batches, that were refused.
    """

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = {}
        self.in_flight: dict[str, int] = {}
        self.seconds: dict[str, Histogram] = {}
        self.rejections = dict.fromkeys(Rejection, 0)

    def begin(self, method: str) -> None:
        self.in_flight[method] = self.in_flight.get(method, 0) + 1
        if method not in self.seconds:
            self.seconds[method] = Histogram(REQUEST_SECONDS)
            self.requests |= {(method, code): 0 for code in CODES}

    def end(self, method: str, code: str, seconds: float) -> None:
        self.requests[method, code] = self.requests.get((method, code), 0) + 1
        self.seconds[method].observe(seconds)
        self.in_flight[method] -= 1  # last: who sees none in flight sees all of them counted

    @property
    def begun(self) -> int:
        """Calls that have come so far."""
        return sum(self.requests.values()) + sum(self.in_flight.values())

    def running(self, *services: str) -> int:
        """Calls of some services that run now."""
        return sum(count for method, count in self.in_flight.items() if method.partition("/")[0] in services)

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "dragoman_requests", "Calls that ended, by gRPC status code", labels=["method", "code"]
        )
        in_flight = GaugeMetricFamily("dragoman_requests_in_flight", "Calls that run now", labels=["method"])
        seconds = HistogramMetricFamily(
            "dragoman_request_seconds", "From a call's arrival to its last message", labels=["method"], unit="seconds"
        )
        rejections = CounterMetricFamily(
            "dragoman_rejections", "Requests and batch items refused before an engine saw them", labels=["reason"]
        )
        for labels, count in list(self.requests.items()):
            requests.add_metric(labels, count)
        for method, running in list(self.in_flight.items()):
            in_flight.add_metric([method], running)
        for method, histogram in list(self.seconds.items()):
            histogram.write(seconds, (method,))
        for reason, count in self.rejections.items():
            rejections.add_metric([reason.value], count)
        yield from (requests, in_flight, seconds, rejections)
