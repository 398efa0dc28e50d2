"""The comparison with other servers, on numbers that are known."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from dragoman.inference import open_inference_pb2 as oip
from dragoman.local import LocalServer
from dragoman.v1 import generation_pb2 as pb
from server.bundle.load import load_bundle, shipped_bundle
from tests.benchmark.samples import Sample
from tests.benchmark.servers.asyncio_server import MicroBatcher
from tests.benchmark.servers.campaign import Campaign, Effort
from tests.benchmark.servers.equal_latency import bounds, rate_within
from tests.benchmark.servers.inputs import Inputs
from tests.benchmark.servers.lengths import SENTENCES
from tests.benchmark.servers.plot import draw
from tests.benchmark.servers.protocols import PROTOCOLS
from tests.benchmark.servers.report import findings, markdown, marks
from tests.benchmark.servers.results import Answers, Kind, ModelResults, Point, Results
from tests.benchmark.servers.settings import Setting, batching_settings, single_settings
from tests.benchmark.servers.starting import triton_config
from tests.benchmark.servers.systems import System
from tests.benchmark.servers.triton_setup import TritonSetupError, set_up_triton
from tests.benchmark.workload import encoded
from tests.described_machine import MACHINE


def sample(rate: int, p99: float, failed: int = 0) -> Sample:
    """A second of it, with a hundred calls that are as fast as the slowest of them."""
    return Sample(1.0, rate, 100, [p99] * 100, failed, {"server": 1.5, "load": 0.1})


def measured(**curves: list[tuple[int, int, float]]) -> ModelResults:
    """Each system's (callers, tokens/s, p99)."""
    found = ModelResults(model="a model", inputs="words", machines=[MACHINE])
    for system, points in curves.items():
        for callers, rate, p99 in points:
            found.add(system, "its defaults", "closed", callers, 0, sample(rate, p99))
    return found


def points(*pairs: tuple[float, float]) -> list[Point]:
    """Of (p99, tokens/s)."""
    found = ModelResults(model="", inputs="")
    for load, (p99, rate) in enumerate(pairs):
        found.add("triton", "", "closed", load, 0, sample(int(rate), p99))
    return found.points("triton", "closed")


@pytest.mark.parametrize(
    ("p99", "expected"),
    [
        (0.005, None),  # not even the first point
        (0.01, 100.0),
        (0.02, 200.0),  # half way
        (0.03, 300.0),
        (0.035, 300.0),  # what comes later is slower, and gives less
        (1.0, 300.0),
    ],
)
def test_the_rate_within_a_bound_lies_between_measured_loads(p99: float, expected: float | None) -> None:
    assert rate_within(points((0.01, 100), (0.03, 300), (0.04, 250)), p99) == (
        None if expected is None else pytest.approx(expected)
    )


def test_a_tail_that_falls_again_counts_where_it_is_within_the_bound() -> None:
    assert rate_within(points((0.02, 100), (0.05, 150), (0.03, 200)), 0.03) == pytest.approx(200)


def test_bounds_are_round_and_within_all_curves() -> None:
    fast, slow = points((0.004, 100), (0.09, 300)), points((0.015, 50), (0.3, 90))
    assert bounds([fast, slow]) == pytest.approx([0.02, 0.05])


def test_a_point_is_the_median_of_its_rounds_in_the_better_setting() -> None:
    found = ModelResults(model="", inputs="")
    for number, (rate, p99) in enumerate([(100, 0.01), (300, 0.03), (110, 0.02)]):
        found.add("triton", "batches of 8", "closed", 4, number, sample(rate, p99, failed=1))
        found.add("triton", "batches of 64", "closed", 4, number, sample(rate - 50, 0.001))
    found.add("triton", "batches of 64", "trial", 4, 0, sample(1000, 0.001))
    (point,) = found.points("triton", "closed")
    assert (point.setting, point.rate, point.lowest, point.highest) == ("batches of 8", 110, 100, 300)
    assert (point.p99, point.calls, point.failed, point.cores) == (0.02, 303, 3, 1.5)


def test_results_come_back_from_disk_as_they_were(tmp_path: Path) -> None:
    found = measured(dragoman=[(1, 100, 0.01)])
    found.chosen["triton"] = {1: Setting(1, 2, 8, 0.002, {"CT2_USE_MKL": "1"})}
    found.answers["triton"] = Answers(same=3, asked=4)
    results = Results(models={"shipped": found})
    results.write(tmp_path / "servers.json")
    assert Results.model_validate_json((tmp_path / "servers.json").read_text()) == results


