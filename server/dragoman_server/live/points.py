"""A point of every chart: what happened in the seconds before it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dragoman_server.live.totals import DEVICE_ERRORS, DROPS, CallTotals, Totals
from dragoman_server.metrics import REQUEST_SECONDS, STEP_SECONDS, ModelMetrics

SHARES = (0.5, 0.95, 0.99)
TIMES = {"first_token": REQUEST_SECONDS, "inter_token": STEP_SECONDS, "generation": REQUEST_SECONDS}

Point = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gauges:
    """The load at one time.

    Attributes:
        waiting: Requests in the queues.
        running: Cache rows in use.
        rows: Cache rows in total.
        cache_used: Bytes of the rows in use.
        cache: Bytes of all rows.
    """

    waiting: int = 0
    running: int = 0
    rows: int = 0
    cache_used: int = 0
    cache: int = 0

    @classmethod
    def of(cls, models: Sequence[ModelMetrics]) -> "Gauges":
        engines = [engine for model in models for engine in list(model.engines.values())]
        return cls(
            sum(model.waits()[0] for model in models),
            sum(running for running, _ in engines),
            sum(rows for _, rows in engines),
            sum(sum(model.cache_used_bytes().values()) for model in models),
            sum(sum(list(model.cache_bytes.values())) for model in models),
        )


def point(moment: float, seconds: float, work: Totals, gauges: Gauges) -> Point:
    """Returns what a model, or all of them, did in the `seconds` before `moment`.

    Rates are per second. Unknown values are None: a quantile without observations, the rows per step without steps.

    Args:
        moment: Seconds since 1970.
        work: The counts of these seconds.
        gauges: The load at `moment`.
    """
    steps, rows = work.steps
    source_tokens, target_tokens = work.tokens
    return {
        "time": round(moment, 3),
        **{name: _quantiles(bounds, getattr(work, name)) for name, bounds in TIMES.items()},
        "answers": sum(work.finishes) / seconds,
        "step_rows": rows / steps if steps else None,
        "steps": steps / seconds,
        "tokens": {"source": source_tokens / seconds, "target": target_tokens / seconds},
        "drops": _rates(zip(DROPS, work.drops, strict=True), seconds),
        "device_errors": _rates(zip(DEVICE_ERRORS, work.device_errors, strict=True), seconds),
        "waiting": gauges.waiting,
        "running": gauges.running,
        "rows": gauges.rows,
        "cache": {"used": gauges.cache_used, "bytes": gauges.cache},
    }


def call_point(seconds: float, before: CallTotals, now: CallTotals) -> Point:
    """Returns the calls per second, by code or refusal reason; zeros are left out."""
    return {
        "codes": _rates(_increase(before.codes, now.codes), seconds),
        "rejections": _rates(_increase(before.rejections, now.rejections), seconds),
    }


def _increase(before: dict[str, int], now: dict[str, int]) -> list[tuple[str, float]]:
    return [(name, count - before.get(name, 0)) for name, count in now.items()]


def _rates(counts: Any, seconds: float) -> dict[str, float]:
    return {name: count / seconds for name, count in counts if count}


def quantile(bounds: Sequence[float], counts: Sequence[float], share: float) -> float | None:
    """Estimates the value that `share` of the observations do not exceed, like Prometheus' histogram_quantile.

    Args:
        bounds: Ascending upper bounds of the buckets; a last bucket has no bound.
        counts: Observations in each bucket.
        share: 0 to 1.

    Returns:
        A value inside a bucket, assuming that its observations are spread evenly; the last bound if it lies beyond;
        None without observations.
    """
    rank = share * sum(counts)
    if rank <= 0:
        return None
    below = 0.0
    for index, bound in enumerate(bounds):
        count = counts[index]
        if below + count >= rank:
            lower = bounds[index - 1] if index else 0.0
            return lower + (bound - lower) * (rank - below) / count
        below += count
    return bounds[-1]


def _quantiles(bounds: Sequence[float], counts: Sequence[float]) -> list[float] | None:
    found = [quantile(bounds, counts, share) for share in SHARES]
    return None if None in found else [value for value in found if value is not None]
