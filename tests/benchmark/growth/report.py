"""Curves as a page for people and as JSON for programs."""

from collections.abc import Iterator, Sequence
from typing import Any

from tests.benchmark.growth.curve import Curve
from tests.benchmark.tables import table


def document(model: str, curves: Sequence[Curve], machine: dict[str, Any]) -> dict[str, Any]:
    """Everything measured."""
    return {
        "machine": machine,
        "model": model,
        "curves": [
            {
                **{k: v for k, v in vars(curve).items() if k != "points"},
                "exponent": curve.exponent(),
                "finding": curve.sentence(),
                "points": [{**vars(point), "items_per_second": point.rate} for point in curve.points],
            }
            for curve in curves
        ],
    }


def markdown(model: str, curves: Sequence[Curve], pictures: dict[str, str], machine: dict[str, Any]) -> str:
    """The page.

    Args:
        pictures: file names, by curve.
    """
    return "\n\n".join(_page(model, curves, pictures, machine)) + "\n"


def _page(model: str, curves: Sequence[Curve], pictures: dict[str, str], machine: dict[str, Any]) -> Iterator[str]:
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    yield f"# How cost grows: {model}"
    yield (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, Python {machine['python']}, "
        f"{packages}; commit {machine['commit']}. Made by `{machine['command']}`."
    )
    yield (
        "All points of a curve are measured in turn, round after round; numbers are medians over rounds. An exponent e "
        "says that time grows as size^e: 1 is linear, less means that larger is cheaper for each, and more that it is "
        "dearer. The dashed line in a picture is linear from the first point on."
    )
    for curve in curves:
        yield f"## {curve.work[0].upper()}{curve.work[1:]} over {curve.size}"
        yield f"{curve.setting[0].upper()}{curve.setting[1:]}. {curve.sentence()}"
        yield f"![{curve.work} over {curve.size}]({pictures[curve.name]})"
        yield table(
            [curve.size, f"{curve.work}, ms", "lowest–highest", f"{curve.item} a second"],
            [
                [
                    f"{point.size:,}",
                    f"{1000 * point.typical:.3g}",
                    f"{1000 * min(point.seconds):.3g}–{1000 * max(point.seconds):.3g}",
                    f"{point.rate:,.0f}",
                ]
                for point in curve.points
            ],
        )
