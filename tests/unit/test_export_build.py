"""Builds of bundles: how quality is judged, and what happens when integers in the caches fail the check."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman_export.build import BuildInput, build, short_data_note
from dragoman_export.bundle.options import ExportOptions
from dragoman_export.bundle.write import write_files, write_manifest
from dragoman_export.checks.quality import DecodedSet, PairSet
from dragoman_export.checks.report import CheckFailedError, ParityReport
from dragoman_export.errors import ExportError
from dragoman_export.original import Original
from dragoman_export.precision.calibration import Feed, cache_peaks
from dragoman_export.precision.editable_graph import Floats
from dragoman_export.precision.quality_loss import agreement, check_judgeable
from dragoman_export.precision.quantization_search import QuantizationTask
from dragoman_export.run_data import read_run
from dragoman_server.bundle.load import Bundle, load_bundle
from dragoman_server.bundle.manifest import Precision
from dragoman_server.runtime.device import CPU, Device
from dragoman_training.data.pairs import Pair
from dragoman_training.evaluation.metrics import METRICS
from dragoman_training.recipe import Metric
from tests.support.bundles import SHIPPED_G2P
from tests.support.random_model import small_run

pytestmark = pytest.mark.usefixtures("shared_graphs")

ALL: list[Metric] = ["exact_match", "sequence_error_rate", "word_error_rate", "bleu", "chrf"]
TARGETS = [f"the {a} of {b}" for a in ("king", "queen", "cat", "dog") for b in ("spain", "france", "egypt")]
HALF_RIGHT = [target.replace("the", "a") for target in TARGETS]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return read_run(small_run(tmp_path_factory.mktemp("build") / "run"), print)


@pytest.fixture(scope="module")
def exact(original: Original, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The run's bundle in fp32, unchecked."""
    folder = tmp_path_factory.mktemp("exact")
    write_manifest(write_files(original, folder, ExportOptions("x"), ["w5"]), folder)
    return load_bundle(folder)


def test_a_manifest_has_each_plain_list_on_one_line(exact: Bundle, tmp_path: Path) -> None:
    examples = ["[", "]\n[1,\n2]", '"a", "b"', "{"]
    manifest = exact.manifest.model_copy(update={"examples": examples, "unseen_source_tokens": [5, 7, 9]})
    write_manifest(manifest, tmp_path)
    document = (tmp_path / "manifest.json").read_text(encoding="utf-8")
    assert '\n  "unseen_source_tokens": [5, 7, 9],\n' in document
    assert json.loads(document) == manifest.model_dump(mode="json")


def test_references_are_normalized_as_answers_are(tmp_path: Path) -> None:
    bundle = load_bundle(SHIPPED_G2P)
    targets = {"hello": "HH AH L OW", "cat": "K AE T", "dog": "D AO G"}
    spaced = [Pair(word.upper(), f"{phones.replace(' ', '  ')} ", tmp_path, 1) for word, phones in targets.items()]
    twin = Pair("hello", "HH EH L OW", tmp_path, 2)
    measured = PairSet("dev", [*spaced, twin], ["exact_match", "word_error_rate"]).decode(bundle, CPU)
    assert measured.scores == {"exact_match": 100, "word_error_rate": 0}


def decoded(answers: list[str], targets: list[str], metrics: list[Metric] = ALL) -> DecodedSet:
    sources = [str(i) for i in range(len(targets))]
    expected = {source: [target] for source, target in zip(sources, targets, strict=True)}
    texts = dict(zip(sources, answers, strict=True))
    return DecodedSet({}, {name: METRICS[name](texts, expected).value for name in metrics}, texts, expected)


@pytest.mark.parametrize(
    ("answers", "targets", "metrics", "sentence"),
    [
        ([""] * 12, TARGETS, ALL, ""),
        (["xyz"] * 12, TARGETS, ALL, ""),
        (TARGETS[3:] + TARGETS[:3], TARGETS, ["exact_match", "sequence_error_rate"], ""),
        (HALF_RIGHT, TARGETS, ["exact_match"], ""),
        (TARGETS, TARGETS, [], ""),
        (["yes"] * 12, ["yes", "yes", "yes", "no"] * 3, ALL, r".*exact match \(%\) 75, by chance 75"),
    ],
    ids=["empty", "constant", "shuffled", "never whole", "no metrics", "most common answer"],
)
def test_answers_no_better_than_chance_are_not_judged(
    answers: list[str], targets: list[str], metrics: list[Metric], sentence: str
) -> None:
    exact = decoded(answers, targets, metrics)
    start = "what --precision int8 costs can't be judged: the model's answers to dev"
    with pytest.raises(ExportError, match=start + sentence):
        check_judgeable(exact, "dev", "int8", 0.1)
    check_judgeable(exact, "dev", "int8", 100)


@pytest.mark.parametrize("answers", [TARGETS, HALF_RIGHT, [*TARGETS[:1], *[""] * 11]])
def test_one_metric_better_than_chance_is_enough(answers: list[str]) -> None:
    check_judgeable(decoded(answers, TARGETS), "dev", "int8", 0.1)


