"""The metrics of docs/metrics.md, and those of a server's metrics page."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from dragoman.local import LocalServer

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
UNITS = {"seconds", "bytes", "tokens", "rows", "ratio", "celsius", "watts"}
CELL = re.compile(r"(?<!\\)\|")


class Row(NamedTuple):
    """One metric.

    Attributes:
        labels: Label names, except `le`.
        buckets: Upper bounds of a histogram's buckets, except the infinite one.
    """

    name: str
    type: str
    unit: str
    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...] = ()


def documented() -> dict[str, Row]:
    """Returns the metrics of docs/metrics.md by name."""
    tables = re.findall(r"(?:^\|.*\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    bounds = {
        name: tuple(map(float, values.split())) for name, values in _cells(_table(tables, "buckets", "upper bounds"))
    }
    rows = {}
    for name, kind, unit, labels, meaning, buckets in _cells(
        _table(tables, "metric", "type", "unit", "labels", "meaning", "buckets")
    ):
        assert name not in rows, f"{name} occurs twice in the table"
        label_names = tuple(sorted(labels.split(", "))) if labels else ()
        rows[name] = Row(name, kind, unit, label_names, meaning, bounds[buckets] if buckets else ())
    return rows


def exposed(page: str) -> dict[str, Row]:
    """Returns the metrics of a metrics page that have a sample, by name."""
    return {row.name: row for row in map(_row, text_string_to_metric_families(page)) if row is not None}


def sum_of(server: LocalServer, name: str, *labels: str) -> float:
    """Returns the sum of a metric's samples with all of these in the labels, such as "waiting" or 'phase="waiting"'."""
    samples = server.metrics().items()
    return sum(
        value for key, value in samples if key.partition("{")[0] == name and all(label in key for label in labels)
    )


def series(page: str) -> set[str]:
    """Returns the names and labels of all samples of a page."""
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


def _table(tables: Iterable[str], *head: str) -> str:
    [found] = [table for table in tables if next(_cells(table, 0)) == list(head)]
    return found


def _cells(table: str, skip: int = 2) -> Iterator[list[str]]:
    for line in table.splitlines()[skip:]:
        yield [cell.strip().strip("`").replace("`, `", ", ") for cell in CELL.split(line.strip("|"))]