def test_findings_tell_what_equal_latency_gives_and_where_we_are_behind() -> None:
    found = measured(
        dragoman=[(1, 100, 0.004), (8, 600, 0.01), (64, 1000, 0.1)],
        triton=[(1, 120, 0.003), (8, 250, 0.05), (64, 300, 0.2)],
    )
    found.answers = {"dragoman": Answers(same=4, asked=4), "triton": Answers(same=2, asked=4, undecided=1)}
    text = "\n".join(findings(found))
    assert "Dragoman gives 1.46 times (within 5 ms) to 4.31 times (within 10 ms) Triton's tokens" in text
    assert text.startswith("**Missed:**")
    assert "**Behind:** Triton, dynamic batching gives more tokens/s with 1 callers and has a lower p99 with 1" in text
    assert "**Wrong:** Triton, dynamic batching differs in 2 of 4 answers" in text


def test_a_mark_is_reached_where_every_bound_reaches_it() -> None:
    found = measured(dragoman=[(1, 100, 0.01), (8, 600, 0.02)], triton=[(1, 50, 0.01), (8, 200, 0.02)])
    text = "\n".join(findings(found))
    assert text.startswith("Reached: ")
    assert "No other server gave more tokens/s or a lower p99" in text


def test_what_was_measured_of_another_commit_is_told() -> None:
    found = measured(dragoman=[(1, 100, 0.01)])
    for commit in ("abc", "def", "def"):
        found.measured_on(MACHINE | {"commit": commit})
    page = markdown(Results(models={"shipped-int8": found}), {"shipped-int8": "servers-shipped-int8.png"})
    assert [page.count(text) for text in ("commit abc;", "Added later: ", "commit def;")] == [1, 1, 1]


def test_the_mark_takes_the_worst_bound() -> None:
    found = measured(
        dragoman=[(1, 100, 0.004), (8, 600, 0.01), (64, 1000, 0.1)],
        triton=[(1, 120, 0.003), (8, 250, 0.05), (64, 300, 0.2)],
    )
    (mark,) = marks(found)
    assert (mark.outcome, mark.reached) == ("1.46–4.31 times", False)
    assert marks(measured(dragoman=[(1, 100, 0.004)])) == []


