"""What the benchmark says of numbers that are known."""

import json

import pytest

from tests.benchmark.engine_work import EngineWork
from tests.benchmark.findings import beam_findings, greedy_findings, short_list_findings
from tests.benchmark.machine import busy_cores
from tests.benchmark.metrics_cost import MetricsCost, measure_metrics
from tests.benchmark.outcome import Agreement, BeamSearch, Greedy, Outcome, ShortLists
from tests.benchmark.report import document, heading, markdown
from tests.benchmark.samples import Sample, Series
from tests.described_machine import MACHINE

WORK = EngineWork(
    steps=10, step_seconds=0.5, row_steps=80, branch_seconds=0.01, branch_rows=20, advances=20, advance_seconds=0.001
)


def series(system: str, in_flight: int, *rates: int) -> Series:
    """Of samples of a second each."""
    engines = system not in ("raw", "ctranslate2")
    samples = [Sample(1.0, r, r // 10, [0.1], 0, {"own": 1.5}, WORK if engines else None) for r in rates]
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
    (sentence,) = greedy_findings(Greedy(8.0, served, [], metrics=costs))
    assert sentence == (
        "**Missed:** Counting for the metrics adds 50.0 µs to a step and 1000.0 µs to a request, 2.10% to 10.10% of "
        "the time of the served steps (less than 1% wanted); whoever asks for /metrics gets it after 2.0 ms, and the "
        "live page's points take 0.005% of a core."
    )
    cheap = Greedy(8.0, served, [], metrics=MetricsCost(1e-6, 2e-6, 0.002, 100e-6))
    assert greedy_findings(cheap)[0].startswith("Reached: Counting")


def test_counting_is_timed_call_by_call() -> None:
    costs = measure_metrics()
    assert 0 < costs.step < costs.page
    assert 0 < costs.request < costs.page
    assert 0 < costs.point < 1


def test_short_lists_are_compared_at_equal_rows() -> None:
    found = [series("whole", 8, 100), series("shared", 8, 150), series("own", 8, 120)]
    (sentence,) = short_list_findings(ShortLists(32, found, [], 1000, 32000))
    assert "At 8 rows a list that all share gives 1.50 times the tokens of the whole vocabulary" in sentence
    assert "a random one for each 1.20 times" in sentence


def test_the_report_has_every_part() -> None:
    lists = ShortLists(32, [series("whole", 8, 100), series("shared", 8, 150), series("own", 8, 120)], [], 1000, 32000)
    greedy = Greedy(8.0, [series("raw", 1, 90, 100), series("unary", 1, 45, 50)], [Agreement("raw", "server", 3, 3)])
    outcome = Outcome("a model", "words", greedy, beam(), lists)
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
    assert document([outcome], MACHINE)["models"][0].keys() == {"model", "inputs", "beam"}


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
