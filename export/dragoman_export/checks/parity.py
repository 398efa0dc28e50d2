"""The parity check: the graphs, run by the server's runtime, against the model that they were exported from."""

from collections.abc import Sequence

import numpy as np
import onnxruntime as ort
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from dragoman_export.bundle.bf16_on_cpu import is_emulated
from dragoman_export.checks.greedy_parity import compare_greedy, compare_greedy_agreement, repeat_greedy
from dragoman_export.checks.head_inputs import check_head_inputs
from dragoman_export.checks.references import Reference, ScorerGraph, TorchReference
from dragoman_export.checks.report import ParityReport
from dragoman_export.checks.serving_simulation import draw_sources, longest_target, simulate_serving
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


def check_bundle(bundle: Bundle, model: Transformer | None, texts: Sequence[str], device: Device) -> ParityReport:
    """Compares the graphs of a bundle with their model.

    Args:
        bundle: The loaded bundle, so its files match the manifest.
        model: The trained model. Without it the bundle is compared with itself: its cached step with its scorer, and
            its greedy answers with those in the manifest. So is a quantized bundle, which computes something other than
            the model; only its greedy answers are compared with those of the model.
        texts: Sources to decode greedily with model and graphs. Those beyond the model's limit are left out.
        device: Device to run the graphs on.

    Raises:
        ExportError: The graphs cannot run, or are not those of the manifest.
    """
    try:
        return _check(bundle, model, texts, device)
    except BundleError as error:
        raise ExportError(str(error)) from error
    except _RUNTIME_ERRORS as error:
        raise ExportError(f"the graphs of {bundle.path} can't be run: {first_line(error)}") from error


def _check(bundle: Bundle, model: Transformer | None, texts: Sequence[str], device: Device) -> ParityReport:
    manifest = bundle.manifest
    threads = usable_cpus()
    sessions = Sessions(bundle, device, threads)
    scorer = ScorerGraph(bundle, device, threads)
    runtime = _warmed_up(sessions, scorer)
    trained = None if model is None else TorchReference(model, manifest.tokens)
    quantized = manifest.precision in INTEGERS
    reference: Reference = scorer if trained is None or quantized else trained
    tolerance = TOLERANCE[manifest.precision]
    report = _check_steps(runtime, reference, tolerance)
    document, failures = report.document, report.failures
    document |= {
        "device": str(device),
        "onnxruntime": ort.__version__,
        "torch": torch.__version__,
        "not_checked": _not_checked(manifest, trained is not None, device),
    }
    runtime = Runtime(sessions, GREEDY_ROWS)
    if trained is None:
        document["greedy"] = repeat_greedy(bundle, runtime, failures)
    elif quantized:
        document["greedy"] = compare_greedy_agreement(bundle, runtime, trained, texts, failures)
    else:
        document["scorer"] = check_scorer(manifest, scorer, trained, tolerance, failures)
        document["choices"] = _check_head(runtime, trained, tolerance, failures)
        document["greedy"] = compare_greedy(bundle, runtime, trained, texts, tolerance, failures)
    document["milliseconds"] = {} if is_emulated(manifest, device) else median_times(runtime)
    return report


def _warmed_up(sessions: Sessions, scorer: ScorerGraph) -> Runtime:
    """Runs the graphs and the scorer once at the manifest's limits, and returns the runtime.

    Raises:
        ExportError: They do not run as the manifest says, or run out of memory.
    """
    bundle, device = sessions.bundle, sessions.device
    limits, end = bundle.manifest.limits, bundle.manifest.tokens.end
    try:
        runtime = Runtime(sessions, max(BATCHES) + UNUSED_ROWS)
        runtime.warm_up()
        scorer.scores([[end] * limits.max_source_tokens], [[end] * limits.max_target_tokens])
    except Exception as error:  # NumPy and ONNX Runtime raise various types where shapes disagree
        if is_out_of_memory(error):
            raise ExportError(
                f"{device} ran out of memory while checking {bundle.path}: {first_line(error)}"
            ) from error
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ExportError(f"{bundle.path}: the graphs do not run as the manifest says: {reason}") from error
    return runtime


def _check_steps(runtime: Runtime, reference: Reference, tolerance: float) -> ParityReport:
    """Compares cached steps with the reference, for batches and sources of all sizes up to the maximum."""
    longest = runtime.manifest.limits.max_source_tokens
    sources = sorted({min(source, longest) for source in (*SOURCES, longest)})
    cases = [simulate_serving(runtime, reference, rows, source) for rows in BATCHES for source in sources]
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
        sources = draw_sources(manifest, rows, longest, rng)
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
