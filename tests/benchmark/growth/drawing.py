"""Curves as pictures."""

from pathlib import Path
from textwrap import fill

import matplotlib

matplotlib.use("Agg")  # a file, never a window

from matplotlib import pyplot as plt

from tests.benchmark.growth.curve import Curve


def draw(curve: Curve, title: str, path: Path) -> None:
    """Time on the left and throughput on the right, both over the size and on logarithmic axes, as a PNG."""
    sizes = [point.size for point in curve.points]
    figure, (times, rates) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    times.plot(sizes, [1000 * point.typical for point in curve.points], "o-", label="measured")
    lows, highs = ([1000 * end(point.seconds) for point in curve.points] for end in (min, max))
    times.fill_between(sizes, lows, highs, alpha=0.2)
    rates.plot(sizes, [point.rate for point in curve.points], "o-", label="measured")
    linear = [curve.linear(size) for size in sizes]
    if curve.spread:
        rates.plot(sizes, linear, "--", color="grey", label="linear")
    else:
        times.plot(sizes, [1000 * seconds for seconds in linear], "--", color="grey", label="linear")
    times.set(title=f"{curve.work}, ms", xlabel=curve.size)
    rates.set(title=f"{curve.item} a second", xlabel=curve.size)
    for axes in (times, rates):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axes.yaxis.set_minor_formatter(lambda value, _: f"{value:,.10g}" if f"{value:e}"[0] in "235" else "")
        axes.grid(alpha=0.3)
        if len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend()
    figure.suptitle(fill(f"{title}: {curve.setting}", 150), fontsize=9)
    figure.savefig(path, dpi=100)
    plt.close(figure)
