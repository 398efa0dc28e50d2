"""What the process can still have of the memory it runs in."""

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dragoman_server.machine import free_memory


class MemoryMetrics(Collector):
    """Asked of the system when Prometheus asks."""

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "dragoman_memory_available_bytes",
            "Memory that the server can still have: what the container's limit, or else the machine, leaves",
            value=free_memory()[0],
            unit="bytes",
        )
