"""What the benchmark says of numbers that are known, on its page and in the READMEs."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from dragoman_server.bundle.load import load_bundle
from tests.benchmark import machine, page, profile, readme, results
from tests.benchmark.loop import MIN_QUIET_TURNS, Loop, Turn, summarize
from tests.benchmark.machine import busy_cores
from tests.benchmark.marks import MARKS, Mark, Measured
from tests.benchmark.raw_loop import RawLoop
from tests.benchmark.results import RESULTS, Imported, Row, Served
from tests.benchmark.tables import measured_on
from tests.benchmark.turns import Contender, Effort, take_turns
from tests.conftest import ROOT
from tests.support.bundles import SHIPPED_G2P
from tests.support.load import Sample

MACHINE: dict[str, Any] = {
    "busy_cores_before": 0.03,
    "date": "2026-01-02 03:04 UTC",
    "cpu": "a processor",
    "cores": 2,
    "memory_gib": 1.0,
    "python": "3.11",
    "packages": {"onnxruntime": "1.2", "ctranslate2": "4.5"},
    "commit": "abc",
    "command": "python -m tests.benchmark",
}
PAGES = ("README.md", "README.zh-CN.md", "deploy/README.md")


def row(system: str, load: int, *rates: float, p50: float = 0.01) -> Row:
    return Row(system=system, load=load, setting="", rates=list(rates), p50=p50, p99=2 * p50, core_ms=0.4)


def served(scale: float = 1.0) -> Served:
    greedy = [row("unary", 1, 90, p50=0.00151), row("ctranslate2", 1, 100, p50=0.001 * scale)]
    greedy += [row("unary", 64, 18_849, 20_000), row("batch", 64, 30_000, 34_000), row("raw", 64, 40_000, 40_000)]
    greedy += [row("ctranslate2", 64, 20_000 * scale, 40_000 * scale)]
    beam = [
        row(system, load, rate * load) for system, rate in (("batch", 110), ("ctranslate2", 100)) for load in (2, 8)
    ]
    return Served(
        machine=MACHINE,
        model="g2p-en: d 256",
        inputs="words",
        tokens_per_answer=7.4,
        same_answers=(9, 10),
        greedy=greedy,
        beam=beam,
        arrivals=results.Arrivals(calls_per_second=1757, p50=0.004, p99=0.0187, failed=0),
        peak_mb={"server": 249.6, "CTranslate2": 100.0},
        start_seconds=0.4,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Results as the benchmark leaves them, and the pages that show them."""
    for name, scale in (("g2p-en int8", 1.0), ("g2p-en fp32", 2.0)):
        results.write("serving", results.read("serving", tmp_path) | {name: served(scale).model_dump()}, tmp_path)
    point = {"rate": 100.0, "p50": 0.01, "p99": 0.02, "failed": 0}
    systems = {
        name: {
            "setting": "its defaults",
            "closed": [point | {"callers": callers} for callers in (1, 8, 64)],
            "open": point | {"calls": 70.0, "p99": p99},
        }
        for name, p99 in (("dragoman", 0.02), ("triton", 0.05))
    }
    results.write("servers", {"g2p-en int8": {"machine": MACHINE, "inputs": "words", "systems": systems}}, tmp_path)
    (tmp_path / "deploy").mkdir()
    for name in PAGES:
        (tmp_path / name).write_text(f"before\n\n{readme.BEGIN}\nold\n{readme.END}\n\nafter\n", encoding="utf-8")
    return tmp_path


def cells(text: str, start: str) -> list[str]:
    (line,) = re.findall(rf"^\| {re.escape(start)} *\|(.*)\|$", text, re.MULTILINE)
    return [cell.strip() for cell in line.split("|")]


def test_marks_are_ratios_within_a_round_and_say_whether_they_are_reached(folder: Path) -> None:
    text = page.marks_table(Measured.of(folder))
    # 64 calls: 18,849 / 20,000 and 20,000 / 40,000, of which the median; nothing is wanted of this model
    assert cells(text, "64 calls: tokens/s over CTranslate2's, 64 inputs")[1:] == ["0.72×", "0.36×", "–", "–"]
    assert cells(text, "a call of 64: of the step loop's tokens/s, 64 rows")[1] == "80% ✗"
    assert cells(text, "one call at a time: median latency over CTranslate2's")[1:3] == ["1.51× ✗", "0.76× ✓"]
    assert cells(text, "beam of 4, calls of 2, 8, 32: tokens/s over CTranslate2's")[1] == "1.10× ✓"
    assert cells(text, "random arrivals, as many on both: p99 over Triton's")[:2] == ["≤ 0.50× (int8)", "0.40× ✓"]
    assert cells(text, "random arrivals, as many on both: p99 over asyncio's")[1] == "–", "was not measured"


