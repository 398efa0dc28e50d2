"""Parity: the graphs, run by the server's own runtime, against the model they were made of."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from dragoman_export.bundle.bf16_on_cpu import stood_in_for
from dragoman_export.checks.head_inputs import check_head_inputs
from dragoman_export.checks.offline_decoding import greedy, within_limit
from dragoman_export.checks.recorded import recorded
from dragoman_export.checks.references import Reference, ScorerGraph, TorchReference, largest_difference
from dragoman_export.checks.serving_simulation import ALLOWANCE, Walk, draw_sources, limit, walk
from dragoman_export.errors import ExportError
from dragoman_server.bundle.load import Bundle, BundleError
from dragoman_server.bundle.manifest import INTEGERS, Manifest, Precision
from dragoman_server.machine import usable_cpus
from dragoman_server.runtime.device import Device, DeviceError, first_line, is_out_of_memory
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from dragoman_training.evaluation.greedy import greedy as torch_greedy
from dragoman_training.model import Transformer

# In nats. Two ways to the same integers may round a number that lies between two of them differently: seldom, and then
# by a whole step.
TOLERANCE: dict[Precision, float] = {
    "fp32": 1e-4,
    "fp16": 1e-1,
    "bf16": 1.0,
    "int8": 1.0,
    "int8-weights": 1.0,
    "int4": 1.0,
}
BATCHES = (1, 2, 3, 17)
SOURCES = (1, 2, 5)  # and the longest there may be
TIMED_ROWS = (1, 8, 32)
CHOICE_ALLOWANCE = 4  # times the tolerance: a penalty or a low temperature multiplies the rounding
UNUSED = 2  # rows that no step may touch
GREEDY_ROWS = max(TIMED_ROWS)
KEPT_ANSWERS = 32  # greedy answers that the manifest holds, for a check without the model
TORCH_CHUNK = 64
SLACK = 0.02  # share of greedy answers to near ties, which another CPU may settle otherwise
# ONNX Runtime's exceptions have no base of their own; with an IO binding they are plain RuntimeErrors.
_RUNTIME_ERRORS = (RuntimeError, DeviceError, ort_errors.Fail, ort_errors.InvalidArgument, ort_errors.NotImplemented)


@dataclass
class ParityReport:
    """The outcome of a check.

    Attributes:
        document: what the manifest keeps under `parity`.
        walks: the cases, for the table.
        failures: one sentence each; empty where all is well.
    """

    document: dict[str, Any]
    walks: list[Walk]
    failures: list[str] = field(default_factory=list)


def check_bundle(bundle: Bundle, model: Transformer | None, texts: Sequence[str], device: Device) -> ParityReport:
    """Compares what the graphs of a bundle compute with what they should.

    Args:
        bundle: as loaded, so its files are what its manifest says.
        model: the trained model. Without it, or where the bundle's weights are integers, which compute something else,
            the bundle is compared with itself: its cached step with its scorer, and its greedy answers with those that
            its manifest holds. Of integers and the model only the greedy answers are compared.
        texts: sources to decode greedily with the model and the graphs, those beyond the model's limit left out.
        device: to run the graphs on.

    Raises:
        ExportError: the graphs can't be run, or are not those of the manifest.
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
    runtime = _tried_out(sessions, scorer)
    trained = None if model is None else TorchReference(model, manifest.tokens)
    integers = manifest.precision in INTEGERS
    reference: Reference = scorer if trained is None or integers else trained
    tolerance = TOLERANCE[manifest.precision]

    longest = manifest.limits.max_source_tokens
    sources = sorted({min(source, longest) for source in (*SOURCES, longest)})
    walks = [walk(runtime, reference, rows, source) for rows in BATCHES for source in sources]
    document: dict[str, Any] = {
        "reference": reference.name,
        "tolerance": tolerance,
        "largest_difference": max(found.difference for found in walks),
        "largest_rounding": max(found.rounding for found in walks),
        "cases": [{k: v for k, v in vars(found).items() if k != "stray"} for found in walks],
        "device": str(device),
        "onnxruntime": ort.__version__,
        "torch": torch.__version__,
        "not_checked": _not_checked(manifest, trained is not None, device),
    }
    report = ParityReport(document, walks)
    for found in walks:
        where = f"{found.rows} rows of up to {found.source} source tokens"
        if not found.difference <= found.limit(tolerance):
            refusal = _refusal("cached step", reference.name, found.difference, tolerance, found.rounding)
            report.failures.append(f"{refusal} (in nats, with {where})")
        report.failures += sorted({f"{sentence}, with {where}" for sentence in found.stray})

    runtime = Runtime(sessions, GREEDY_ROWS)
    if trained is not None and integers:
        document["greedy"] = _agreement(bundle, runtime, trained, texts, report.failures)
    elif trained is not None:
        document["scorer"] = _check_scorer(runtime, scorer, trained, tolerance, report.failures)
        document["choices"] = _check_choices(runtime, trained, tolerance, report.failures)
        document["greedy"] = _compare_greedy(bundle, runtime, trained, texts, tolerance, report.failures)
    else:
        document["greedy"] = _repeat_greedy(bundle, runtime, report.failures)
    document["milliseconds"] = {} if stood_in_for(manifest, device) else _timings(runtime)
    return report


