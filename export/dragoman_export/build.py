"""Builds a bundle in a working directory: traces the graphs, quantizes them, checks parity and measures quality."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dragoman_export.bundle.bf16_on_cpu import runnable
from dragoman_export.bundle.options import CacheChoice, ExportOptions
from dragoman_export.bundle.write import write_files, write_manifest
from dragoman_export.checks.parity import Circumstances, check_bundle
from dragoman_export.checks.quality import NAMES, AnswerSet, ComparisonSet, DecodedSet, PairSet
from dragoman_export.checks.report import CheckFailedError, ParityReport
from dragoman_export.errors import ExportError
from dragoman_export.original import Original
from dragoman_export.precision.calibration import calibration_feeds
from dragoman_export.precision.quality_loss import check_judgeable, compare
from dragoman_export.precision.quantization_search import QuantizationTask, QuantizedBundle, quantize_within_limit
from dragoman_export.run_data import spread
from dragoman_export.shortlist.measure import ShortlistTask, add_shortlist
from dragoman_export.shortlist.pairs import shortlist_pairs
from dragoman_server.bundle.load import Bundle, load_bundle
from dragoman_server.bundle.manifest import INTEGERS, Integers, Precision
from dragoman_server.runtime.device import CPU, Device, DeviceError, choose_device

EXAMPLES = 6
HALVES: tuple[Precision, ...] = ("fp16", "bf16")  # for GPUs, where a shortlist gains nothing


@dataclass(frozen=True)
class BuildInput:
    """The input of a build.

    Attributes:
        original: The model to export.
        folder: An empty directory.
        options: Options of the export.
        say: Prints a line for the user.
        release: Gives back the memory of the model for now, if it can be read again.
    """

    original: Original
    folder: Path
    options: ExportOptions
    say: Callable[[str], None]
    release: Callable[[], None] = lambda: None

    @property
    def sets(self) -> list[PairSet]:
        """The data sets of a run; none for an imported model."""
        return [PairSet(name, pairs, self.original.metrics) for name, pairs in self.original.data.items()]

    @property
    def longest(self) -> PairSet:
        return PairSet("training", self.original.longest)

    def comparison_set(self, exact: Bundle) -> ComparisonSet:
        """Returns the data on which precisions are compared with fp32: dev if there is one."""
        return (
            self.sets[0]
            if self.original.data
            else AnswerSet(exact, spread(self.original.sources, self.options.check_samples))
        )


def build(work: BuildInput) -> tuple[Bundle, ParityReport]:
    """Builds a bundle somewhere in the working directory.

    Raises:
        ExportError: The device does not work, the check failed, or the loss of quality is too large or unknown.
    """
    precision = work.options.precision
    for integers in INTEGERS:
        if precision == integers:
            return _build_quantized(work, integers)
    bundle = _trace(work, precision)
    try:
        runnable_bundle, device = runnable(bundle, work.options.device, work.folder / "rounded")
    except DeviceError as error:
        raise ExportError(str(error)) from error
    report = _check(work, runnable_bundle, device)
    if precision == "fp32":
        return _finish(work, bundle, (runnable_bundle, device), report, {}, {}), report
    exact = _trace(work, "fp32")
    data = work.comparison_set(exact)
    work.say(f"measuring on {data.name} what {precision} changes")
    limit = work.options.max_quality_loss
    before = data.decode(exact, CPU)
    check_judgeable(before, data.name, precision, limit)
    after = data.decode(runnable_bundle, device)
    loss = compare((exact, runnable_bundle), (before, after), calibration_feeds(exact, data), device)
    if loss["points_lost"] > limit:
        raise ExportError(
            f"--precision {precision} loses {loss['points_lost']:g} points of quality; --max-quality-loss is {limit:g}"
        )
    loss = {"data": data.name} | loss
    return _finish(work, bundle, (runnable_bundle, device), report, loss, {data.name: after}), report


def _build_quantized(work: BuildInput, precision: Integers) -> tuple[Bundle, ParityReport]:
    """Checks the graphs in fp32 against the model, then quantizes them and measures what that loses."""
    try:
        choose_device(work.options.device, work.folder, precision)
    except DeviceError as error:
        raise ExportError(str(error)) from error
    exact = _trace(work, "fp32")
    exact_report = _check(work, exact, CPU)
    data = work.comparison_set(exact)
    work.say(f"quantizing them to {precision}, and measuring on {data.name} what that changes")
    before = data.decode(exact, CPU)
    limit = work.options.max_quality_loss
    check_judgeable(before, data.name, precision, limit)
    task = QuantizationTask(exact, work.folder / precision, precision, data, work.longest, before, limit, work.say)
    quantized, report = _quantize_and_check(work, task)
    decoded = before, quantized.decoded
    loss = compare((exact, quantized.bundle), decoded, calibration_feeds(exact, data), CPU)
    report.document["fp32"] = {
        key: exact_report.document[key] for key in ("reference", "tolerance", "largest_difference", "scorer", "choices")
    }
    loss = {"data": data.name} | loss | {"wider": quantized.wider}
    measured = {data.name: quantized.decoded}
    bundle = _finish(work, quantized.bundle, (quantized.bundle, CPU), report, loss, measured, exact)
    return bundle, report


def _quantize_and_check(work: BuildInput, task: QuantizationTask) -> tuple[QuantizedBundle, ParityReport]:
    """Quantizes and checks. With `--cache auto`, int8 caches that fail the check go back to floats."""
    cache: CacheChoice = work.options.cache
    quantized = quantize_within_limit(task, cache)
    try:
        return quantized, _check(work, quantized.bundle, CPU)
    except CheckFailedError as error:
        if quantized.bundle.manifest.cache == "float":
            raise
        if cache == "int8":
            message = f"{error}{short_data_note(task)} (--cache float keeps floats)"
            raise CheckFailedError(message, error.report) from error
        work.say(f"with integer caches, {error}: back to float caches")
    quantized = quantize_within_limit(task, "float")
    return quantized, _check(work, quantized.bundle, CPU)


def short_data_note(task: QuantizationTask) -> str:
    """Returns why cache scales may not fit longer texts: no calibration data was long. Empty if some was."""
    limits = task.exact.manifest.limits
    dev_feeds, train_feeds = (calibration_feeds(task.exact, data) for data in (task.data, task.longest))
    short = []
    for side, limit in (("source", limits.max_source_tokens), ("target", limits.max_target_tokens)):
        dev, train = (
            max((feed[f"{side}_ids"].size for feed in feeds), default=0) for feeds in (dev_feeds, train_feeds)
        )
        if dev < max(train, limit):
            seen = f"{dev} tokens in {task.data.name}" + (f" and {train} in training" if train else "")
            short.append(f"the longest {side} has {seen}, and the limit is {limit}")
    if not short:
        return ""
    return f"; {'; '.join(short)}: scales that were found on short texts may not fit longer ones"


def _trace(work: BuildInput, precision: Precision) -> Bundle:
    """Writes a bundle whose graphs compute what the modules do, in a precision of PyTorch."""
    work.say(f"tracing the graphs in {precision}")
    folder = work.folder / precision
    folder.mkdir()
    options = replace(work.options, precision=precision)
    typical = spread(work.original.sources, EXAMPLES) if work.original.typical else []
    write_manifest(write_files(work.original, folder, options, options.examples or typical), folder)
    gc.collect()  # what PyTorch's exporter leaves behind refers to itself, and holds the weights
    return load_bundle(folder)


def _check(work: BuildInput, bundle: Bundle, device: Device) -> ParityReport:
    work.say(f"comparing the graphs in {bundle.manifest.precision} with the model, on {device}")
    samples = work.options.check_samples
    texts = spread(work.original.sources, samples)
    circumstances = Circumstances(samples, work.say, work.release)
    report = check_bundle(bundle, work.original.model, texts, device, circumstances)
    work.release()
    if report.failures:
        raise CheckFailedError(f"the check failed, so no bundle was made: {report.failures[0]}", report)
    return report


def _finish(
    work: BuildInput,
    bundle: Bundle,
    runnable_bundle: tuple[Bundle, Device],
    report: ParityReport,
    loss: dict[str, Any],
    decoded: dict[str, DecodedSet],
    exact: Bundle | None = None,
) -> Bundle:
    """Measures the quality on sets that are not decoded yet, writes all results into the manifest, adds a shortlist."""
    if work.sets:
        work.say("measuring their quality")
    decoded |= {data.name: data.decode(*runnable_bundle) for data in work.sets if data.name not in decoded}
    quality = {
        f"{data.name} {NAMES[metric]}": round(value, 3)
        for data in work.sets
        for metric, value in decoded[data.name].scores.items()
    }
    update = {"parity": report.document, "quality": quality, "loss": loss}
    write_manifest(bundle.manifest.model_copy(update=update), bundle.path)
    bundle = load_bundle(bundle.path)
    return bundle if bundle.manifest.precision in HALVES else _with_shortlist(work, bundle, exact, decoded)


def _with_shortlist(
    work: BuildInput, bundle: Bundle, exact: Bundle | None, decoded: Mapping[str, DecodedSet]
) -> Bundle:
    """Adds a lexical shortlist if there is to be one."""
    vocabulary = bundle.manifest.shape.target_vocabulary
    pairs = shortlist_pairs(work.original, work.options, vocabulary, work.say)
    if pairs is None:
        return bundle
    data = work.comparison_set(exact or bundle)
    if pairs.held_out and not work.original.data:
        data = PairSet("held-out pairs", pairs.held_out, work.original.metrics or ["bleu"])
    before = decoded.get(data.name) or data.decode(bundle, CPU)
    return add_shortlist(ShortlistTask(bundle, pairs.aligned, data, before, work.say))
