"""The table of docs/metrics.md, as it is written there and as a metrics page would have it."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
UNITS = {"seconds", "bytes", "tokens", "rows", "ratio", "celsius", "watts"}
CELL = re.compile(r"(?<!\\)\|")


class Row(NamedTuple):
    """One metric.

    Attributes:
        labels: without `le`.
        buckets: their upper bounds, without the infinite one; () for what is no histogram.
    """

    name: str
    type: str
    unit: str
    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...] = ()


def documented() -> dict[str, Row]:
    """By name, what docs/metrics.md says."""
    tables = re.findall(r"(?:^\|.*\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    bounds = {name: tuple(map(float, told.split())) for name, told in _cells(_with(tables, "buckets", "upper bounds"))}
    rows = {}
    for name, kind, unit, labels, meaning, buckets in _cells(
        _with(tables, "metric", "type", "unit", "labels", "meaning", "buckets")
    ):
        assert name not in rows, f"{name} stands twice in the table"
        shown = tuple(sorted(labels.split(", "))) if labels else ()
        rows[name] = Row(name, kind, unit, shown, meaning, bounds[buckets] if buckets else ())
    return rows


def told(page: str) -> dict[str, Row]:
    """By name, what a metrics page says of metrics that have a sample."""
    return {row.name: row for row in map(_row, text_string_to_metric_families(page)) if row is not None}


def series(page: str) -> set[str]:
    """The names and labels of all samples of a page."""
    return {line.rpartition(" ")[0] for line in page.splitlines() if line and not line.startswith("#")}


def _row(family: Metric) -> Row | None:
    if not family.samples:
        return None
    name = f"{family.name}_total" if family.type == "counter" else family.name
    last = family.name.rpartition("_")[2]
    labels = {label for sample in family.samples for label in sample.labels}
    bounds = {float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels} - {float("inf")}
    unit = last if last in UNITS else ""
    return Row(name, family.type, unit, tuple(sorted(labels - {"le"})), family.documentation, tuple(sorted(bounds)))


def _with(tables: Iterable[str], *head: str) -> str:
    [table] = [each for each in tables if next(_cells(each, 0)) == list(head)]
    return table


def _cells(table: str, skip: int = 2) -> Iterator[list[str]]:
    for line in table.splitlines()[skip:]:
        yield [cell.strip().strip("`").replace("`, `", ", ") for cell in CELL.split(line.strip("|"))]
