"""The last minutes, point by point, whether or not somebody looks."""

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
WINDOW = 5  # points back that a point looks
KEPT = 150  # points

Key = tuple[str, str]  # name and version


class UnknownModelError(Exception):
    """There is no such version of a model."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What had been counted at a moment.

    Attributes:
        clock, moment: seconds, monotonic and since 1970.
        models: a version that was loaded anew counts from zero again, so who counts is told beside what.
    """

    clock: float
    moment: float
    calls: CallTotals
    models: dict[Key, tuple[ModelMetrics, Totals]]


class History:
    """Takes a point of all models together, and of each of them, every EVERY_SECONDS, once it has been started.

    For use from any thread.

    Args:
        clock, now: seconds, monotonic and since 1970.
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
        self._snapshots = deque([self._snapshot()], maxlen=WINDOW)

    def start(self) -> None:
        """Takes points from now on, in a thread of its own."""
        threading.Thread(target=self._run, name="live", daemon=True).start()

    def sample(self) -> None:
        """Takes a point."""
        now = self._snapshot()
        with self._lock:
            before = self._snapshots[0]
            self._snapshots.append(now)
            seconds = max(now.clock - before.clock, 1e-3)
            self._calls.append(call_point(seconds, before.calls, now.calls))
            work = {key: _since(before.models.get(key), *counted) for key, counted in now.models.items()}
            gauges = Gauges.of([metrics for metrics, _ in now.models.values()])
            self._all.append(point(now.moment, seconds, total(work.values()), gauges))
            self._models = {key: self._models.get(key, deque(maxlen=KEPT)) for key in now.models}
            for key, (metrics, _) in now.models.items():
                self._models[key].append(point(now.moment, seconds, work[key], Gauges.of([metrics])))

    def told(self, model: str = "", after: float = 0.0) -> dict[str, Any]:
        """What a page or a terminal shows, fit for JSON.

        Args:
            model: NAME@VERSION; "" for all together.
            after: only points later than this, in seconds since 1970, are wanted.

        Raises:
            UnknownModelError: there is no such version.
        """
        now = self._now()
        with self._lock:
            latest = self._snapshots[-1]
            known = {f"{name}@{version}": (name, version) for name, version in latest.models}
            if model and model not in known:
                raise UnknownModelError
            points = self._models.get(known[model], deque()) if model else self._all
            calls = list(self._calls)[len(self._calls) - len(points) :]
            # Where the machine stood still, points are further apart, and so many of them reach back too far.
            first = max(after, now - KEPT * EVERY_SECONDS)
            shown = [{**one, **two} for one, two in zip(points, calls, strict=True) if one["time"] > first]
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

    def _snapshot(self) -> _Snapshot:
        models = {key: (metrics, Totals.of(metrics)) for key, metrics in self._metrics.models().items()}
        return _Snapshot(self._clock(), self._now(), CallTotals.of(self._metrics.calls), models)

    def _run(self) -> None:
        while True:
            time.sleep(EVERY_SECONDS)
            self.sample()


def _since(before: tuple[ModelMetrics, Totals] | None, metrics: ModelMetrics, now: Totals) -> Totals:
    return now.since(before[1] if before is not None and before[0] is metrics else nothing())


def _totals(work: Totals, calls: CallTotals) -> dict[str, Any]:
    """Counts since the start, or since a model was loaded."""
    return {
        "codes": _counted(calls.codes.items()),
        "rejections": _counted(calls.rejections.items()),
        "finishes": _counted(zip(FINISHES, work.finishes, strict=True)),
        "drops": _counted(zip(DROPS, work.drops, strict=True)),
        "device_errors": _counted(zip(DEVICE_ERRORS, work.device_errors, strict=True)),
        "tokens": {"source": work.tokens[0], "target": work.tokens[1]},
        "answers": sum(work.finishes),
    }


def _counted(counts: Iterable[tuple[str, float]]) -> dict[str, float]:
    return {name: count for name, count in counts if count}
