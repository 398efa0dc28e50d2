"""Dashboards and rules, as data, and the PromQL of the pages about them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "deploy" / "monitoring"
INSTALLED = ROOT / "deploy" / "helm" / "dragoman" / "files"
METRICS_PAGE = ROOT / "docs" / "metrics.md"
RULES = sorted((INSTALLED / "rules").glob("*.yaml"))
DASHBOARDS = sorted((INSTALLED / "dashboards").glob("*.json"))

# Names of series in PromQL: our own, those of exporters, and those that recording rules make.
SERIES = re.compile(
    r"(?:\b(?:job|job_model|dragoman):)?\b(?:dragoman|kube|process|DCGM|up)(?:_[a-zA-Z0-9_]+)?(?::\w+)*\b"
)
QUOTED = re.compile(r'"[^"]*"')
MATCHERS = re.compile(r"\{[^}]*\}")


@dataclass(frozen=True)
class Panel:
    """Of a dashboard, but for rows.

    Attributes:
        legends: of each query, "" where a series has none.
    """

    board: str
    kind: str
    title: str
    spec: dict[str, Any]

    @property
    def unit(self) -> str:
        unit: str = self.spec.get("fieldConfig", {}).get("defaults", {}).get("unit", "")
        return unit

    @property
    def queries(self) -> list[tuple[str, str]]:
        """PromQL and legend of each."""
        return [(target["expr"], target.get("legendFormat", "")) for target in self.spec["targets"]]

    def __str__(self) -> str:
        return f"{self.board}, {self.title}"


def boards() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in DASHBOARDS]


def panels() -> list[Panel]:
    return [
        Panel(board["uid"], panel["type"], panel["title"], panel)
        for board in boards()
        for panel in board["panels"]
        if panel["type"] != "row"
    ]


def rules() -> list[dict[str, Any]]:
    """Of all groups of all files, in their order."""
    return [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def series_in(expression: str) -> set[str]:
    """Names of the series that an expression reads."""
    return set(SERIES.findall(MATCHERS.sub("", QUOTED.sub('""', expression))))


def documented_queries() -> list[str]:
    """Returns the PromQL queries in the documentation."""
    blocks = re.compile(r"^```promql\n(.+?)^```$", re.MULTILINE | re.DOTALL)
    pages = [*sorted(MONITORING.glob("*.md")), METRICS_PAGE]
    return [query.strip() for page in pages for query in blocks.findall(page.read_text(encoding="utf-8"))]


def legend(template: str, labels: dict[str, str]) -> str:
    """What Grafana writes beside a series."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), template)


def legend_labels(template: str) -> Iterator[str]:
    return (found[1] for found in re.finditer(r"\{\{\s*(\w+)\s*\}\}", template))
