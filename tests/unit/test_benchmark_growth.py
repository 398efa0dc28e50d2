"""What is said of curves whose numbers are known, and how they are drawn and written."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import typer
from rich.console import Console

from server.bundle.load import load_bundle, shipped_bundle
from tests.benchmark.cli import Model
from tests.benchmark.growth import curves
from tests.benchmark.growth.cli import Growing, main, write
from tests.benchmark.growth.curve import Curve, Point
from tests.benchmark.growth.measure import Effort, Task, sample
from tests.benchmark.growth.models import with_vocabulary
from tests.benchmark.growth.results import Piece, Results
from tests.described_machine import MACHINE


def curve(times: dict[int, float], *, spread: bool = False) -> Curve:
    """Of a step over rows; each time a median between others."""
    points = [Point(size, 64 if spread else size, [t * 0.9, t, t * 2]) for size, t in times.items()]
    return Curve("steps", "a decode step", "rows", "tokens", "16 source tokens", points, spread=spread)


def test_exponents() -> None:
    linear = curve({1: 0.01, 4: 0.04, 16: 0.16})
    assert linear.exponent() == pytest.approx(1)
    assert linear.fixed_share() == pytest.approx(0, abs=1e-9)
    assert linear.linear(16) == pytest.approx(0.16)
    square = curve({2: 4.0, 4: 16.0, 8: 64.0})
    assert square.exponent() == square.last_exponent() == pytest.approx(2)
    mixed = curve({1: 1.0, 2: 1.0, 4: 3.0})
    assert mixed.steepest()[0].size == 2
    assert mixed.last_exponent() == pytest.approx(1.585, abs=1e-3)


def test_half_of_the_time_is_fixed() -> None:
    assert curve({1: 2.0, 2: 3.0, 5: 6.0}).fixed_share() == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        ({1: 1.0, 4: 2.0, 16: 8.0}, "Nowhere more than linear."),
        ({1: 1.0, 4: 1.0, 16: 9.0}, "No more than linear as a whole; steepest from 4 to 16, exponent 1.58."),
        ({1: 1.0, 4: 4.0, 16: 64.0}, "**More than linear**, steepest from 4 to 16, exponent 2.00."),
    ],
)
def test_verdicts(times: dict[int, float], verdict: str) -> None:
    said = curve(times).sentence()
    assert said.endswith(verdict)
    assert said.startswith(f"From 1 to 16 rows (×16) a decode step takes {times[16]:.1f} times as long")


def test_what_is_spread_over_engines() -> None:
    engines = curve({1: 1.0, 2: 0.5, 4: 0.64}, spread=True)
    assert engines.exponent() == pytest.approx(0.322, abs=1e-3)
    assert engines.linear(4) == pytest.approx(256)
    assert "1.56-fold, exponent 0.32; most are given by 2 (128 a second, 2.00 times those of 1)" in engines.sentence()


def test_every_point_is_measured_in_every_round() -> None:
    done: list[int] = []

    def work(size: int) -> None:
        done.append(size)
        time.sleep(0.001)

    points = sample([Task(size, size, partial(work, size)) for size in (1, 2, 3)], Effort(rounds=2, seconds=0.0))
    assert [len(point.seconds) for point in points] == [2, 2, 2]
    assert done[-6:] == [1, 2, 3, 3, 2, 1]
    assert all(point.typical >= 0.001 for point in points)


@pytest.mark.parametrize("name", ["rows", "beam", "engines"])
def test_work_is_done_at_every_size(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for constant, value in (("ROWS", (1, 2)), ("BEAMS", (1, 3)), ("TYPICAL_ROWS", 2), ("ENGINE_ROWS", 4)):
        monkeypatch.setattr(curves, constant, value)
    found = curves.Curves(load_bundle(shipped_bundle()), tmp_path, Effort(1, 0.0))
    for measured in found.all[name]():
        assert len({point.size for point in measured.points}) >= 2
        for point in measured.points:
            assert point.items > 0
            assert point.typical > 1e-5


def test_page_numbers_and_pictures(tmp_path: Path) -> None:
    drawn = [curve({1: 0.01, 2: 0.011, 4: 0.02}), curve({1: 1.0, 2: 0.5}, spread=True)]
    drawn[1].name, drawn[1].why = "engines", "Cores are shared."
    later = MACHINE | {"commit": "def"}
    pieces = {"rows": Piece(machine=MACHINE, curves=drawn[:1]), "engines": Piece(machine=later, curves=drawn[1:])}
    results = Results(model="a model", pieces=pieces)
    results.write(tmp_path / "growth-shipped-int8.json")
    assert Results.model_validate_json((tmp_path / "growth-shipped-int8.json").read_text()) == results
    write("shipped-int8", results, tmp_path, Console(quiet=True))
    page = (tmp_path / "growth-shipped-int8.md").read_text()
    assert page.count("commit abc;") == page.count("Added later: ") == page.count("commit def;") == 1
    assert "Cores are shared." in page
    for one in drawn:
        assert one.sentence() in page
        picture = f"growth-shipped-int8-{one.name}.png"
        assert f"({picture})" in page
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


def test_models_that_grow_are_in_the_precision_of_the_given_one(tmp_path: Path) -> None:
    given = load_bundle(shipped_bundle())
    given = replace(given, manifest=given.manifest.model_copy(update={"cache": "int8"}))
    made = with_vocabulary(given, 100, tmp_path)
    assert made.manifest.precision == given.manifest.precision == "int8"
    assert made.manifest.cache == "int8"
    assert made.manifest.shape.target_vocabulary == 100
    assert made.manifest.shape.d_model == given.manifest.shape.d_model
    assert with_vocabulary(given, 100, tmp_path).path == made.path
    assert [path.name for path in tmp_path.iterdir()] == [made.path.name]


def test_what_was_not_finished_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for constant, value in (("ROWS", (1, 2)), ("BEAMS", (1, 3)), ("TYPICAL_ROWS", 2), ("ENGINE_ROWS", 4)):
        monkeypatch.setattr(curves, constant, value)
    monkeypatch.setattr("tests.benchmark.growth.cli.describe", lambda module: MACHINE)
    options = {"model": Model.shipped, "rounds": 1, "seconds": 0.0, "output": tmp_path}
    main(**options, curve=[Growing.rows])  # type: ignore[arg-type]
    kept = tmp_path / "growth-shipped-int8.json"
    rows = Results.model_validate_json(kept.read_text()).pieces
    with pytest.raises(typer.Exit):
        main(**options, curve=[Growing.rows, Growing.engines], add=True, stop_after=-1.0)  # type: ignore[arg-type]
    assert Results.model_validate_json(kept.read_text()).pieces == rows
    main(**options, curve=[Growing.rows, Growing.engines], add=True)  # type: ignore[arg-type]
    found = Results.model_validate_json(kept.read_text()).pieces
    assert found.keys() == {"rows", "engines"}
    assert found["rows"] == rows["rows"], "not measured again"
