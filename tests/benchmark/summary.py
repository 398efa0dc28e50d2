"""The page's summary: which marks were reached, gathered from what the commands wrote."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from tests.benchmark.growth.curve import LINEAR
from tests.benchmark.growth.results import Results as GrowthResults
from tests.benchmark.marks import Kind, Mark
from tests.benchmark.servers.report import marks as server_marks
from tests.benchmark.servers.results import Results as ServerResults
from tests.benchmark.tables import table
from tests.benchmark.training.report import Results as TrainingResults
from tests.benchmark.training.report import mark as training_mark

Column = tuple[str, str]
"""Kind of model, and precision."""

Marks = dict[str, dict[Column, Mark]]
"""By name, then by column."""

TITLES = {"shipped": "g2p-en", "base": "base", "small": "small"}
"""Of kinds of models."""

SERVED: list[Column] = [(kind, precision) for kind in get_args(Kind) for precision in ("int8", "fp32")]
TRAINED: list[Column] = [(shape, precision) for shape in ("small", "base") for precision in ("fp32", "bf16")]


def served_marks(folder: Path) -> Marks:
    """Of the server, beside its step loop, CTranslate2 and other servers."""
    found: Marks = {}
    for precision in ("int8", "fp32"):
        for model in _read(folder / f"benchmark-{precision}.json").get("models", []):
            _add(found, (model["kind"], precision), [Mark(**mark) for mark in model["marks"]])
    loop = _read(folder / "loop.json")
    if loop:
        _add(found, (loop["kind"], loop["precision"]), [Mark(**mark) for mark in loop["marks"]])
    for label, results in servers(folder).models.items():
        kind, _, precision = label.partition("-")
        _add(found, (kind, precision), server_marks(results))
    return found


def trained_marks(folder: Path) -> Marks:
    """Of training, beside other trainers."""
    found: Marks = {}
    path = folder / "training.json"
    if path.is_file():
        for piece in TrainingResults.model_validate_json(path.read_text(encoding="utf-8")).pieces.values():
            compared = piece.comparison
            _add(found, (compared.shape, compared.precision), [training_mark(compared)])
    return found


def servers(folder: Path) -> ServerResults:
    """What was measured of servers; of no model where nothing was."""
    path = folder / "servers.json"
    return ServerResults.model_validate_json(path.read_text(encoding="utf-8")) if path.is_file() else ServerResults()


def models(folder: Path, precision: str) -> dict[str, dict[str, Any]]:
    """What the benchmark wrote of each kind of model."""
    return {model["kind"]: model for model in _read(folder / f"benchmark-{precision}.json").get("models", [])}


def tables(folder: Path) -> Iterator[str]:
    """What was wanted and what was reached, as sentences and tables."""
    for found, columns in ((served_marks(folder), SERVED), (trained_marks(folder), TRAINED)):
        set_marks = [mark for row in found.values() for mark in row.values() if mark.wanted is not None]
        if not found:
            continue
        what = "Serving" if columns is SERVED else "Training"
        reached = sum(mark.reached for mark in set_marks)
        yield f"**{what}**: {reached} of {len(set_marks)} marks that were measured are reached."
        header = ["", "wanted", *(f"{TITLES[kind]}, {precision}" for kind, precision in columns)]
        yield table(header, [_row(name, row, columns) for name, row in found.items()])
    yield from growth(folder)


def growth(folder: Path) -> Iterator[str]:
    """Whether time grows more than linearly in anything, a sentence a model."""
    for kind, precision in SERVED:
        path = folder / f"growth-{kind}-{precision}.json"
        if not path.is_file():
            continue
        pieces = GrowthResults.model_validate_json(path.read_text(encoding="utf-8")).pieces.values()
        curves = [curve for piece in pieces for curve in piece.curves if not curve.spread]
        steep = [f"{c.work} over {c.size} (exponent {c.exponent():.2f})" for c in curves if c.exponent() > LINEAR]
        sizes = ", ".join(dict.fromkeys(curve.size for curve in curves))
        sentence = f"**Growth**, {TITLES[kind]} in {precision}: over {sizes} time grows no more than linearly"
        yield f"{sentence}, but for {', '.join(steep)}." if steep else f"{sentence}."


def _row(name: str, row: Mapping[Column, Mark], columns: list[Column]) -> list[str]:
    return [name, _goals(row), *(_cell(row.get(column)) for column in columns)]


def _goals(row: Mapping[Column, Mark]) -> str:
    """What was wanted; where that depends on the model, of which one."""
    goals: dict[str, str] = {kind: mark.goal for (kind, _), mark in row.items()}
    if len(set(goals.values())) == 1:
        return next(iter(goals.values()))
    return ", ".join(f"{goal} ({TITLES[kind]})" for kind, goal in goals.items() if goal)


def _cell(mark: Mark | None) -> str:
    if mark is None:
        return "–"
    if mark.wanted is None:
        return mark.outcome
    return f"{mark.outcome} {'✓' if mark.reached else '✗'}"


def _add(found: Marks, column: Column, marks: list[Mark]) -> None:
    for mark in marks:
        found.setdefault(mark.name, {})[column] = mark


def _read(path: Path) -> dict[str, Any]:
    parse: Callable[[str], dict[str, Any]] = json.loads
    return parse(path.read_text(encoding="utf-8")) if path.is_file() else {}
