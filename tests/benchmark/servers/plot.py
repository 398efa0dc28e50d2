"""The comparison with other servers as a picture."""

from pathlib import Path
from textwrap import fill

import matplotlib

matplotlib.use("Agg")  # a file, never a window

from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from tests.benchmark.servers.report import ARRIVALS
from tests.benchmark.servers.results import ModelResults
from tests.benchmark.servers.systems import NAMES


def draw(found: ModelResults, path: Path) -> None:
    """p99 over tokens per second, a line for each system, as a PNG."""
    kinds = [kind for kind in ARRIVALS if any(m.kind == kind for m in found.measurements)]
    figure, panels = plt.subplots(
        1, max(len(kinds), 1), figsize=(7 * max(len(kinds), 1), 5), layout="constrained", squeeze=False
    )
    figure.suptitle(fill(found.model, 70 * max(len(kinds), 1)))
    for axes, kind in zip(panels[0], kinds, strict=False):
        for number, (system, name) in enumerate(NAMES.items()):  # each keeps its colour where others are missing
            points = found.points(system, kind)
            if not points:
                continue
            rates, tails = [p.rate for p in points], [1000 * p.p99 for p in points]
            axes.plot(rates, tails, "o-", color=f"C{number}", label=name, markersize=4)
            if kind == "closed":
                for point in points:
                    axes.annotate(f"{point.load:.0f}", (point.rate, 1000 * point.p99), fontsize=7)
        axes.set(title=ARRIVALS[kind], xlabel="tokens/s", ylabel="p99 of a call, ms", yscale="log", xlim=(0, None))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(which="both", alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=100)
    plt.close(figure)
