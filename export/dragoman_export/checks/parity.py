"""The parity check: the graphs, run by the server's runtime, against the model that they were exported from."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from dragoman_export.bundle.bf16_on_cpu import is_emulated
from dragoman_export.checks.affordable import filled_rows, longest_source, longest_target, reserved_rows
from dragoman_export.checks.greedy_parity import compare_greedy, compare_greedy_agreement, decode_texts, repeat_greedy
from dragoman_export.checks.head_inputs import ROWS as HEAD_ROWS
from dragoman_export.checks.head_inputs import ExpectedHead, check_head_inputs, expect_head
from dragoman_export.checks.references import Floats, Reference, ScorerGraph, TorchReference
from dragoman_export.checks.report import ParityReport
from dragoman_export.checks.serving_simulation import ExpectedCase, draw_sources, expect, simulate_serving
from dragoman_export.checks.step_timing import TIMED_ROWS, median_times
from dragoman_export.checks.tolerance import TOLERANCE, allowed_difference, describe_excess, largest_difference
from dragoman_export.errors import ExportError
from dragoman_server.bundle.load import Bundle, BundleError
from dragoman_server.bundle.manifest import INTEGERS, Manifest
from dragoman_server.machine import usable_cpus
from dragoman_server.runtime.device import Device, DeviceError, first_line, is_out_of_memory
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from dragoman_training.model import Transformer

BATCHES = (1, 2, 3, 17)
SOURCES = (1, 2, 5)  # tokens; and the longest source there may be
HEAD_TOLERANCE_FACTOR = 4  # a penalty or a low temperature multiplies the rounding
UNUSED_ROWS = 2  # rows that no step may touch
GREEDY_ROWS = max(TIMED_ROWS)


# ONNX Runtime's exceptions have no common base; with an IO binding they are plain RuntimeErrors.
_RUNTIME_ERRORS = (RuntimeError, DeviceError, ort_errors.Fail, ort_errors.InvalidArgument, ort_errors.NotImplemented)


@dataclass(frozen=True)
class Circumstances:
    """How to check.

    Attributes:
        most_rows: Rows of the largest batch to compare.
        say: Prints a line on the progress.
        release: Gives back the memory of the model for now, if it can be read again.
    """

    most_rows: int = max(BATCHES)
    say: Callable[[str], None] = lambda _: None
    release: Callable[[], None] = lambda: None


def check_bundle(
    bundle: Bundle,
    model: Transformer | None,
    texts: Sequence[str],
    device: Device,
    circumstances: Circumstances = Circumstances(),
) -> ParityReport:
    """Compares the graphs of a bundle with their model. Large models are compared on fewer and shorter rows.

    Args:
        bundle: The loaded bundle, so its files match the manifest.
        model: The trained model. Without it the bundle is compared with itself: its cached step with its scorer, and
            its greedy answers with those in the manifest. So is a quantized bundle, which computes something other than
            the model; only its greedy answers are compared with those of the model.
        texts: Sources to decode greedily with model and graphs. Those beyond the model's limit are left out.
        device: Device to run the graphs on.
        circumstances: How to check.

    Raises:
        ExportError: The graphs cannot run, or are not those of the manifest.
    """
    trained = None if model is None else TorchReference(model, bundle.manifest.tokens)
    try:
        if trained is None or bundle.manifest.precision in INTEGERS:
            return _check_with_itself(bundle, trained, texts, device, circumstances)
        return _check_with_model(bundle, trained, texts, device, circumstances)
    except BundleError as error:
        raise ExportError(str(error)) from error
    except _RUNTIME_ERRORS as error:
        raise ExportError(f"the graphs of {bundle.path} can't be run: {first_line(error)}") from error


def _check_with_itself(
    bundle: Bundle, trained: TorchReference | None, texts: Sequence[str], device: Device, circumstances: Circumstances
) -> ParityReport:
    """Compares the cached step with the scorer, and answers with those of the model or those recorded."""
    sessions, scorer = Sessions(bundle, device, usable_cpus()), _warm_scorer(bundle, device)
    cases = _expect_cases(bundle.manifest, scorer, circumstances)
    report = _new_report(bundle, scorer, device, with_model=trained is not None)
    runtime = _check_steps(sessions, cases, report, circumstances)
    if trained is None:
        report.document["greedy"] = repeat_greedy(bundle, runtime, report.failures)
        return report
    circumstances.say(f"comparing answers to {len(texts)} texts")
    answers = decode_texts(bundle, runtime, texts)
    del sessions, runtime, scorer
    report.document["greedy"] = compare_greedy_agreement(bundle, answers, trained, report.failures)
    return report


def _check_with_model(
    bundle: Bundle, trained: TorchReference, texts: Sequence[str], device: Device, circumstances: Circumstances
) -> ParityReport:
    """Compares steps, scorer and answers with the model.

    The model, the graphs of a step and the scorer each hold all weights, so they are in memory one after the other.
    """
    manifest, say = bundle.manifest, circumstances.say
    tolerance = TOLERANCE[manifest.precision]
    say("running the model on random tokens, in several precisions")
    cases = _expect_cases(manifest, trained, circumstances)
    head = expect_head(manifest, trained, min(HEAD_ROWS, reserved_rows(manifest, GREEDY_ROWS)))
    scores = expect_scores(manifest, trained)
    circumstances.release()
    report = _new_report(bundle, trained, device, with_model=True)
    document, failures = report.document, report.failures
    runtime = _check_steps(Sessions(bundle, device, usable_cpus()), cases, report, circumstances)
    document["choices"] = _check_head(runtime, head, tolerance, failures)
    say(f"comparing answers to {len(texts)} texts")
    answers = decode_texts(bundle, runtime, texts)
    del runtime
    document["greedy"] = compare_greedy(manifest, answers, trained, tolerance, failures)
    circumstances.release()
    say("comparing the scorer")
    document["scorer"] = check_scorer(_warm_scorer(bundle, device), scores, tolerance, failures)
    return report


def _warm_runtime(sessions: Sessions, rows: int) -> Runtime:
    """Runs encoder and decoder once at the manifest's limits, and returns the runtime."""
    with _explained(sessions.bundle, sessions.device):
        runtime = Runtime(sessions, rows)
        runtime.warm_up()
    return runtime