def test_a_mark_is_reached_where_every_value_reaches_it() -> None:
    nothing = Measured({}, {}, {})
    mark = Mark(
        "beams", lambda _, label: [1.4, 1.6] if label == "base int8" else [], {"base int8": 1.5, "base fp32": 2.0}
    )
    assert mark.goal() == "≥ 1.50× (base int8), ≥ 2.00× (base fp32)"
    assert [mark.cell(nothing, label) for label in ("base int8", "base fp32")] == ["1.40–1.60× ✗", "–"]
    assert {mark.reached(nothing, "g2p-en int8") for mark in MARKS} == {None}


def test_the_page_shows_what_there_is_and_names_what_there_is_not(folder: Path) -> None:
    (folder / "pictures").mkdir()
    (folder / "pictures" / "old.png").touch()
    page.main(folder, folder / "PAGE.md")
    text = (folder / "PAGE.md").read_text(encoding="utf-8")
    assert sorted(path.stem for path in (folder / "pictures").iterdir()) == ["servers"]
    assert "![Beside other servers](pictures/servers.png)" in text
    assert "CTranslate2's: g2p-en int8 9 of 10, g2p-en fp32 9 of 10." in text
    assert text.count("commit abc; `python -m tests.benchmark`.") == 2, "once for all parts of a run"
    assert text.endswith("## On a GPU\n\nNot measured yet.\n")


def test_imports_are_compared_with_both_others_within_a_round(folder: Path) -> None:
    others = [row("ctranslate2", 8, 100, 400), row("transformers", 8, 10, 20)]
    imported = Imported(
        machine=MACHINE,
        model="t5-small: d 512",
        inputs="sentences",
        answers=64,
        same_answers={"CTranslate2": 63, "transformers": 64},
        greedy=[row("unary", 8, 100, 200), *others],
        beam=[row("batch", 8, 50), row("transformers", 8, 10)],
        peak_mb={"server": 300.0, "CTranslate2": 200.0, "transformers": 1000.0},
    )
    results.write("imports", {"t5-small int8": imported.model_dump()}, folder)
    page.main(folder, folder / "PAGE.md")
    text = (folder / "PAGE.md").read_text(encoding="utf-8")
    greedy, beam = (line for line in text.splitlines() if line.startswith("| t5-small int8"))
    assert [cell.strip() for cell in greedy.split("|")[2:-1]] == ["8 calls", "150 (100–200)", "0.75×", "10.00×"]
    assert [cell.strip() for cell in beam.split("|")[3:-1]] == ["50 (50–50)", "–", "5.00×"]
    assert "t5-small int8 300 / 200 / 1,000." in text
    assert "t5-small int8 63 and 64 of 64." in text


def test_a_health_check_is_late_where_any_of_its_own_threads_is(tmp_path: Path) -> None:
    kinds = ("echo", "--health-port", "/livez", "/readyz", "--port")
    asked = [
        {"workers": 2, "in_flight": 64, "calls": 500.0}
        | {"seconds": {kind: [0.002, p99 if kind == "/livez" else 0.04, 1.0] for kind in kinds}}
        for p99 in (0.05, 0.06)
    ]
    results.write("health", {"machine": MACHINE, "asked": asked}, tmp_path)
    page.main(tmp_path, tmp_path / "PAGE.md")
    lines = [line for line in (tmp_path / "PAGE.md").read_text(encoding="utf-8").splitlines() if "2 workers" in line]
    assert [line.split("|")[-2].strip() for line in lines] == ["✓", "✗"]
    assert "2 / 60" in lines[1]


def test_the_main_numbers_come_into_the_readmes_and_nothing_else_changes(folder: Path) -> None:
    readme.main(folder, folder)
    english, chinese, deploy = ((folder / name).read_text(encoding="utf-8") for name in PAGES)
    for text in (english, chinese, deploy):
        assert text.startswith(f"before\n\n{readme.BEGIN}\n| ")
        assert text.endswith(f"{readme.END}\n\nafter\n")
        assert "old" not in text
    assert english.count("\n|") == chinese.count("\n|")
    assert cells(english, "served, 64 `Generate` calls in flight") == ["19,400", "–"]
    assert cells(english, "one call at a time, median: served / CTranslate2")[0] == "1.5 ms / 1.0 ms"
    assert cells(english, "calls at random moments: median / 99th percentile")[0] == "1,760/s: 4.0 ms / 19 ms"
    assert cells(english, "beam of 4, one `GenerateBatch` of 8: served / CTranslate2")[0] == "880 / 800"
    assert cells(english, "in fp32, one `GenerateBatch` of 64: served / CTranslate2")[0] == "32,000 / 60,000"
    assert cells(english, "most memory held: server / CTranslate2")[0] == "250 MB / 100 MB"
    assert "a processor, 2 cores; onnxruntime 1.2, ctranslate2 4.5; 2026-01-02." in english
    assert cells(deploy, "g2p-en") == ["64", "19,400", "7.4", "2,620"]


def test_nothing_is_written_where_a_page_or_a_measurement_is_missing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "README.md").write_text("nothing")
    for source, message in ((folder, "README.md lacks the lines"), (folder / "none", "run make bench")):
        with pytest.raises(typer.Exit):
            readme.main(source, folder)
        assert message in capsys.readouterr().err