def _tried_out(sessions: Sessions, scorer: ScorerGraph) -> Runtime:
    """A runtime whose graphs have run, and the scorer has too, to the manifest's limits.

    Raises:
        ExportError: they do not run as the manifest says, or there is too little memory.
    """
    bundle, device = sessions.bundle, sessions.device
    limits, end = bundle.manifest.limits, bundle.manifest.tokens.end
    try:
        runtime = Runtime(sessions, max(BATCHES) + UNUSED)
        runtime.warm_up()
        scorer.scores([[end] * limits.max_source_tokens], [[end] * limits.max_target_tokens])
    except Exception as error:  # whatever NumPy and ONNX Runtime raise where shapes disagree
        if is_out_of_memory(error):
            raise ExportError(f"{device} has not enough memory to check {bundle.path}: {first_line(error)}") from error
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ExportError(f"{bundle.path}: the graphs do not run as the manifest says: {reason}") from error
    return runtime


def _not_checked(manifest: Manifest, trained: bool, device: Device) -> list[str]:
    """What this check says nothing about, as sentences."""
    sentences = []
    if not trained:
        sentences.append("whether cached step and scorer are what was trained; --run RUN compares them with the run")
    if manifest.precision in INTEGERS:
        sentences.append(f"what {manifest.precision} costs: the manifest says what was measured on data")
    elif stood_in_for(manifest, device):
        sentences.append(
            "the graphs in bf16 themselves, which no CPU runs: graphs in fp32 were, which round wherever those have a "
            "number in bf16; --device cuda runs them"
        )
    elif device.kind == "cpu" and manifest.precision != "fp32":
        sentences.append(
            f"the rounding of {manifest.precision} on a GPU, because the CPU computes part of the graphs in fp32; "
            "--device cuda runs them there"
        )
    return sentences