def _warm_scorer(bundle: Bundle, device: Device) -> ScorerGraph:
    """Runs the scorer once on the longest source, and the longest target whose logits fit, and returns it."""
    with _explained(bundle, device):
        manifest, end = bundle.manifest, bundle.manifest.tokens.end
        scorer = ScorerGraph(bundle, device, usable_cpus())
        scorer.scores([[end] * manifest.limits.max_source_tokens], [[end] * longest_target(manifest, 1)])
    return scorer


@contextmanager
def _explained(bundle: Bundle, device: Device) -> Iterator[None]:
    """Raises an `ExportError` if graphs do not run as the manifest says, or run out of memory."""
    try:
        yield
    except (BundleError, DeviceError):
        raise
    except Exception as error:  # NumPy and ONNX Runtime raise various types where shapes disagree
        if is_out_of_memory(error):
            raise ExportError(
                f"{device} ran out of memory while checking {bundle.path}: {first_line(error)}"
            ) from error
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ExportError(f"{bundle.path}: the graphs do not run as the manifest says: {reason}") from error


def _new_report(bundle: Bundle, reference: Reference, device: Device, *, with_model: bool) -> ParityReport:
    manifest = bundle.manifest
    document = {
        "reference": reference.name,
        "tolerance": TOLERANCE[manifest.precision],
        "device": str(device),
        "onnxruntime": ort.__version__,
        "torch": torch.__version__,
        "not_checked": _not_checked(manifest, with_model, device),
    }
    return ParityReport(document, [])


