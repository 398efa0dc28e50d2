"""The picture of docs/scale.md: queues and latency over utilization, and a burst."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # a file, never a window

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from tests.scale.scaling import Scaled
from tests.scale.simulate import BALANCED_AT, Point, Queue

SHOWN = ("none", "waiting requests", "calls in flight")


def draw(queue: Queue, path: Path) -> None:
    """Writes a WebP picture."""
    figure = Figure(figsize=(13, 8), layout="constrained")
    (latency, waits, balancing), (rates, replicas, tails) = figure.subplots(2, 3)
    models = list(dict.fromkeys(point.model for point in queue.utilization))
    for number, model in enumerate(models):
        points = [point for point in queue.utilization if point.model == model]
        _over_utilization(latency, points, "p50", "p99", model, f"C{number}")
        _over_utilization(waits, points, "queue_p50", "queue_p99", model, f"C{number}")
    latency.set(title="Latency: p99, and p50 dashed", ylabel="ms")
    waits.set(title="Time in the queue: p99, and p50 dashed", ylabel="ms")
    for name in dict.fromkeys(point.balancer for point in queue.balancing):
        points = [point for point in queue.balancing if point.balancer == name]
        balancing.plot(BALANCED_AT, [1000 * point.p99 for point in points], "o-", label=name, ms=4)
    balancing.set(title="p99 latency by load balancing, base", ylabel="ms", ylim=(0, None))
    for axes in (latency, waits, balancing):
        axes.set(xlabel="calls per second, of the most a replica answers")
    _burst(rates, replicas, tails, queue.bursts)
    for axes in (latency, waits, balancing, rates, replicas, tails):
        axes.grid(alpha=0.3)
        if axes.get_yscale() == "log":
            axes.yaxis.set_major_formatter(ScalarFormatter())
        if axes is not rates:
            axes.legend(fontsize=8)
    figure.savefig(path, dpi=80)


def _over_utilization(axes: Axes, points: list[Point], middle: str, tail: str, label: str, colour: str) -> None:
    x = [point.utilization for point in points]
    axes.plot(x, [1000 * getattr(point, tail) for point in points], "o-", color=colour, label=label, ms=4)
    axes.plot(x, [1000 * getattr(point, middle) for point in points], "--", color=colour, lw=1)
    axes.set(yscale="log")


def _burst(rates: Axes, replicas: Axes, tails: Axes, bursts: list[Scaled]) -> None:
    times, calls = bursts[0].times, bursts[0].rates
    rates.plot(times, calls, color="#7f7f7f")
    rates.set(title="A burst: calls per second", xlabel="seconds", ylim=(0, None))
    for one in bursts:
        if one.name not in SHOWN:
            continue
        label = one.name if one.start_seconds is None else f"{one.name}, ready after {one.start_seconds:g} s"
        replicas.plot(one.times, one.replicas, label=label)
        tails.plot(one.times, [1000 * value for value in one.p99s], label=label)
    replicas.set(title="Replicas, by autoscaling signal", xlabel="seconds", ylim=(0, None))
    tails.set(title="p99 latency in the burst, ms", xlabel="seconds", yscale="log", ylim=(50, 1e6))