def _check_scorer(
    runtime: Runtime, scorer: ScorerGraph, trained: TorchReference, tolerance: float, failures: list[str]
) -> dict[str, float]:
    """Targets of different length, none of them empty but the second, over sources of different length."""
    rng = np.random.default_rng(1)
    limits = runtime.manifest.limits
    worst = {"log_probabilities": 0.0, "cross_attention": 0.0}
    rounding = dict(worst)
    for rows, longest in ((1, 1), (3, min(5, limits.max_source_tokens)), (17, limits.max_source_tokens)):
        sources = draw_sources(runtime, rows, longest, rng)
        lengths = [limits.max_target_tokens, 0, *rng.integers(1, limits.max_target_tokens + 1, rows)][:rows]
        vocabulary = runtime.manifest.shape.target_vocabulary
        targets = [rng.integers(0, vocabulary, length).tolist() for length in lengths]
        exact = trained.scores(trained.precise, sources, targets)
        for name, a, b in zip(worst, scorer.scores(sources, targets), exact, strict=True):
            worst[name] = max(worst[name], largest_difference(a, b))
        for model in trained.singles:
            for name, a, b in zip(worst, trained.scores(model, sources, targets), exact, strict=True):
                rounding[name] = max(rounding[name], largest_difference(a, b))
    for name, difference in worst.items():
        if not difference <= limit(tolerance, rounding[name]):
            failures.append(_refusal(f"{name} of the scorer", "PyTorch", difference, tolerance, rounding[name]))
    return worst


def _refusal(what: str, reference: str, difference: float, tolerance: float, rounding: float) -> str:
    """What was seen of two that differ, and what was expected."""
    if limit(tolerance, rounding) > tolerance:
        most = f"{ALLOWANCE} times the {rounding:.2g} that rounding to single precision changes for this model"
    else:
        most = f"the tolerance, of which rounding to single precision takes {rounding:.2g} for this model"
    allowed = limit(tolerance, rounding)
    return f"{what} and {reference} differ by {difference:.2g}; expected at most {allowed:.2g}, {most}"


def _check_choices(
    runtime: Runtime, trained: TorchReference, tolerance: float, failures: list[str]
) -> dict[str, float]:
    """LogitEdits, temperatures, vocabularies and attention of a step."""
    found, rounding = check_head_inputs(runtime, trained)
    for name, difference in found.items():
        allowance = 1 if name == "attention" else CHOICE_ALLOWANCE
        seen = allowance * rounding[name]
        if not difference <= limit(allowance * tolerance, seen):
            what = f"{name} of rows with edits or a vocabulary"
            failures.append(_refusal(what, "PyTorch", difference, allowance * tolerance, seen))
    return found


def _compare_greedy(
    bundle: Bundle,
    runtime: Runtime,
    trained: TorchReference,
    texts: Sequence[str],
    tolerance: float,
    failures: list[str],
) -> dict[str, Any]:
    """Greedy answers of graphs and model; where they part, both tokens must have been equally likely."""
    found = _both_greedy(bundle, runtime, trained, texts, failures)
    sources, answers, expected = found.sources, found.answers, found.expected
    different = [i for i, answer in enumerate(answers) if answer != expected[i]]
    ties = [i for i in different if _tie(trained, sources[i], answers[i], expected[i], tolerance)]
    if len(ties) < len(different):
        text = next(found.texts[i] for i in different if i not in ties)
        failures.append(
            f"greedy answers of graphs and PyTorch differ for {len(different) - len(ties)} "
            f"of {len(sources)} sources, the first of which is {text!r}"
        )
    return found.document | {"ties": len(ties)}


def _agreement(
    bundle: Bundle, runtime: Runtime, trained: TorchReference, texts: Sequence[str], failures: list[str]
) -> dict[str, Any]:
    """How many greedy answers of graphs and model are equal; no fewer than when the bundle was made."""
    found = _both_greedy(bundle, runtime, trained, texts, failures)
    before = recorded(bundle).greedy
    expected = before.equal if before.sources == len(found.sources) else 0
    if found.equal < expected - SLACK * len(found.sources):
        failures.append(
            f"greedy answers of graphs and PyTorch are equal for {found.equal} of {len(found.sources)} sources, and "
            f"were for {expected} when the bundle was made"
        )
    return found.document