def _expect_cases(manifest: Manifest, reference: Reference, circumstances: Circumstances) -> list[ExpectedCase]:
    """Returns what the reference computes for batches and sources of all sizes up to the maximum."""
    longest = manifest.limits.max_source_tokens
    available = filled_rows(manifest, max(BATCHES) + UNUSED_ROWS)
    largest = max(1, min(circumstances.most_rows, available - min(UNUSED_ROWS, available // 3)))
    sizes = [
        (rows, source)
        for rows in sorted({min(rows, largest) for rows in BATCHES})
        for source in sorted({longest_source(manifest, rows, source) for source in (*SOURCES, longest)})
    ]
    return [expect(manifest, reference, rows, source) for rows, source in sizes]


def _check_steps(
    sessions: Sessions, expected: Sequence[ExpectedCase], report: ParityReport, circumstances: Circumstances
) -> Runtime:
    """Compares cached steps with the reference, times steps, and returns a runtime for many short rows."""
    manifest, document = sessions.bundle.manifest, report.document
    most = max(len(case.targets) for case in expected)
    runtime = _warm_runtime(sessions, filled_rows(manifest, most + UNUSED_ROWS))
    before = 0
    for planned in expected:
        if (rows := len(planned.targets)) != before:
            circumstances.say(f"comparing steps of {rows} rows" if rows > 1 else "comparing steps of one row")
        before = rows
        report.cases.append(simulate_serving(runtime, planned))
    document |= {
        "largest_difference": max(case.difference for case in report.cases),
        "largest_rounding": max(case.rounding for case in report.cases),
        "cases": [case.document() for case in report.cases],
    }
    tolerance = document["tolerance"]
    for case in report.cases:
        where = f"{case.rows} rows of up to {case.source} source tokens"
        if not case.difference <= case.allowed(tolerance):
            reference = document["reference"]
            excess = describe_excess("cached step", reference, case.difference, tolerance, case.rounding)
            report.failures.append(f"{excess} (in nats, with {where})")
        report.failures += sorted({f"{sentence}, with {where}" for sentence in case.stray_writes})
    del runtime
    runtime = Runtime(sessions, reserved_rows(manifest, GREEDY_ROWS))
    document["milliseconds"] = {} if is_emulated(manifest, sessions.device) else median_times(runtime)
    return runtime


def _not_checked(manifest: Manifest, with_model: bool, device: Device) -> list[str]:
    """Returns sentences on what the check does not cover."""
    sentences = []
    if not with_model:
        option = "--from-transformers MODEL" if manifest.origin else "--run RUN"
        sentences.append(f"whether cached step and scorer match the original model; {option} compares them with it")
    if manifest.precision in INTEGERS:
        sentences.append(f"what {manifest.precision} costs in quality: the manifest holds what was measured on data")
    elif is_emulated(manifest, device):
        sentences.append(
            "the bf16 graphs themselves, which no CPU runs: the check ran graphs in fp32 that round wherever those "
            "have a number in bf16; --device cuda runs the bf16 graphs"
        )
    elif device.kind == "cpu" and manifest.precision != "fp32":
        sentences.append(
            f"the rounding of {manifest.precision} on a GPU, because the CPU computes part of the graphs in fp32; "
            "--device cuda runs them there"
        )
    return sentences


@dataclass(frozen=True)
class ExpectedScores:
    """Random rows, and the scores that the trained model gives them.

    Attributes:
        sources, targets: Token ids of each row.
        exact: Log-probabilities and attention, see `TorchReference.scores`.
        rounding: Distance of the model in single precision from the exact result, likewise.
    """

    sources: list[list[int]]
    targets: list[list[int]]
    exact: tuple[Floats, Floats]
    rounding: tuple[float, float]


def expect_scores(manifest: Manifest, trained: TorchReference) -> list[ExpectedScores]:
    """Draws sources and targets of different lengths, the second target empty, and runs the model on them."""
    rng = np.random.default_rng(1)
    limits = manifest.limits
    batches = []
    for rows, longest in ((1, 1), (3, min(5, limits.max_source_tokens)), (17, limits.max_source_tokens)):
        sources = draw_sources(manifest, rows, longest_source(manifest, rows, longest), rng)
        most = longest_target(manifest, rows)
        lengths = [most, 0, *rng.integers(1, most + 1, rows)][:rows]
        targets = [rng.integers(0, manifest.shape.target_vocabulary, length).tolist() for length in lengths]
        exact = trained.scores(trained.precise, sources, targets)
        passes = [trained.scores(model, sources, targets) for model in trained.single_precision_models]
        scores, attention = (max(largest_difference(each[i], exact[i]) for each in passes) for i in (0, 1))
        batches.append(ExpectedScores(sources, targets, exact, (scores, attention)))
    return batches


def check_scorer(
    scorer: ScorerGraph, expected: Sequence[ExpectedScores], tolerance: float, failures: list[str]
) -> dict[str, float]:
    """Compares the scorer with the model."""
    worst = {"log_probabilities": 0.0, "cross_attention": 0.0}
    rounding = dict(worst)
    for batch in expected:
        found = scorer.scores(batch.sources, batch.targets)
        for name, ours, exact, rounded in zip(worst, found, batch.exact, batch.rounding, strict=True):
            worst[name] = max(worst[name], largest_difference(ours, exact))
            rounding[name] = max(rounding[name], rounded)
    for name, difference in worst.items():
        if not difference <= allowed_difference(tolerance, rounding[name]):
            failures.append(describe_excess(f"{name} of the scorer", "PyTorch", difference, tolerance, rounding[name]))
    return worst


def _check_head(runtime: Runtime, expected: ExpectedHead, tolerance: float, failures: list[str]) -> dict[str, float]:
    """Compares steps with edits, temperatures, shortlists and attention with the model."""
    differences = check_head_inputs(runtime, expected)
    for name, difference in differences.items():
        factor = 1 if name == "attention" else HEAD_TOLERANCE_FACTOR
        rounding = factor * expected.rounding[name]
        if not difference <= allowed_difference(factor * tolerance, rounding):
            subject = f"{name} of rows with edits or a shortlist"
            failures.append(describe_excess(subject, "PyTorch", difference, factor * tolerance, rounding))
    return differences
