"""The parity check: the graphs, run by the server's runtime, against the model that they were exported from."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import onnxruntime as ort
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from dragoman_export.bundle.bf16_on_cpu import is_emulated
from dragoman_export.checks.affordable import filled_rows, longest_source, longest_target, reserved_rows
from dragoman_export.checks.greedy_parity import compare_greedy, compare_greedy_agreement, repeat_greedy
from dragoman_export.checks.head_inputs import check_head_inputs
from dragoman_export.checks.references import Reference, ScorerGraph, TorchReference
from dragoman_export.checks.report import ParityReport
from dragoman_export.checks.serving_simulation import draw_sources, simulate_serving
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


def silent(_: str) -> None:
    """Ignores a line."""


# ONNX Runtime's exceptions have no common base; with an IO binding they are plain RuntimeErrors.
_RUNTIME_ERRORS = (RuntimeError, DeviceError, ort_errors.Fail, ort_errors.InvalidArgument, ort_errors.NotImplemented)


def check_bundle(
    bundle: Bundle,
    model: Transformer | None,
    texts: Sequence[str],
    device: Device,
    *,
    most_rows: int = max(BATCHES),
    say: Callable[[str], None] = silent,
) -> ParityReport:
    """Compares the graphs of a bundle with their model. Large models are compared on fewer and shorter rows.

    Args:
        bundle: The loaded bundle, so its files match the manifest.
        model: The trained model. Without it the bundle is compared with itself: its cached step with its scorer, and
            its greedy answers with those in the manifest. So is a quantized bundle, which computes something other than
            the model; only its greedy answers are compared with those of the model.
        texts: Sources to decode greedily with model and graphs. Those beyond the model's limit are left out.
        device: Device to run the graphs on.
        most_rows: Rows of the largest batch to compare.
        say: Prints a line on the progress.

    Raises:
        ExportError: The graphs cannot run, or are not those of the manifest.
    """
    try:
        return _check(bundle, model, texts, device, most_rows, say)
    except BundleError as error:
        raise ExportError(str(error)) from error
    except _RUNTIME_ERRORS as error:
        raise ExportError(f"the graphs of {bundle.path} can't be run: {first_line(error)}") from error


def _check(
    bundle: Bundle,
    model: Transformer | None,
    texts: Sequence[str],
    device: Device,
    most_rows: int,
    say: Callable[[str], None],
) -> ParityReport:
    manifest = bundle.manifest
    sessions = Sessions(bundle, device, usable_cpus())
    trained = None if model is None else TorchReference(model, manifest.tokens)
    own = trained is None or manifest.precision in INTEGERS
    # Where PyTorch is the reference, the scorer is loaded after the other graphs, as each holds all weights.
    reference: Reference = _warm_scorer(bundle, device) if trained is None or own else trained
    runtime = _warm_runtime(sessions, most_rows)
    tolerance = TOLERANCE[manifest.precision]
    report = _check_steps(runtime, reference, tolerance, most_rows, say)
    document, failures = report.document, report.failures
    document |= {
        "device": str(device),
        "onnxruntime": ort.__version__,
        "torch": torch.__version__,
        "not_checked": _not_checked(manifest, trained is not None, device),
    }
    runtime = Runtime(sessions, reserved_rows(manifest, GREEDY_ROWS))
    document["milliseconds"] = {} if is_emulated(manifest, device) else median_times(runtime)
    if trained is None:
        document["greedy"] = repeat_greedy(bundle, runtime, failures)
        return report
    say(f"comparing answers to {len(texts)} texts")
    if own:
        document["greedy"] = compare_greedy_agreement(bundle, runtime, trained, texts, failures)
        return report
    document["choices"] = _check_head(runtime, trained, tolerance, failures)
    document["greedy"] = compare_greedy(bundle, runtime, trained, texts, tolerance, failures)
    del sessions, runtime
    say("comparing the scorer")
    document["scorer"] = check_scorer(manifest, _warm_scorer(bundle, device), trained, tolerance, failures)
    return report


def _warm_runtime(sessions: Sessions, most_rows: int) -> Runtime:
    """Runs encoder and decoder once at the manifest's limits, and returns the runtime."""
    with _explained(sessions.bundle, sessions.device):
        manifest = sessions.bundle.manifest
        runtime = Runtime(sessions, filled_rows(manifest, min(most_rows, max(BATCHES)) + UNUSED_ROWS))
        runtime.warm_up()
    return runtime


