"""Keeps the points of the last minutes for the live page and `dragoman top`."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dragoman_server.live.points import SHARES, TIMES, Gauges, Point, call_point, point
from dragoman_server.live.totals import DEVICE_ERRORS, DROPS, FINISHES, CallTotals, Totals, nothing, total
from dragoman_server.metrics import ModelMetrics, ServerMetrics

EVERY_SECONDS = 2.0  # between two points
WINDOW = 5  # intervals that a point covers
KEPT = 150  # points

Key = tuple[str, str]  # name and version


class NotServedError(Exception):
    """No such version of a model is served."""


@dataclass(frozen=True, slots=True)
class _Counts:
    """All counts at one time.

    Attributes:
        clock: Monotonic seconds.
        moment: Seconds since 1970.
        models: The totals of each version with the object that counts them: a reloaded version starts at zero.
    """

    clock: float
    moment: float
    calls: CallTotals
    models: dict[Key, tuple[ModelMetrics, Totals]]


class History:
    """Takes a point of each model, and of all together, every EVERY_SECONDS once started. Thread-safe.

    Args:
        clock: Returns monotonic seconds.
        now: Returns seconds since 1970.
    """

    def __init__(
        self,
        metrics: ServerMetrics,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._metrics = metrics
        self._clock, self._now = clock, now
        self.started = now()
        self._lock = threading.Lock()
        self._calls: deque[Point] = deque(maxlen=KEPT)
        self._all: deque[Point] = deque(maxlen=KEPT)
        self._models: dict[Key, deque[Point]] = {}
        self._counts = deque([self._count()], maxlen=WINDOW)

    def start(self) -> None:
        """Starts a thread that takes points."""
        threading.Thread(target=self._run, name="live", daemon=True).start()

    def sample(self) -> None:
        """Takes a point."""
        now = self._count()
        with self._lock:
            before = self._counts[0]
            self._counts.append(now)
            seconds = max(now.clock - before.clock, 1e-3)
            self._calls.append(call_point(seconds, before.calls, now.calls))
            work = {key: _since(before.models.get(key), *counted) for key, counted in now.models.items()}
            gauges = Gauges.of([metrics for metrics, _ in now.models.values()])
            self._all.append(point(now.moment, seconds, total(work.values()), gauges))
            self._models = {key: self._models.get(key, deque(maxlen=KEPT)) for key in now.models}
            for key, (metrics, _) in now.models.items():
                self._models[key].append(point(now.moment, seconds, work[key], Gauges.of([metrics])))

    def document(self, model: str = "", after: float = 0.0) -> dict[str, Any]:
        """Returns /live.json, which the page and `dragoman top` show.

        Args:
            model: NAME@VERSION; "" for all models together.
            after: Leaves out points up to this time, in seconds since 1970.

        Raises:
            NotServedError: No such version is served.
        """
        now = self._now()
        with self._lock:
            latest = self._counts[-1]
            known = {f"{name}@{version}": (name, version) for name, version in latest.models}
            if model and model not in known:
                raise NotServedError
            points = self._models.get(known[model], deque()) if model else self._all
            calls = list(self._calls)[len(self._calls) - len(points) :]
            # If the machine was suspended, points are further apart, and reach back too far.
            first = max(after, now - KEPT * EVERY_SECONDS)
            shown = [{**work, **call} for work, call in zip(points, calls, strict=True) if work["time"] > first]
        chosen = [counted for key, (_, counted) in latest.models.items() if not model or key == known[model]]
        return {
            "started": round(self.started, 3),
            "now": round(now, 3),
            "every_seconds": EVERY_SECONDS,
            "window_seconds": EVERY_SECONDS * WINDOW,
            "kept_seconds": EVERY_SECONDS * KEPT,
            "quantiles": SHARES,
            "measured_up_to": {name: bounds[-1] for name, bounds in TIMES.items()},
            "models": self._served(),
            "model": model,
            "totals": _totals(total(chosen), latest.calls),
            "points": shown,
        }

    def _served(self) -> list[dict[str, Any]]:
        return [
            {"name": f"{name}@{version}", "device": load.device, "precision": load.precision, "fallback": load.fallback}
            for (name, version), load in sorted(self._metrics.loads().items())
        ]

    def _count(self) -> _Counts:
        models = {key: (metrics, Totals.of(metrics)) for key, metrics in self._metrics.models().items()}
        return _Counts(self._clock(), self._now(), CallTotals.of(self._metrics.calls), models)

    def _run(self) -> None:
        while True:
            time.sleep(EVERY_SECONDS)
            self.sample()


def _since(before: tuple[ModelMetrics, Totals] | None, metrics: ModelMetrics, now: Totals) -> Totals:
    return now.since(before[1] if before is not None and before[0] is metrics else nothing())


def _totals(work: Totals, calls: CallTotals) -> dict[str, Any]:
    """Returns the counts since the start, or since a model was loaded."""
    return {
        "codes": _nonzero(calls.codes.items()),
        "rejections": _nonzero(calls.rejections.items()),
        "finishes": _nonzero(zip(FINISHES, work.finishes, strict=True)),
        "drops": _nonzero(zip(DROPS, work.drops, strict=True)),
        "device_errors": _nonzero(zip(DEVICE_ERRORS, work.device_errors, strict=True)),
        "tokens": {"source": work.tokens[0], "target": work.tokens[1]},
        "answers": sum(work.finishes),
    }


def _nonzero(counts: Iterable[tuple[str, float]]) -> dict[str, float]:
    return {name: count for name, count in counts if count}
