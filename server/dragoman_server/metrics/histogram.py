"""Histograms and their bucket bounds."""

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.core import HistogramMetricFamily

Labels = tuple[str, ...]


def geometric(first: float, last: float, count: int) -> list[float]:
    """Returns `count` bounds from `first` to `last` in geometric progression, rounded to two significant digits."""
    factor = (last / first) ** (1 / (count - 1))
    return [float(f"{first * factor**i:.2g}") for i in range(count)]


STEP_SECONDS = geometric(0.0002, 2, 16)  # factor 1.85
REQUEST_SECONDS = geometric(0.001, 60, 20)  # factor 1.78
ROWS = [float(2**i) for i in range(10)]  # 1 to 512
TOKENS = [float(2**i) for i in range(14)]  # 1 to 8192


class Histogram:
    """Counts by bucket. Unlike prometheus_client's, it takes many equal values at once. Not thread-safe."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def write(self, family: HistogramMetricFamily, labels: Labels) -> None:
        """Adds the cumulative counts to a metric family."""
        counts, total, buckets = list(self.counts), 0, []
        for bound, count in zip([*self.bounds, float("inf")], counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        family.add_metric(labels, buckets, self.sum)