def _warm_scorer(bundle: Bundle, device: Device) -> ScorerGraph:
    """Runs the scorer once at the manifest's limits, and returns it."""
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


def _check_steps(
    runtime: Runtime, reference: Reference, tolerance: float, most_rows: int, say: Callable[[str], None]
) -> ParityReport:
    """Compares cached steps with the reference, for batches and sources of all sizes up to the maximum."""
    manifest = runtime.manifest
    longest = manifest.limits.max_source_tokens
    largest = max(1, min(most_rows, runtime.max_rows - min(UNUSED_ROWS, runtime.max_rows // 3)))
    cases = []
    for rows in sorted({min(rows, largest) for rows in BATCHES}):
        say(f"comparing steps of {rows} rows")
        sources = sorted({longest_source(manifest, rows, source) for source in (*SOURCES, longest)})
        cases += [simulate_serving(runtime, reference, rows, source) for source in sources]
    document = {
        "reference": reference.name,
        "tolerance": tolerance,
        "largest_difference": max(case.difference for case in cases),
        "largest_rounding": max(case.rounding for case in cases),
        "cases": [case.document() for case in cases],
    }
    report = ParityReport(document, cases)
    for case in cases:
        where = f"{case.rows} rows of up to {case.source} source tokens"
        if not case.difference <= case.allowed(tolerance):
            excess = describe_excess("cached step", reference.name, case.difference, tolerance, case.rounding)
            report.failures.append(f"{excess} (in nats, with {where})")
        report.failures += sorted({f"{sentence}, with {where}" for sentence in case.stray_writes})
    return report


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


def check_scorer(
    manifest: Manifest, scorer: ScorerGraph, trained: TorchReference, tolerance: float, failures: list[str]
) -> dict[str, float]:
    """Compares the scorer with the model, on sources and targets of different lengths, the second target empty."""
    rng = np.random.default_rng(1)
    limits = manifest.limits
    worst = {"log_probabilities": 0.0, "cross_attention": 0.0}
    rounding = dict(worst)
    for rows, longest in ((1, 1), (3, min(5, limits.max_source_tokens)), (17, limits.max_source_tokens)):
        sources = draw_sources(manifest, rows, longest_source(manifest, rows, longest), rng)
        most = longest_target(manifest, rows)
        lengths = [most, 0, *rng.integers(1, most + 1, rows)][:rows]
        targets = [rng.integers(0, manifest.shape.target_vocabulary, length).tolist() for length in lengths]
        exact = trained.scores(trained.precise, sources, targets)
        for name, a, b in zip(worst, scorer.scores(sources, targets), exact, strict=True):
            worst[name] = max(worst[name], largest_difference(a, b))
        for model in trained.single_precision_models:
            for name, a, b in zip(worst, trained.scores(model, sources, targets), exact, strict=True):
                rounding[name] = max(rounding[name], largest_difference(a, b))
    for name, difference in worst.items():
        if not difference <= allowed_difference(tolerance, rounding[name]):
            failures.append(describe_excess(f"{name} of the scorer", "PyTorch", difference, tolerance, rounding[name]))
    return worst


def _check_head(runtime: Runtime, trained: TorchReference, tolerance: float, failures: list[str]) -> dict[str, float]:
    """Compares steps with edits, temperatures, shortlists and attention with the model."""
    differences = check_head_inputs(runtime, trained)
    for name, difference in differences.graphs.items():
        factor = 1 if name == "attention" else HEAD_TOLERANCE_FACTOR
        rounding = factor * differences.rounding[name]
        if not difference <= allowed_difference(factor * tolerance, rounding):
            subject = f"{name} of rows with edits or a shortlist"
            failures.append(describe_excess(subject, "PyTorch", difference, factor * tolerance, rounding))
    return differences.graphs
