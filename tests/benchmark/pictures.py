"""The page's pictures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # a file, never a window

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from tests.benchmark.results import read

SERVERS = ("dragoman", "batching", "triton")


def draw(results: Path, folder: Path) -> list[str]:
    """Draws all results and removes older pictures.

    Returns:
        the names of the pictures, without suffix.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    kinds: dict[str, tuple[dict[str, Any], Callable[[Axes, Any], None]]] = {
        "servers": ({label: found["systems"] for label, found in read("servers", results).items()}, _servers),
        "growth": (read("growth", results).get("models", {}), _growth),
    }
    drawn = []
    for name, (panels, plot) in kinds.items():
        if not panels:
            continue
        figure, axes = plt.subplots(1, len(panels), figsize=(6 * len(panels), 4.2), layout="constrained", squeeze=False)
        for one, (title, found) in zip(axes[0], panels.items(), strict=True):
            one.set_title(title)
            plot(one, found)
        figure.savefig(folder / f"{name}.png", dpi=80)
        plt.close(figure)
        drawn.append(name)
    return drawn


def _servers(axes: Axes, systems: Any) -> None:
    for number, name in enumerate(SERVERS):
        if found := systems.get(name):
            points = [(point["rate"], 1000 * point["p99"], point["callers"]) for point in found["closed"]]
            axes.plot([x for x, _, _ in points], [y for _, y, _ in points], "o-", color=f"C{number}", label=name, ms=4)
            for rate, p99, callers in points:
                axes.annotate(str(callers), (rate, p99), fontsize=7)
    axes.set(xlabel="tokens/s, by number of callers", ylabel="p99 of a call, ms", yscale="log", xlim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()


def _growth(axes: Axes, curves: Any) -> None:
    for curve in curves:
        sizes, times = ([value / values[0] for value in values] for values in (curve["sizes"], curve["ms"]))
        axes.plot(sizes, times, "o-", label=f"{curve['work']} over {curve['over']}", ms=4)
    most = max(curve["sizes"][-1] / curve["sizes"][0] for curve in curves)
    axes.plot([1, most], [1, most], "k--", lw=1, label="linear")
    axes.set(xlabel="size over the first", ylabel="time over that of the first", xscale="log", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