@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_build_refuses_to_judge_an_untrained_model(
    precision: Precision, original: Original, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = load_bundle(SHIPPED_G2P)
    for name, result in (("_trace", bundle), ("_check", ParityReport({}, [])), ("runnable", (bundle, CPU))):
        monkeypatch.setattr(f"dragoman_export.build.{name}", lambda *_, result=result: result)
    pairs = [Pair(word, "one two", tmp_path, 1) for word in ("hello", "cat", "dog")]
    options = ExportOptions("x", precision=precision, device="cpu")
    with pytest.raises(ExportError, match=rf"--precision {precision} costs can't be judged: .* to dev are no better"):
        build(BuildInput(replace(original, data={"dev": pairs}), tmp_path, options, lambda _: None))


def test_agreement_counts_answers_and_tokens() -> None:
    before, after = {"x": [1, 2, 3], "y": [4]}, {"x": [1, 5, 3, 6], "y": [4]}
    assert agreement(before, after) == (0.5, 3 / 5)
    assert agreement({"x": []}, {"x": []}) == (1, 0)


def build_input(
    original: Original,
    folder: Path,
    options: ExportOptions,
    longest: Sequence[Pair] = (),
    say: Callable[[str], None] = print,
) -> BuildInput:
    folder.mkdir(exist_ok=True)
    return BuildInput(replace(original, longest=longest), folder, options, say)


def task(work: BuildInput, exact: Bundle) -> QuantizationTask:
    data = work.comparison_set(exact)
    return QuantizationTask(exact, work.folder / "int8", "int8", data, work.longest, data.decode(exact, CPU), 0, print)


def test_integers_in_the_caches_that_fail_the_check_go_back_to_floats(
    original: Original, exact: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []

    def check(work: BuildInput, bundle: Bundle, device: Device) -> ParityReport:
        checked.append(bundle.manifest.cache)
        if bundle.manifest.cache == "int8":
            raise CheckFailedError("the check failed", ParityReport({}, []))
        return ParityReport({"reference": "", "tolerance": 1, "largest_difference": 0, "scorer": {}, "choices": {}}, [])

    monkeypatch.setattr("dragoman_export.build._trace", lambda *_: exact)
    monkeypatch.setattr("dragoman_export.build._check", check)
    monkeypatch.setattr("dragoman_export.precision.quantization_search.are_faster", lambda *_: True)
    lines: list[str] = []
    options = ExportOptions("x", precision="int8", max_quality_loss=1000)
    bundle, _ = build(build_input(original, tmp_path / "auto", options, say=lines.append))
    assert checked == ["float", "int8", "float"]
    assert bundle.manifest.cache == "float"
    assert any("back to float caches" in line for line in lines)
    work = build_input(original, tmp_path / "int8", replace(options, cache="int8"), original.data["dev"][:1])
    with pytest.raises(CheckFailedError) as raised:
        build(work)
    assert str(raised.value) == f"the check failed{short_data_note(task(work, exact))} (--cache float keeps floats)"


@pytest.mark.parametrize(
    ("longest", "expected"),
    [
        ([], [("source", "", 9), ("target", "", 8)]),
        ([("w5", "w5 w6 w7 w8")], [("source", " and 2 in training", 9), ("target", " and 5 in training", 8)]),
        # Training reaches the limit, but dev does not.
        ([("w5 " * 8, "w5 " * 7)], [("source", " and 9 in training", 9), ("target", " and 8 in training", 8)]),
    ],
)
def test_short_calibration_data_is_reported(
    longest: list[tuple[str, str]],
    expected: list[tuple[str, str, int]],
    original: Original,
    exact: Bundle,
    tmp_path: Path,
) -> None:
    work = build_input(original, tmp_path, ExportOptions("x"), [Pair(*texts, tmp_path, 1) for texts in longest])
    sentences = [
        f"the longest {side} has 4 tokens in dev{training}, and the limit is {limit}"
        for side, training, limit in expected
    ]
    reason = "scales that were found on short texts may not fit longer ones"
    assert short_data_note(task(work, exact)) == f"; {'; '.join(sentences)}: {reason}"


def test_long_calibration_data_is_not_blamed(original: Original, exact: Bundle, tmp_path: Path) -> None:
    long = replace(original, data={"dev": [Pair("w5 " * 8, "w5 " * 7, tmp_path, 1)]})
    work = build_input(long, tmp_path, ExportOptions("x"))
    assert short_data_note(task(work, exact)) == ""


def test_caches_are_calibrated_on_the_longest_training_pairs_too(
    original: Original, exact: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []

    def record(bundle: Bundle, feeds: Sequence[Feed], threads: int) -> dict[str, Floats]:
        lengths.extend(feed["source_ids"].size for feed in feeds)
        return cache_peaks(bundle, feeds, threads)

    monkeypatch.setattr("dragoman_export.build._trace", lambda *_: exact)
    monkeypatch.setattr("dragoman_export.precision.quantization_search.cache_peaks", record)
    options = ExportOptions("x", precision="int8", cache="int8", max_quality_loss=1000)
    build(build_input(original, tmp_path, options, [Pair("w5 w6 w7 w8 w9 w10 w11 w12", "w5", tmp_path, 1)]))
    assert lengths == [4] * 8 + [9]
