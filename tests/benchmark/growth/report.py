"""Curves as a page for people."""

from collections.abc import Iterator, Mapping

from tests.benchmark.growth.curve import Curve
from tests.benchmark.growth.results import Results
from tests.benchmark.report import headings
from tests.benchmark.tables import table


def markdown(results: Results, pictures: Mapping[str, str]) -> str:
    """The page.

    Args:
        pictures: file names, by curve.
    """
    return "\n\n".join(_page(results, pictures)) + "\n"


def _page(results: Results, pictures: Mapping[str, str]) -> Iterator[str]:
    curves = [curve for piece in results.pieces.values() for curve in piece.curves]
    yield f"# How cost grows: {results.model}"
    yield from headings([piece.machine for piece in results.pieces.values()])
    yield (
        "All points of a curve are measured in turn, round after round; numbers are medians over rounds. An exponent e "
        "says that time grows as size^e: 1 is linear, less means that larger is cheaper for each, and more that it is "
        "dearer. The dashed line in a picture is linear from the first point on."
    )
    yield table(
        ["", "over", "from–to", "times as long", "exponent", "of the last step"], [_summary(curve) for curve in curves]
    )
    for curve in curves:
        yield f"## {curve.work[0].upper()}{curve.work[1:]} over {curve.size}"
        yield f"{curve.setting[0].upper()}{curve.setting[1:]}. {curve.sentence()} {curve.why}"
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


def _summary(curve: Curve) -> list[str]:
    """A curve in one line; of work that is spread, how throughput grows."""
    first, last = curve.points[0], curve.points[-1]
    if curve.spread:
        grown = f"{last.rate / first.rate:.2f} times the throughput"
    else:
        grown = f"{last.typical / first.typical:.1f}"
    ends = f"{first.size:,}–{last.size:,}"
    return [curve.work, curve.size, ends, grown, f"{curve.exponent():.2f}", f"{curve.last_exponent():.2f}"]
