"""Plots calls, queue and latency of a ramp."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from tests.ramp.results import SLOW, Moment, Ramp

OFFERED, ANSWERED, QUEUE, MEDIAN, LATENCY = "#7f7f7f", "#1f77b4", "#d95f02", "#9ecae1", "#1f77b4"


def plot(ramp: Ramp, threshold: float, path: Path) -> None:
    """Writes a PNG with calls, queue and latency over time; marks where queue and latency rise."""
    figure = Figure(figsize=(9, 8), layout="constrained")
    calls, queue, latency = figure.subplots(3, 1, sharex=True)
    seconds = [moment.second for moment in ramp.moments]
    calls.plot(seconds, [moment.offered for moment in ramp.moments], color=OFFERED, label="sent")
    calls.plot(seconds, [moment.answered for moment in ramp.moments], color=ANSWERED, label="answered")
    calls.axhline(ramp.capacity, color=OFFERED, linestyle=":", label="capacity, measured before")
    calls.set(title="Calls per second", ylim=(0, None))

    waiting = [float("nan") if moment.waiting is None else moment.waiting for moment in ramp.moments]
    queue.plot(seconds, waiting, color=QUEUE, label="dragoman_requests_waiting")
    queue.axhline(threshold, color=QUEUE, linestyle=":", label=f"pods are added above {threshold:g}")
    queue.set(title="Waiting requests", ylim=(0, None))
    queue.set_yscale("symlog", linthresh=10)

    for quantile, name, colour in (
        ("p50_seconds", "median", MEDIAN),
        ("p95_seconds", "95th percentile", LATENCY),
    ):
        times = [getattr(moment, quantile) for moment in ramp.moments]
        milliseconds = [float("nan") if time is None else 1000 * time for time in times]
        latency.plot(seconds, milliseconds, color=colour, label=name)
    label = f"{SLOW:g} times the 95th percentile with all {ramp.rows} rows busy"
    latency.axhline(1000 * ramp.slow_seconds, color=LATENCY, linestyle=":", label=label)
    latency.set(title="Latency in milliseconds", xlabel="seconds", yscale="log")

    for axes in (queue, latency):
        axes.yaxis.set_major_formatter(ScalarFormatter())
    for axes in (calls, queue, latency):
        _mark(axes, ramp.queue_rises(threshold), QUEUE)
        _mark(axes, ramp.latency_rises(), LATENCY)
        axes.grid(alpha=0.25)
        axes.legend(loc="upper left", fontsize="small")
    figure.savefig(path, dpi=100)


def _mark(axes: Axes, moment: Moment | None, colour: str) -> None:
    if moment is not None:
        axes.axvline(moment.second, color=colour, linewidth=2, alpha=0.6)