def test_the_pages_of_the_project_show_the_results_that_are_kept(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    for name in PAGES:
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    readme.main(RESULTS, tmp_path)
    page.main(RESULTS, tmp_path / "PAGE.md")
    for name in PAGES:
        assert (tmp_path / name).read_text(encoding="utf-8") == (ROOT / name).read_text(encoding="utf-8"), name
    assert (tmp_path / "PAGE.md").read_text(encoding="utf-8") == page.PAGE.read_text(encoding="utf-8")


def test_all_take_turns_and_the_best_setting_counts() -> None:
    order: list[str] = []

    def contender(setting: str, seconds: float) -> Contender:
        def measure(_: float) -> Sample:
            order.append(setting)
            return Sample(seconds, 100, 10, [seconds / 10] * 10, cpu_seconds={"own": seconds})

        return Contender("raw", 8, setting, measure)

    (best,) = take_turns([contender("slow", 2.0), contender("fast", 1.0)], Effort(2, 0.1), lambda _: None)
    assert order == ["slow", "fast", "fast", "slow"]
    assert (best.setting, best.rates, best.p50, best.core_ms) == ("fast", [100.0, 100.0], 0.1, 100.0)


def test_the_share_outside_the_graphs() -> None:
    quiet, busy = [Turn(9.0, 0.0, 1.0, 0)] * MIN_QUIET_TURNS, [Turn(9.0, 6.0, 5.0, 4)] * 10
    found = summarize(8, [*quiet, *busy])
    assert found["share"] == pytest.approx((MIN_QUIET_TURNS + 50) / (10 * MIN_QUIET_TURNS + 200))
    assert found["steady"] == 1.0
    assert summarize(8, busy)["steady"] is None


def test_an_engine_is_turned_by_hand() -> None:
    bundle = load_bundle(SHIPPED_G2P)
    source = bundle.source_tokenizer.encode("word").ids
    turns = Loop(bundle, [source, source * 2], 20).measure(4, 0.1)
    assert all(turn.decoder > 0 and turn.rest > 0 for turn in turns), "there is a step in every turn"
    assert {turn.encoder > 0 for turn in turns} == {True, False}, "most turns have no new request"
    assert all(turn.changed for turn in turns if turn.encoder), "encoded requests have just arrived"


def test_a_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([90.0, 40.0, 1.0])
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: next(looks))
    monkeypatch.setattr("psutil.cpu_count", lambda: 2)
    assert busy_cores() == pytest.approx(0.02), "what ran before has ended by the third look"
    assert "take no timing" not in measured_on(MACHINE)
    assert "**Others kept 1.2 cores busy" in measured_on(MACHINE | {"busy_cores_before": 1.2})


def test_memory_is_compacted_where_that_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = tmp_path / "compact_memory"
    monkeypatch.setattr(machine, "COMPACT", switch)
    machine.compact_memory()
    assert switch.read_text(encoding="utf-8") == "1"
    monkeypatch.setattr(machine, "COMPACT", tmp_path / "nowhere" / "compact_memory")  # as for users without root
    machine.compact_memory()


def test_every_row_step_of_the_step_loop_counts() -> None:
    bundle = load_bundle(SHIPPED_G2P)
    sources = [encoding.ids for encoding in bundle.source_tokenizer.encode_batch(["a", "word"])]
    sample = RawLoop(bundle.path, sources, engines=2, threads=1, rows=3).measure(0.01, rows=3, steps=4)
    assert sample.sequences % 3 == 0
    assert sample.tokens == 4 * sample.sequences > 0


def test_samples_of_a_profile_are_added_up_by_thread_and_package() -> None:
    loop = 'thread (1): "MainThread";run (asyncio/runners.py:118)'
    engine = 'thread (2): "engine-0";_run (dragoman_server/engine/engine.py:134)'
    everything = f"""{engine};run (onnxruntime/capi/session.py:1) 60
{engine};wait (dragoman_server/engine/shared_queue.py:9) 30
{engine};advance (dragoman_server/decoding/greedy.py:7) 10
{loop} 100
(torn\x00"""
    holders = f"""{engine};advance (dragoman_server/decoding/greedy.py:7);zeros (numpy/core.py:1) 40
{loop};serve (dragoman_server/process/app.py:5) 80
{loop};Generate (dragoman_server/api/service.py:5) 20
thread (3): "log";write (dragoman_server/telemetry/logs.py:2) 4"""
    found = profile.summarize([*profile.read_stacks(everything)], [*profile.read_stacks(holders)], 1, 100.0)
    assert found["engines"] == {"graphs": 0.6, "python": 0.1, "rest": 0.3}
    assert found["lock"] == {"event loop": 0.25, "engines": 0.1, "others": 0.01}
    held = {profile.OTHER: 2000.0, "decoding": 1000.0, "api": 500.0, "telemetry": 100.0}
    assert found["microseconds"] == pytest.approx(held)