@dataclass
class _Greedy:
    """Greedy answers of graphs and model to the same sources."""

    texts: list[str]
    sources: list[list[int]]
    answers: list[list[int]]
    expected: list[list[int]]
    seconds: tuple[float, float]

    @property
    def equal(self) -> int:
        return sum(a == b for a, b in zip(self.answers, self.expected, strict=True))

    @property
    def document(self) -> dict[str, Any]:
        graphs, pytorch = self.seconds
        return {
            "sources": len(self.sources),
            "equal": self.equal,
            "seconds_graphs": round(graphs, 3),
            "seconds_pytorch": round(pytorch, 3),
            "answers": [list(pair) for pair in zip(self.texts, self.answers, strict=True)][:KEPT_ANSWERS],
        }


def _both_greedy(
    bundle: Bundle, runtime: Runtime, trained: TorchReference, texts: Sequence[str], failures: list[str]
) -> _Greedy:
    limits = bundle.manifest.limits
    kept = list(within_limit(bundle.source_tokenizer, texts, limits.max_source_tokens))
    sources = [ids for _, ids in kept]
    if not sources:
        failures.append(
            f"none of the {len(texts)} sources to compare greedy answers on is within the limit of "
            f"{limits.max_source_tokens} tokens"
        )
    start = time.perf_counter()
    answers = greedy(runtime, sources)
    middle = time.perf_counter()
    expected: list[list[int]] = []
    for i in range(0, len(sources), TORCH_CHUNK):
        expected += torch_greedy(trained.trained, sources[i : i + TORCH_CHUNK], limits.max_target_tokens)
    seconds = middle - start, time.perf_counter() - middle
    return _Greedy([text for text, _ in kept], sources, answers, expected, seconds)


def _tie(trained: TorchReference, source: list[int], a: list[int], b: list[int], tolerance: float) -> bool:
    """Whether the first tokens in which two answers differ are as likely to the model as each may be off."""
    end = trained.tokens.end
    a, b = [*a, end], [*b, end]
    place = next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    targets = np.array([a[: place + 1]], np.int64)
    exact = trained.log_probabilities([source], targets)
    apart = abs(exact[0, place, a[place]] - exact[0, place, b[place]])
    return bool(apart <= 2 * limit(tolerance, trained.rounding([source], targets, exact)))


def _repeat_greedy(bundle: Bundle, runtime: Runtime, failures: list[str]) -> dict[str, Any]:
    """Greedy answers to the sources whose answers the manifest holds."""
    answers = recorded(bundle).greedy.answers
    if not answers:
        failures.append("the manifest holds no greedy answers to compare with, so pass --run RUN")
        return {"sources": 0, "equal": 0}
    texts = [text for text, _ in answers]
    sources = [encoding.ids for encoding in bundle.source_tokenizer.encode_batch(texts)]
    equal = [answer == kept for answer, (_, kept) in zip(greedy(runtime, sources), answers, strict=True)]
    if not all(equal):
        failures.append(
            f"greedy answers are not those of the manifest for {equal.count(False)} of {len(equal)} sources, "
            f"the first of which is {texts[equal.index(False)]!r}"
        )
    return {"sources": len(equal), "equal": equal.count(True)}


def _timings(runtime: Runtime) -> dict[str, Any]:
    """Medians, rows in the middle of their targets over short sources; for orientation, on whatever machine this is."""
    rng = np.random.default_rng(2)
    sources = draw_sources(runtime, max(TIMED_ROWS), min(16, runtime.source_capacity), rng)
    result: dict[str, Any] = {"encode": {}, "step": {}}
    for rows in TIMED_ROWS:
        result["encode"][str(rows)] = _median_milliseconds(lambda rows=rows: runtime.encode(sources[:rows], 0), 10)
    runtime.positions[:] = runtime.target_capacity // 2
    for rows in TIMED_ROWS:
        result["step"][str(rows)] = _median_milliseconds(lambda rows=rows: runtime.top(rows, 1), 30)
    return result


def _median_milliseconds(work: Any, times: int) -> float:
    work()
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        spent.append(1e3 * (time.perf_counter() - start))
    return round(median(spent), 3)
