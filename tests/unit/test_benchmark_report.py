"""What the benchmark says of numbers that are known."""

import json
from dataclasses import replace
from typing import get_args

import pytest

from server.bundle.load import load_bundle, shipped_bundle
from tests.benchmark.answers import sequence_error_rates
from tests.benchmark.engine_work import EngineWork
from tests.benchmark.findings import beam_findings, greedy_findings, short_list_findings
from tests.benchmark.machine import busy_cores
from tests.benchmark.marks import Kind, Mark
from tests.benchmark.metrics_cost import MetricsCost, measure_metrics
from tests.benchmark.outcome import Agreement, BeamSearch, Greedy, Outcome, ShortLists
from tests.benchmark.reached import marks
from tests.benchmark.report import document, heading, markdown
from tests.benchmark.samples import Sample, Series
from tests.benchmark.workload import Workload
from tests.described_machine import MACHINE

KINDS: tuple[Kind, ...] = get_args(Kind)

WORK = EngineWork(
    steps=10, step_seconds=0.5, row_steps=80, branch_seconds=0.01, branch_rows=20, advances=20, advance_seconds=0.001
)


def series(system: str, in_flight: int, *rates: int) -> Series:
    """Of samples of a second each."""
    engines = system not in ("raw", "ctranslate2")
    cpu = {"server": 1.4, "load": 0.1} if system in ("unary", "batch") else {"own": 1.5}
    samples = [Sample(1.0, r, r // 10, [0.1], 0, cpu, WORK if engines else None) for r in rates]
    return Series(system, in_flight, "2 threads", samples)


def beam(*agreements: Agreement) -> BeamSearch:
    found = [series("engines", 2, 300, 320), series("engines", 8, 400, 420), series("engines exact", 8, 200, 210)]
    found += [series("unary", 2, 210, 220), series("batch", 2, 240, 280), series("batch", 8, 350, 380)]
    found += [series("ctranslate2", 2, 120, 140), series("ctranslate2", 8, 700, 760)]
    return BeamSearch(12.0, found, list(agreements))


def test_beam_search_is_compared_at_equal_batches() -> None:
    first, second, *others = beam_findings(beam(Agreement("engines", "server", 64, 64)))
    assert first.startswith("Reached: server, GenerateBatch, with batch 2 (8 rows), gives 2.00 times")
    assert second.startswith("**Missed:** server, GenerateBatch, with batch 8 (32 rows), gives 0.50 times")
    assert others == [
        "Copying rows where hypotheses branch takes 2.0% to 2.0% of the step time.",
        "The exact stopping rule, which is the default, gives 0.50 times the tokens of early stopping.",
        "All contenders gave the same tokens on all 64 inputs.",
    ]


@pytest.mark.parametrize(
    ("undecided", "expected"),
    [
        (2, "engines and server differ in 2 of 64 answers: rounding decides in 2 of them"),
        (1, "**Wrong:** engines and server differ in 2 of 64 answers: rounding decides in 1 of them"),
        (None, "engines and server differ in 2 of 64 answers: where two tokens are almost equally likely"),
    ],
)
def test_answers_that_differ_are_told(undecided: int | None, expected: str) -> None:
    assert beam_findings(beam(Agreement("engines", "server", 62, 64, undecided)))[-1].startswith(expected)


def test_the_share_of_a_step_that_counting_takes_is_told() -> None:
    served = [series("unary", 1, 100), series("batch", 64, 500)]  # 10 and 50 answers, each in ten steps of 50 ms
    costs = MetricsCost(step=50e-6, request=1e-3, page=0.002, point=100e-6)
    *_, sentence = greedy_findings(Greedy(8.0, served, [], metrics=costs))
    assert sentence == (
        "**Missed:** Counting for the metrics adds 50.0 µs to a step and 1000.0 µs to a request, 2.10% to 10.10% of "
        "the time of the served steps (at most 1% wanted); whoever asks for /metrics gets it after 2.0 ms, and the "
        "live page's points take 0.005% of a core."
    )
    cheap = Greedy(8.0, served, [], metrics=MetricsCost(1e-6, 2e-6, 0.002, 100e-6))
    assert greedy_findings(cheap)[-1].startswith("Reached: Counting")


def test_counting_is_timed_call_by_call() -> None:
    costs = measure_metrics()
    assert 0 < costs.step < costs.page
    assert 0 < costs.request < costs.page
    assert 0 < costs.point < 1


def test_short_lists_are_compared_at_equal_rows() -> None:
    found = [series("whole", 8, 100), series("shared", 8, 150), series("own", 8, 120)]
    (sentence,) = short_list_findings(ShortLists(32, found, tokens=1000, vocabulary=32000))
    assert "At 8 rows a list that all share gives 1.50 times the tokens of the whole vocabulary" in sentence
    assert "a random one for each 1.20 times" in sentence


def test_the_report_has_every_part() -> None:
    lists = ShortLists(
        32, [series("whole", 8, 100), series("shared", 8, 150), series("own", 8, 120)], tokens=1000, vocabulary=32000
    )
    greedy = Greedy(8.0, [series("raw", 1, 90, 100), series("unary", 1, 45, 50)], [Agreement("raw", "server", 3, 3)])
    outcome = Outcome("a model", "words", "shipped", greedy, beam(), lists)
    lines = markdown([outcome], MACHINE).splitlines()
    headings = [line for line in lines if line.startswith("###") and not line.startswith("####")]
    assert headings == [
        "### Greedy search",
        "### Beam search, 4 hypotheses",
        "### Short list: 1,000 tokens of 32,000",
    ]
    (costs,) = [line for line in lines if line.startswith("| server, Generate ") and "50.00" in line]
    # batch, rows a step, step ms, rows copied a step, µs a copy, share of step time, µs a request
    assert [cell.strip() for cell in costs.split("|")[2:-1]] == ["2", "8.0", "50.00", "2.0", "500", "2.0%", "50"]

    (model,) = json.loads(json.dumps(document([outcome], MACHINE)))["models"]
    assert model["beam"]["options"]["size"] == 4
    assert model["beam"]["series"][0]["samples"][0]["engines"]["branch_rows"] == 20
    assert model["greedy"]["tokens_per_answer"] == 8.0
    assert model["greedy"]["metrics"] is None
    assert model["short_lists"]["tokens"] == 1000


def test_parts_that_were_not_measured_are_left_out() -> None:
    outcome = Outcome("a model", "words", beam=beam())
    assert "Greedy" not in markdown([outcome], MACHINE)
    assert document([outcome], MACHINE)["models"][0].keys() == {"model", "inputs", "kind", "marks", "beam"}


def test_a_machine_is_busy_only_if_others_use_it_now(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([90.0, 40.0, 1.0])
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: next(looks))
    monkeypatch.setattr("psutil.cpu_count", lambda: 2)
    assert busy_cores() == pytest.approx(0.02), "what ran before has ended by the third look"
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: 60.0)
    assert busy_cores() == pytest.approx(1.2)


def test_the_heading_warns_of_a_busy_machine() -> None:
    assert len(heading(MACHINE)) == 1
    assert "**Other processes kept 1.2 cores busy" in heading(MACHINE | {"busy_cores_before": 1.2})[1]
    for fact in ("a processor", "2026-01-02", "commit abc", "`python -m tests.benchmark`", "numpy 2"):
        assert fact in heading(MACHINE)[0]


def greedy(kind: Kind) -> Greedy:
    """With half of CTranslate2's latency, and a peak of 100 calls a second."""
    found = [series("raw", 64, 1000), series("unary", 1, 100), series("unary", 64, 1000), series("batch", 64, 1600)]
    found += [series("ctranslate2", 1, 50), series("ctranslate2", 64, 800)]
    found[-2].samples[0].latencies[:] = [0.2]
    outcome = Greedy(8.0, found, kind=kind)
    outcome.open_loop = [(rate, Sample(1.0, 10, 1, [p99])) for rate, p99 in ((50, 0.11), (71, 0.25), (100, 9.0))]
    return outcome


def test_marks_differ_by_model_and_are_told_alike_everywhere() -> None:
    shipped, base = (marks(Outcome("a model", "words", kind, greedy(kind), beam())) for kind in KINDS)
    assert [(mark.outcome, mark.goal, mark.reached) for mark in base] == [
        ("2.00 times", "at least 2.00 times", True),  # GenerateBatch over CTranslate2
        ("1.25 times", "at least 2.00 times", False),  # Generate
        ("2.00 times", "", True),  # at equal load, for which there is no mark
        ("1.25 times", "", True),
        ("0.50 times", "at most 0.67 times", True),  # latency
        ("160%", "at least 90%", True),  # of the raw loop
        ("100%", "at least 90%", True),
        ("2.50 times", "at most 3.00 times", True),  # p99 at 71 calls a second over the unloaded median
        ("0.50–2.00 times", "at least 1.50 times", False),  # beams
    ]
    assert [mark.goal for mark in shipped[:2]] == ["at least 1.50 times", ""]
    assert [mark.goal for mark in shipped[5:7]] == ["at least 75%"] * 2
    said = "\n".join(greedy_findings(greedy("base")))
    assert "**Missed:** 64 Generate calls: tokens/s over CTranslate2's best, in-process: 1.25 times" in said
    assert "Reached: A call alone takes 100.00 ms" in said
    (model,) = document([Outcome("a model", "words", "base", greedy("base"), beam())], MACHINE)["models"]
    assert [Mark(**each) for each in json.loads(json.dumps(model["marks"]))] == base


def test_quality_and_memory_stand_beside_speed() -> None:
    outcome = greedy("shipped")
    outcome.peak_megabytes, outcome.quality = {"server": 250.4, "CTranslate2": 90.0}, {"server": 22.94}
    text = markdown([Outcome("a model", "words", greedy=outcome)], MACHINE)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "| " in line]
    assert ["server", "22.9%", "250"] in rows
    assert ["CTranslate2", "", "90"] in rows


def test_words_are_right_if_one_of_their_references_is_answered() -> None:
    bundle = load_bundle(shipped_bundle())
    texts = {"a": ["AH", "EY"], "i": ["AY"]}
    ids = [bundle.target_tokenizer.encode(text, add_special_tokens=False).ids for text in ("EY", "IY")]
    workload = Workload("words", list(texts), [], [], 9, texts)
    assert sequence_error_rates({"server": ids}, bundle, workload) == {"server": 50.0}
    assert sequence_error_rates({"server": ids}, bundle, replace(workload, references={})) == {}
