"""One point of every chart: what the seconds before a moment were like."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dragoman_server.live.quantiles import quantile
from dragoman_server.live.totals import DEVICE_ERRORS, DROPS, CallTotals, Totals
from dragoman_server.metrics import REQUEST_SECONDS, STEP_SECONDS, ModelMetrics

SHARES = (0.5, 0.95, 0.99)
TIMES = {"first_token": REQUEST_SECONDS, "inter_token": STEP_SECONDS, "generation": REQUEST_SECONDS}

Point = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is there at a moment.

    Attributes:
        waiting: requests.
        running, rows: cache rows in use, and all there are.
        cache_used, cache: bytes likewise.
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
    """What a model, or all of them, did in the `seconds` before `moment`.

    Rates are per second. What can't be known is None: a quantile of nothing, the rows of no step.

    Args:
        moment: seconds since 1970.
        work: of these seconds.
        gauges: at the moment.
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
    """What the server was asked in some seconds. A code or reason that did not come up is left out."""
    return {
        "codes": _rates(_grown(before.codes, now.codes), seconds),
        "rejections": _rates(_grown(before.rejections, now.rejections), seconds),
    }


def _grown(before: dict[str, int], now: dict[str, int]) -> list[tuple[str, float]]:
    return [(name, count - before.get(name, 0)) for name, count in now.items()]


def _rates(counts: Any, seconds: float) -> dict[str, float]:
    return {name: count / seconds for name, count in counts if count}


def _quantiles(bounds: Sequence[float], counts: Sequence[float]) -> list[float] | None:
    found = [quantile(bounds, counts, share) for share in SHARES]
    return None if None in found else [value for value in found if value is not None]
