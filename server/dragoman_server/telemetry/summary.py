"""What was done within a few seconds, on one line."""

from array import array
from collections.abc import Sequence
from typing import Any

from dragoman_server.core.call_record import CallRecord

MOST_TIMES = 200_000  # kept for percentiles; what a server can't do in a window


class Window:
    """The calls that ended since some moment.

    Args:
        since: that moment, as time.monotonic().

    Attributes:
        calls: how many.
    """

    def __init__(self, since: float) -> None:
        self.calls = 0
        self._since = since
        self._failed = 0
        self._source_tokens = self._target_tokens = 0
        self._times = array("d")

    def add(self, record: CallRecord) -> None:
        self.calls += 1
        self._failed += record.code != "OK"
        self._source_tokens += record.source_tokens
        self._target_tokens += record.target_tokens
        if self.calls <= MOST_TIMES:
            self._times.append(record.ended - record.started)

    def told(self, now: float, waiting: int, running: int) -> dict[str, Any]:
        """What the line says.

        Args:
            waiting: requests in the queue, at this moment,
            running: cache rows in use.
        """
        seconds = max(now - self._since, 1e-3)
        fields: dict[str, Any] = {
            "seconds": round(seconds, 1),
            "calls": self.calls,
            "not_ok": self._failed,
            "calls_per_second": round(self.calls / seconds, 1),
            "source_tokens_per_second": round(self._source_tokens / seconds, 1),
            "target_tokens_per_second": round(self._target_tokens / seconds, 1),
        }
        if self._times:
            times = sorted(self._times)
            fields["p50_ms"] = round(percentile(times, 50) * 1000, 3)
            fields["p99_ms"] = round(percentile(times, 99) * 1000, 3)
        return {**fields, "waiting": waiting, "rows_running": running}


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The least of the values that so many percent of them are not above."""
    return ordered[-(-len(ordered) * percent // 100) - 1]
