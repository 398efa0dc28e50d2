"""The ramp as a picture."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from tests.ramp.lead import SLOW, Moment, Ramp

OFFERED, ANSWERED, QUEUE, MEDIAN, LATENCY = "#7f7f7f", "#1f77b4", "#d95f02", "#9ecae1", "#1f77b4"


def draw(ramp: Ramp, threshold: float, path: Path) -> None:
    """Calls, queue and latency over time, as a PNG; where queue and latency rise is marked."""
    figure = Figure(figsize=(9, 8), layout="constrained")
    calls, queue, latency = figure.subplots(3, 1, sharex=True)
    seconds = [moment.second for moment in ramp.moments]
    calls.plot(seconds, [moment.offered for moment in ramp.moments], color=OFFERED, label="sent")
    calls.plot(seconds, [moment.answered for moment in ramp.moments], color=ANSWERED, label="answered")
    calls.axhline(ramp.capacity, color=OFFERED, linestyle=":", label="as many as it can do, measured before")
    calls.set(title="Calls per second", ylim=(0, None))

    waiting = [float("nan") if moment.waiting is None else moment.waiting for moment in ramp.moments]
    queue.plot(seconds, waiting, color=QUEUE, label="dragoman_requests_waiting")
    queue.axhline(threshold, color=QUEUE, linestyle=":", label=f"more pods are started above {threshold:g}")
    queue.set(title="Requests that wait", ylim=(0, None))
    queue.set_yscale("symlog", linthresh=10)

    for quantile, name, colour in (
        ("p50_seconds", "50 of 100", MEDIAN),
        ("p95_seconds", "95 of 100", LATENCY),
    ):
        times = [getattr(moment, quantile) for moment in ramp.moments]
        shown = [float("nan") if each is None else 1000 * each for each in times]
        latency.plot(seconds, shown, color=colour, label=f"{name} calls are answered within")
    label = f"{SLOW:g} times what 95 of 100 take with all {ramp.rows} rows busy"
    latency.axhline(1000 * ramp.slow_seconds, color=LATENCY, linestyle=":", label=label)
    latency.set(title="Milliseconds from a call to its answer", xlabel="seconds", yscale="log")

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
