"""The page of all measurements."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from tests.benchmark.growth.curve import Curve, Point
from tests.benchmark.growth.results import Piece as GrowthPiece
from tests.benchmark.growth.results import Results as GrowthResults
from tests.benchmark.marks import Mark
from tests.benchmark.page import main
from tests.benchmark.samples import Sample
from tests.benchmark.servers.results import ModelResults
from tests.benchmark.servers.results import Results as ServerResults
from tests.benchmark.training.report import Comparison, Piece, Series
from tests.benchmark.training.report import Results as TrainingResults
from tests.benchmark.training.trainers import Steps
from tests.described_machine import MACHINE


def test_parts_stand_in_order_with_their_pictures(tmp_path: Path) -> None:
    results, page = tmp_path / "results", tmp_path / "page" / "README.md"
    results.mkdir()
    page.parent.mkdir()
    (results / "training.md").write_text("# Training\n\n## Small\n\n| a |\n|---|\n| 1 |\n")
    (results / "loop.md").write_text("# The loop\n\n![rows](rows.png)\n")
    (results / "rows.png").write_bytes(b"drawn")
    main(results, page)
    text = page.read_text()
    assert text.index("## The loop") < text.index("## Training") < text.index("### Small") < text.index("| 1 |")
    assert text.startswith("# What was measured")
    assert "![rows](pictures/rows.png)" in text
    assert (page.parent / "pictures" / "rows.png").read_bytes() == b"drawn"


def test_pictures_of_before_are_gone(tmp_path: Path) -> None:
    (tmp_path / "loop.md").write_text("# The loop\n")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "old.png").touch()
    main(tmp_path, tmp_path / "README.md")
    assert list((tmp_path / "pictures").iterdir()) == []


def test_without_measurements_there_is_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        main(tmp_path, tmp_path / "README.md")
    assert "nothing was measured yet" in capsys.readouterr().err
    assert not (tmp_path / "README.md").exists()


def test_parts_that_were_not_measured_are_named(tmp_path: Path) -> None:
    (tmp_path / "loop.md").write_text("# The loop\n")
    main(tmp_path, tmp_path / "README.md")
    (line,) = [
        line for line in (tmp_path / "README.md").read_text().splitlines() if line.startswith("Not measured yet")
    ]
    assert "`python -m tests.benchmark.training`" in line
    assert "tests.benchmark.loop" not in line


def measured(folder: Path, *, precision: str) -> None:
    """A folder as the commands leave it, with numbers that are known."""
    (folder / f"benchmark-{precision}.md").write_text("# Benchmark\n")
    rates = {
        ("raw", 64): 1000,
        ("batch", 64): 900,
        ("unary", 64): 700,
        ("ctranslate2", 64): 500,
        ("ctranslate2", 1): 50,
    }
    series = [
        {"system": system, "in_flight": load, "tokens_per_second": rate, "samples": [{"p50_seconds": 0.02}]}
        for (system, load), rate in rates.items()
    ]
    mark, told = Mark("tokens/s over CTranslate2's", [1.8, 1.9], 2.0), Mark("at equal load", [1.2])
    base = {"kind": "base", "model": "base: d 512", "marks": [mark.document()], "greedy": {"series": series}}
    shipped = base | {"kind": "shipped", "marks": [replace(mark, wanted=1.5).document(), told.document()]}
    document = {"models": [shipped, base]}
    (folder / f"benchmark-{precision}.json").write_text(json.dumps(document))
    loop = {"kind": "shipped", "precision": "int8", "marks": [Mark("loop", [0.113], 0.1, True, True).document()]}
    (folder / "loop.json").write_text(json.dumps(loop))
    found = ModelResults(model="base: d 512", inputs="sentences", machines=[MACHINE])
    for system, factor in (("dragoman", 3), ("triton", 1)):
        for callers in (1, 64):
            sample = Sample(1.0, factor * callers, 100, [0.01 * callers] * 100, 0, {"server": 1.5, "load": 0.1})
            found.add(system, "its defaults", "closed", callers, 0, sample)
    ServerResults(models={f"base-{precision}": found}).write(folder / "servers.json")
    steps = {"ours": Steps(1.0, 1, 90, 100, 3.0), "theirs": Steps(2.0, 1, 90, 100, 3.0)}
    trained = [Series("dragoman", "own", [steps["ours"]], 1), Series("Marian", "fused", [steps["theirs"]], 1)]
    piece = Piece(machine=MACHINE, comparison=Comparison("base", "sentences", "bf16", 1, 2, trained))
    TrainingResults(pieces={"base, bf16": piece}).write(folder / "training.json")


def test_the_summary_has_every_mark_in_its_column(tmp_path: Path) -> None:
    measured(tmp_path, precision="int8")
    main(tmp_path, tmp_path / "README.md")
    text = (tmp_path / "README.md").read_text()
    assert text.index("## In short") < text.index("## Benchmark")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    assert rows[0] == ["", "wanted", "g2p-en, int8", "g2p-en, fp32", "base, int8", "base, fp32"]
    wanted = "at least 1.50 times (g2p-en), at least 2.00 times (base)"
    assert rows[2:6] == [
        ["tokens/s over CTranslate2's", wanted, "1.80–1.90 times ✓", "–", "1.80–1.90 times ✗", "–"],
        ["at equal load", "", "1.20 times", "–", "–", "–"],
        ["loop", "at most 10%", "11.3% ✗", "–", "–", "–"],
        [
            "tokens/s over Triton's at equal p99, callers who wait for their answers",
            "at least 2.00 times",
            *("–", "–"),
            "3.00 times ✓",
            "–",
        ],
    ]
    assert rows[8][2:] == ["–", "–", "–", "2.00 times ✓"], "training, base in bf16"
    assert "**Serving**: 2 of 4 marks that were measured are reached." in text
    for picture in ("throughput", "latency"):
        assert f"(pictures/{picture}.png)" in text
        assert (tmp_path / "pictures" / f"{picture}.png").read_bytes().startswith(b"\x89PNG")


def test_what_grows_more_than_linearly_is_named(tmp_path: Path) -> None:
    def curve(name: str, size: str, last: float) -> Curve:
        return Curve(name, "a decode step", size, "tokens", "", [Point(1, 1, [1.0]), Point(2, 1, [last])])

    curves = [curve("rows", "rows", 1.5), curve("vocabulary", "tokens of vocabulary", 4.0)]
    (tmp_path / "loop.md").write_text("# The loop\n")
    for kind, found in (("shipped", curves[:1]), ("base", curves)):
        pieces = {"all": GrowthPiece(machine=MACHINE, curves=found)}
        GrowthResults(model="", pieces=pieces).write(tmp_path / f"growth-{kind}-int8.json")
    main(tmp_path, tmp_path / "README.md")
    text = (tmp_path / "README.md").read_text()
    assert "**Growth**, g2p-en in int8: over rows time grows no more than linearly." in text
    assert "linearly, but for a decode step over tokens of vocabulary (exponent 2.00)." in text


def test_what_another_version_wrote_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "benchmark-int8.md").write_text("# Benchmark\n")
    (tmp_path / "benchmark-int8.json").write_text('{"models": [{"model": "g2p-en"}]}')
    with pytest.raises(typer.Exit):
        main(tmp_path, tmp_path / "README.md")
    assert "measure anew" in capsys.readouterr().err
