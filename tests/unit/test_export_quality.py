"""What an export measures, and when it refuses to judge by it."""

from pathlib import Path

import pytest

from dragoman_export.build import BuildInput, build
from dragoman_export.bundle.options import ExportOptions
from dragoman_export.checks.quality import DecodedSet, decode_set
from dragoman_export.checks.report import ParityReport
from dragoman_export.errors import ExportError
from dragoman_export.precision.quality_loss import check_judgeable
from dragoman_server.bundle.load import load_bundle, shipped_bundle
from dragoman_server.bundle.manifest import Precision
from dragoman_server.runtime.device import CPU
from dragoman_training.data.pairs import Pair
from dragoman_training.evaluation.metrics import METRICS
from dragoman_training.recipe import Metric
from dragoman_training.run.load import load_run
from tests.support.random_model import small_run

ALL: list[Metric] = ["exact_match", "sequence_error_rate", "word_error_rate", "bleu", "chrf"]


def test_references_are_normalised_as_answers_are(tmp_path: Path) -> None:
    bundle = load_bundle(shipped_bundle())
    targets = {"hello": "HH AH L OW", "cat": "K AE T", "dog": "D AO G"}
    spaced = [Pair(word.upper(), f"{phones.replace(' ', '  ')} ", tmp_path, 1) for word, phones in targets.items()]
    twin = Pair("hello", "HH EH L OW", tmp_path, 2)
    measured = decode_set(bundle, CPU, [*spaced, twin], ["exact_match", "word_error_rate"])
    assert measured.scores == {"exact_match": 100, "word_error_rate": 0}


@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_no_precision_of_a_model_that_knows_nothing_is_judged(
    precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = load_bundle(shipped_bundle())
    for name, result in (("_trace", bundle), ("_check", ParityReport({}, [])), ("runnable", (bundle, CPU))):
        monkeypatch.setattr(f"dragoman_export.build.{name}", lambda *_, result=result: result)
    pairs = [Pair(word, "one two", tmp_path, 1) for word in ("hello", "cat", "dog")]
    run = load_run(small_run(tmp_path / "run"))
    with pytest.raises(ExportError, match=rf"--precision {precision} costs can't be judged: .* to dev are no better"):
        build(
            BuildInput(
                run, {"dev": pairs}, [], tmp_path, ExportOptions("x", precision=precision, device="cpu"), lambda _: None
            )
        )


def decoded(answers: list[str], targets: list[str], metrics: list[Metric] = ALL) -> DecodedSet:
    sources = [str(i) for i in range(len(targets))]
    expected = {source: [target] for source, target in zip(sources, targets, strict=True)}
    written = dict(zip(sources, answers, strict=True))
    return DecodedSet({}, {name: METRICS[name](written, expected).value for name in metrics}, written, expected)


TARGETS = [f"the {a} of {b}" for a in ("king", "queen", "cat", "dog") for b in ("spain", "france", "egypt")]
HALF_RIGHT = [target.replace("the", "a") for target in TARGETS]


@pytest.mark.parametrize(
    ("answers", "metrics"),
    [
        ([""] * 12, ALL),
        (["xyz"] * 12, ALL),
        (TARGETS[3:] + TARGETS[:3], ["exact_match", "sequence_error_rate"]),
        (HALF_RIGHT, ["exact_match"]),
        (TARGETS, []),
    ],
    ids=["nothing", "always the same", "those of others", "never whole", "no metrics"],
)
def test_nothing_is_judged_by_answers_no_better_than_chance(answers: list[str], metrics: list[Metric]) -> None:
    exact = decoded(answers, TARGETS, metrics)
    with pytest.raises(ExportError, match=r"what --precision int8 costs can't be judged: the model's answers to dev"):
        check_judgeable(exact, "dev", "int8", 0.1)
    check_judgeable(exact, "dev", "int8", 100)


def test_always_the_most_common_answer_is_chance() -> None:
    with pytest.raises(ExportError, match=r"exact match \(%\) 75, by chance 75"):
        check_judgeable(decoded(["yes"] * 12, ["yes", "yes", "yes", "no"] * 3), "dev", "int8", 0.1)


@pytest.mark.parametrize("answers", [TARGETS, HALF_RIGHT, [*TARGETS[:1], *[""] * 11]])
def test_one_metric_better_than_chance_is_enough(answers: list[str]) -> None:
    check_judgeable(decoded(answers, TARGETS), "dev", "int8", 0.1)
