"""The main numbers, as they come into the pages that people read first."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.benchmark.readme import BEGIN, END, calls, lines, main
from tests.conftest import ROOT
from tests.described_machine import MACHINE

PAGES = ("README.md", "README.zh-CN.md", "deploy/README.md")


def series(system: str, in_flight: int | None, rate: float, p50: float | None = None) -> dict[str, Any]:
    sample = {"seconds": 2.0, "tokens": 2 * rate, "sequences": 400, **({"p50_seconds": p50} if p50 else {})}
    return {"system": system, "in_flight": in_flight, "setting": "", "tokens_per_second": rate, "samples": [sample]}


def model(kind: str, scale: float = 1.0) -> dict[str, Any]:
    return {
        "kind": kind,
        "model": f"{kind}: d 256, 5M parameters, int8, attention ort",
        "greedy": {
            "tokens_per_answer": 7.4,
            "series": [
                series("raw", 64, 56_749 * scale),
                series("unary", 64, 18_849 * scale),
                series("unary", 1, 4_800 * scale, 0.00151),
                series("batch", 64, 33_333 * scale),
                series("ctranslate2", 64, 41_500 * scale),
                series("ctranslate2", 64, 41_600 * scale),
                series("ctranslate2", 1, 9_000 * scale, 0.052),
            ],
            "open_loop": [
                {"calls_per_second": rate, "p50_seconds": 0.004, "p99_seconds": 0.0187} for rate in (50.0, 139.6, 190.0)
            ],
            "peak_megabytes": {"server": 249.6},
        },
        "beam": {"series": [series("batch", 8, 1060), series("ctranslate2", 8, 1160)]},
    }


INT8 = {"machine": MACHINE | {"packages": {"onnxruntime": "1.2", "ctranslate2": "4.5"}}, "models": [model("shipped")]}
FP32: dict[str, Any] = {"machine": MACHINE, "models": [model("shipped", 0.5)]}


def cells(document: list[str], start: str) -> list[str]:
    (line,) = [line for line in document[0].splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in line.split("|")[2:-1]]


def test_each_number_stands_where_it_is_looked_for() -> None:
    page = list(lines(INT8, FP32, chinese=False))
    assert cells(page, "tokens/s") == ["shipped: d 256, 5M parameters, int8", "–"]
    assert cells(page, "the graphs alone") == ["56,700", "–"]
    assert cells(page, "served, 64 `Generate`") == ["18,800", "–"]
    assert cells(page, "served, 8 `Generate`") == ["–", "–"]
    assert cells(page, "CTranslate2, batches of 64") == ["41,600", "–"], "of several settings the best"
    assert cells(page, "one call at a time")[0] == "1.5 ms / 52 ms"
    assert cells(page, "calls at random moments")[0] == "140/s: 4.0 ms / 19 ms", "nearest to 70 % of 200 a second"
    assert cells(page, "beam of 4")[0] == "1,060 / 1,160"
    assert cells(page, "in fp32, one `GenerateBatch`")[0] == "16,700 / 20,800"
    assert cells(page, "most memory held")[0] == "250 MB / –"
    assert page[-1] == "a processor, 2 cores; onnxruntime 1.2, ctranslate2 4.5; 2026-01-02."


def test_what_pods_answer_follows_from_tokens() -> None:
    assert calls(INT8).splitlines()[-1].split("|")[1:-1] == [
        " shipped ",
        " 64              ",
        " 18,800            ",
        " 7.4                 ",
        " 2,550            ",
    ]


def test_pages_are_filled_between_their_marks_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    for name in PAGES:
        (tmp_path / name).write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n", encoding="utf-8")
    (tmp_path / "benchmark-int8.json").write_text(json.dumps(INT8))
    main(tmp_path, tmp_path)
    english, chinese, deploy = ((tmp_path / name).read_text(encoding="utf-8") for name in PAGES)
    for text in (english, chinese, deploy):
        assert text.startswith(f"before\n\n{BEGIN}\n| ")
        assert text.endswith(f"{END}\n\nafter\n")
        assert "old" not in text
        assert "18,800" in text
    assert "束宽" in chinese
    assert english.count("\n|") == chinese.count("\n|")
    main(tmp_path, tmp_path)
    assert (tmp_path / PAGES[0]).read_text(encoding="utf-8") == english


def test_a_page_without_marks_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "README.md").write_text("nothing")
    (tmp_path / "benchmark-int8.json").write_text(json.dumps(INT8))
    with pytest.raises(typer.Exit):
        main(tmp_path, tmp_path)
    assert "README.md lacks the lines" in capsys.readouterr().err


def test_without_measurements_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        main(tmp_path, tmp_path)
    assert "make bench" in capsys.readouterr().err


@pytest.mark.parametrize("name", PAGES)
def test_the_project_has_the_marks(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