def test_the_page_and_the_picture_have_every_kind_of_measurement(tmp_path: Path) -> None:
    found = measured(dragoman=[(1, 100, 0.004), (8, 600, 0.03)], triton=[(1, 90, 0.005), (8, 250, 0.05)])
    setting = Setting(2, 1, 8)
    found.chosen["triton"] = {1: setting}
    kinds: list[tuple[str, Kind, float]] = [("triton", "trial", 1), ("triton", "open", 50), ("dragoman", "open", 70)]
    for system, kind, load in kinds:
        found.add(system, str(setting), kind, load, 0, sample(80, 0.02))
    page = markdown(Results(models={"shipped": found}), {"shipped": "servers-shipped.png"})
    assert "| Triton, dynamic batching | 2 x 1 threads, batches of 8, no waiting | **80**" in page
    assert "![p99 over throughput](servers-shipped.png)" in page
    for heading in ("Random arrivals", "Tokens/s at equal p99, random arrivals", "Throughput and latency"):
        assert f"### {heading}" in page
    draw(found, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_both_protocols_carry_the_text_and_the_limit() -> None:
    (generate,) = PROTOCOLS["generate"].requests("g2p", ["naïve"], [7])
    asked = pb.GenerateRequest.FromString(generate)
    assert (asked.input.text, asked.options.max_new_tokens) == ("naïve", 7)
    (infer,) = PROTOCOLS["infer"].requests("g2p", ["naïve"], [7])
    inferred = oip.ModelInferRequest.FromString(infer)
    assert (inferred.model_name, inferred.parameters["max_new_tokens"].int64_param) == ("g2p", 7)
    assert inferred.raw_input_contents == [b"\x06\0\0\0na\xc3\xafve"]


def test_both_protocols_give_the_text_back() -> None:
    generated = pb.GenerateResponse(hypotheses=[pb.Hypothesis(text="né")]).SerializeToString()
    assert PROTOCOLS["generate"].text(generated) == "né"
    inferred = oip.ModelInferResponse(raw_output_contents=[b"\x03\0\0\0n\xc3\xa9"]).SerializeToString()
    assert PROTOCOLS["infer"].text(inferred) == "né"


def test_settings_differ_and_say_how() -> None:
    settings = [*batching_settings(2, {}), *single_settings(2, {})]
    assert len(set(map(str, settings))) == len(settings)
    assert str(Setting(1, 2, 64, 0.01, {"A": "1"})) == "1 x 2 threads, batches of 64, waiting 10 ms, A=1"
    assert all(setting.workers * setting.threads == 2 for setting in settings)


def test_triton_is_told_the_setting() -> None:
    config = triton_config(Path("/models/g2p"), "float32", Setting(2, 1, 32, 0.002))
    for line in (
        "max_batch_size: 32",
        "instance_group [ { kind: KIND_CPU count: 2 } ]",
        "dynamic_batching { max_queue_delay_microseconds: 2000 }",
        'parameters { key: "model" value { string_value: "/models/g2p" } }',
        'parameters { key: "threads" value { string_value: "1" } }',
    ):
        assert line in config.splitlines()


def test_sentences_fit_the_base_shape() -> None:
    assert len(SENTENCES) == 128
    assert all(3 < source < 63 and 3 < target <= 64 for source, target in SENTENCES)


class Upper:
    """Translates into capitals, once it may, and remembers the batches."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.asked, self.may = threading.Event(), threading.Event()

    async def is_asked(self) -> None:
        """Waits until there is a batch to translate."""
        assert await asyncio.to_thread(self.asked.wait, 60)

    def translate(self, texts: Sequence[str], limits: Sequence[int]) -> list[str]:
        self.asked.set()
        self.may.wait(60)
        self.batches.append(list(texts))
        if "bad" in texts:
            raise ValueError("bad")
        return [text.upper()[:limit] for text, limit in zip(texts, limits, strict=True)]


async def test_a_batch_takes_in_what_waited_while_another_ran() -> None:
    upper = Upper()
    batcher = MicroBatcher(upper, workers=1, most=3, delay=0.0)
    calls = [asyncio.create_task(batcher.answer(text, 2)) for text in ("one", "two", "three", "four", "five")]
    await upper.is_asked()
    late = asyncio.create_task(batcher.answer("late", 9))
    await asyncio.sleep(0)
    upper.may.set()
    assert await asyncio.gather(*calls, late) == ["ON", "TW", "TH", "FO", "FI", "LATE"]
    assert upper.batches == [["one", "two", "three"], ["four", "five", "late"]]


async def test_a_batch_waits_for_others_where_it_may() -> None:
    upper = Upper()
    upper.may.set()
    batcher = MicroBatcher(upper, workers=1, most=2, delay=60.0)
    first = asyncio.create_task(batcher.answer("one", 9))
    for _ in range(5):  # turns of the event loop: the batch has its first text then, and waits for the second
        await asyncio.sleep(0)
    assert list(await asyncio.gather(first, batcher.answer("two", 9))) == ["ONE", "TWO"]
    assert upper.batches == [["one", "two"]]


async def test_a_batch_that_fails_or_is_not_waited_for_stops_nobody_else() -> None:
    upper = Upper()
    batcher = MicroBatcher(upper, workers=1, most=2, delay=0.0)
    bad, gone = (asyncio.create_task(batcher.answer(text, 9)) for text in ("bad", "gone"))
    await upper.is_asked()
    gone.cancel()
    upper.may.set()
    with pytest.raises(ValueError, match="bad"):
        await bad
    assert await batcher.answer("good", 9) == "GOOD"


def test_where_triton_finds_no_python_it_says_what_would_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.benchmark.servers.triton_setup.INTERPRETERS", ("python-that-is-not-there",))
    with pytest.raises(TritonSetupError, match="apt-get install python3-venv"):
        set_up_triton(tmp_path / "triton")


def test_answers_of_integers_are_counted_and_not_judged(tmp_path: Path) -> None:
    bundle = load_bundle(shipped_bundle())
    assert bundle.manifest.precision == "int8"
    found = measured(dragoman=[(1, 100, 0.01)])
    workload = encoded(bundle, "words", ["WORD", "OTHER"], 9)
    effort = Effort(seconds=0.1, open_seconds=0.0, rounds=1, open_rounds=0)
    campaign = Campaign(bundle, tmp_path, Inputs(workload, [9, 9], ends=True), [], effort, found, print)
    for name, texts in (("dragoman", ["W ER D", "AH DH ER"]), ("triton", ["W ER D", "AH DH R"])):
        system = System(name, "generate", "g2p-en", [], lambda _: LocalServer())
        campaign._compare(system, list(texts))
    assert found.answers["triton"] == Answers(same=1, asked=2, undecided=None)
    assert not [sentence for sentence in findings(found) if "Wrong" in sentence]
