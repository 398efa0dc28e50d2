"""The summary line: what the server did in the last seconds."""

from array import array
from collections.abc import Sequence
from typing import Any

from dragoman_server.core.call_record import CallRecord

MAX_TIMES = 200_000  # kept for percentiles; more than a server can do in one window


class SummaryWindow:
    """The calls that ended since some time. Each item of a GenerateMany call counts as a call.

    Args:
        since: Start of the window, as time.monotonic().

    Attributes:
        calls: Number of calls.
    """

    def __init__(self, since: float) -> None:
        self.calls = 0
        self._since = since
        self._failed = 0
        self._source_tokens = self._target_tokens = 0
        self._times = array("d")

    def add(self, record: CallRecord) -> None:
        self.add_item(
            record.source_tokens, record.target_tokens, record.ended - record.started, failed=record.code != "OK"
        )

    def add_item(self, source_tokens: int, target_tokens: int, seconds: float, failed: bool) -> None:
        self.calls += 1
        self._failed += failed
        self._source_tokens += source_tokens
        self._target_tokens += target_tokens
        if self.calls <= MAX_TIMES:
            self._times.append(seconds)

    def fields(self, now: float, waiting: int, running: int) -> dict[str, Any]:
        """Returns the fields of the summary line.

        Args:
            waiting: Requests in the queue now.
            running: Cache rows in use now.
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
    """Returns the smallest value that at least `percent` percent of the values do not exceed."""
    return ordered[-(-len(ordered) * percent // 100) - 1]
