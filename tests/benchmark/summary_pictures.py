"""The two pictures of the summary: throughput, and latency, beside CTranslate2 and other servers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Any

import matplotlib

matplotlib.use("Agg")  # a file, never a window

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from tests.benchmark.servers.results import ModelResults
from tests.benchmark.servers.systems import NAMES, OURS
from tests.benchmark.summary import TITLES, models, servers

CALLERS = 64
BESIDE = ("dragoman", "triton", "batching")
OWN, OTHERS = "C0", "C7"  # colours


def draw(folder: Path, pictures: Path) -> list[str]:
    """Draws into `pictures` what the commands wrote into `folder`: in int8, or in fp32 where there is nothing else.

    Returns:
        Markdown lines that show what could be drawn.
    """
    for precision in ("int8", "fp32"):
        measured = models(folder, precision)
        beside = {
            kind: found for kind in TITLES if (found := servers(folder).models.get(f"{kind}-{precision}")) is not None
        }
        kinds = [kind for kind in TITLES if kind in measured or kind in beside]
        if kinds:
            _figure(kinds, pictures / "throughput.png", measured, beside, _throughput, 3.6)
            _figure(kinds, pictures / "latency.png", measured, beside, _latency, 5.0)
            return [
                f"![Throughput in {precision}](pictures/throughput.png)",
                f"![Latency in {precision}](pictures/latency.png)",
            ]
    return []


def _figure(
    kinds: Sequence[str],
    path: Path,
    measured: Mapping[str, dict[str, Any]],
    beside: Mapping[str, ModelResults],
    plot: Callable[[Axes, dict[str, Any] | None, ModelResults | None], None],
    height: float,
) -> None:
    figure, panels = plt.subplots(1, len(kinds), figsize=(7 * len(kinds), height), layout="constrained", squeeze=False)
    for axes, kind in zip(panels[0], kinds, strict=True):
        plot(axes, measured.get(kind), beside.get(kind))
        model = measured[kind]["model"] if kind in measured else beside[kind].model
        axes.set_title(fill(model.partition(", attention")[0], 52), fontsize=9)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _throughput(axes: Axes, model: dict[str, Any] | None, beside: ModelResults | None) -> None:
    """Bars: from the top what was measured beside CTranslate2, then, of another run, what beside other servers."""
    bars: list[tuple[str, float, str]] = []
    for system, load, name in (
        ("raw", CALLERS, f"bare step loop, {CALLERS} rows"),
        ("batch", None, "Dragoman, GenerateBatch"),
        ("unary", CALLERS, f"Dragoman, {CALLERS} Generate calls"),
        ("ctranslate2", None, "CTranslate2 in-process, its best"),
    ):
        series = [s for s in (model or {}).get("greedy", {}).get("series", []) if s["system"] == system]
        rates = [s["tokens_per_second"] for s in series if load is None or s["in_flight"] == load]
        if rates:
            bars.append((name, max(rates), OTHERS if system == "ctranslate2" else OWN))
    for system in BESIDE:
        points = [p for p in beside.points(system, "closed") if p.load == CALLERS] if beside else []
        bars += [(f"{NAMES[p.system]}, {CALLERS} callers*", p.rate, OWN if system == OURS else OTHERS) for p in points]
    drawn = axes.barh([name for name, _, _ in bars], [r for _, r, _ in bars], color=[colour for _, _, colour in bars])
    axes.bar_label(drawn, [f" {rate:,.0f}" for _, rate, _ in bars], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("tokens/s (*: of another run)")


def _latency(axes: Axes, model: dict[str, Any] | None, beside: ModelResults | None) -> None:
    """Lines over the number of callers, median and p99; CTranslate2 in-process, one at a time, as a line across."""
    for number, system in enumerate(BESIDE):
        points = beside.points(system, "closed") if beside else []
        for quantile, line in (("p50", "-o"), ("p99", "--o")):
            values = [1000 * getattr(point, quantile) for point in points]
            label = f"{NAMES[system]}, {'median' if quantile == 'p50' else 'p99'}"
            if points:
                axes.plot([p.load for p in points], values, line, color=f"C{number}", label=label, markersize=4)
    alone = [
        median(sample["p50_seconds"] for sample in series["samples"])
        for series in (model or {}).get("greedy", {}).get("series", [])
        if (series["system"], series["in_flight"]) == ("ctranslate2", 1)
    ]
    if alone:
        label = "CTranslate2 in-process, one at a time, median"
        axes.axhline(1000 * min(alone), color="grey", linestyle=":", label=label)
    axes.set(xlabel="callers at once", ylabel="ms a call", yscale="log")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
