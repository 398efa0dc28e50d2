"""From a run to a bundle in a working directory: traced, made narrower, checked and measured."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dragoman_export.bundle.bf16_on_cpu import runnable
from dragoman_export.bundle.write import CacheChoice, ExportOptions, write_files, write_manifest
from dragoman_export.checks.parity import ParityReport, check_bundle
from dragoman_export.checks.quality import NAMES, Decoded, decode
from dragoman_export.errors import CheckFailedError, ExportError
from dragoman_export.precision.quality_loss import check_judgeable, compare
from dragoman_export.precision.quantization_search import Found, example_feeds, search
from dragoman_export.run_data import spread
from dragoman_server.bundle.load import Bundle, load_bundle
from dragoman_server.bundle.manifest import INTEGERS, Integers, Precision
from dragoman_server.runtime.device import CPU, Device, DeviceError, choose_device
from dragoman_training.data.pairs import Pair
from dragoman_training.run.load import Run

GREEDY_SOURCES = 256  # decoded by model and graphs
EXAMPLES = 6


@dataclass(frozen=True)
class Work:
    """What an export works with.

    Attributes:
        data: pairs by the name of the set, at least one.
        longest: training pairs, longer ones than which the run has none; may be empty.
        place: an empty directory.
        say: takes lines for the user.
    """

    run: Run
    data: dict[str, list[Pair]]
    longest: list[Pair]
    place: Path
    options: ExportOptions
    say: Callable[[str], None]

    @property
    def sources(self) -> list[str]:
        return [pair.source for pairs in self.data.values() for pair in pairs]

    @property
    def measured(self) -> tuple[str, list[Pair]]:
        """Name and pairs of the set on which precisions are compared: dev where there is one."""
        return next(iter(self.data.items()))

    def decode(self, bundle: Bundle, device: Device, pairs: list[Pair]) -> Decoded:
        return decode(bundle, device, pairs, self.run.recipe.evaluation.metrics)


def build(work: Work) -> tuple[Bundle, ParityReport]:
    """Makes a bundle somewhere in the working directory.

    Raises:
        ExportError: the device does not work, the check failed, or more quality is lost than may be, or nobody can say.
    """
    precision = work.options.precision
    for integers in INTEGERS:
        if precision == integers:
            return _build_integers(work, integers)
    bundle = _trace(work, precision)
    try:
        tried, device = runnable(bundle, work.options.device, work.place / "rounded")
    except DeviceError as error:
        raise ExportError(str(error)) from error
    report = _check(work, tried, device)
    if precision == "fp32":
        return _finish(work, bundle, (tried, device), report, {}, {}), report
    exact = _trace(work, "fp32")
    name, pairs = work.measured
    work.say(f"measuring on {name} what {precision} changes")
    limit = work.options.max_quality_loss
    before = work.decode(exact, CPU, pairs)
    check_judgeable(before, name, precision, limit)
    decoded = before, work.decode(tried, device, pairs)
    loss = compare((exact, tried), decoded, example_feeds(exact, pairs), device)
    if loss["points_lost"] > limit:
        points = loss["points_lost"]
        raise ExportError(
            f"--precision {precision} loses {points:g} points of quality; --max-quality-loss is {limit:g}"
        )
    return _finish(work, bundle, (tried, device), report, {"data": name} | loss, {name: decoded[1]}), report


def _build_integers(work: Work, precision: Integers) -> tuple[Bundle, ParityReport]:
    """The graphs are checked in fp32; of the integers in their place only what is lost by them is to be known."""
    try:
        choose_device(work.options.device, work.place, precision)
    except DeviceError as error:
        raise ExportError(str(error)) from error
    exact = _trace(work, "fp32")
    checked = _check(work, exact, CPU)
    name, pairs = work.measured
    work.say(f"making {precision} of them, and measuring on {name} what that changes")
    before = work.decode(exact, CPU, pairs)
    check_judgeable(before, name, precision, work.options.max_quality_loss)

    def find(cache: CacheChoice) -> Found:
        folder, limit = work.place / precision, work.options.max_quality_loss
        return search(exact, folder, precision, pairs, work.longest, before, limit, cache, work.say)

    found = find(work.options.cache)
    try:
        report = _check(work, found.bundle, CPU)
    except CheckFailedError as error:
        if found.bundle.manifest.cache == "float":
            raise
        if work.options.cache == "int8":
            raise CheckFailedError(
                f"{error}{_shortness(work, exact)} (--cache float keeps floats)", error.report
            ) from error
        work.say(f"with integers in the caches {error}: floats again")
        found = find("float")
        report = _check(work, found.bundle, CPU)
    loss = compare((exact, found.bundle), (before, found.decoded), example_feeds(exact, pairs), CPU)
    report.document["fp32"] = {
        key: checked.document[key] for key in ("reference", "tolerance", "largest_difference", "scorer", "choices")
    }
    loss = {"data": name} | loss | {"wider": found.wider}
    return _finish(work, found.bundle, (found.bundle, CPU), report, loss, {name: found.decoded}), report


def _shortness(work: Work, exact: Bundle) -> str:
    """Why integers in the caches may not hold what longer texts bring: nothing, or too little, was long enough."""
    limits = exact.manifest.limits
    name, pairs = work.measured
    shown, longest = example_feeds(exact, pairs), example_feeds(exact, work.longest)
    short = []
    for side, limit in (("source", limits.max_source_tokens), ("target", limits.max_target_tokens)):
        dev, train = (max((feed[f"{side}_ids"].size for feed in feeds), default=0) for feeds in (shown, longest))
        if dev < max(train, limit):
            known = f"{dev} tokens in {name}" + (f" and {train} in training" if train else "")
            short.append(f"the longest {side} has {known}, and the limit is {limit}")
    if not short:
        return ""
    return f"; {'; '.join(short)}: scales that were found on short texts may not do for longer ones"


def _trace(work: Work, precision: Precision) -> Bundle:
    """A bundle whose graphs compute what the modules do, in a precision of PyTorch."""
    work.say(f"tracing the graphs in {precision}")
    folder = work.place / precision
    folder.mkdir()
    options = replace(work.options, precision=precision)
    write_manifest(write_files(work.run, folder, options, options.examples or spread(work.sources, EXAMPLES)), folder)
    return load_bundle(folder)


def _check(work: Work, bundle: Bundle, device: Device) -> ParityReport:
    work.say(f"comparing the graphs in {bundle.manifest.precision} with the model, on {device}")
    report = check_bundle(bundle, work.run.model, spread(work.sources, GREEDY_SOURCES), device)
    if report.failures:
        raise CheckFailedError(f"the check failed, so no bundle was made: {report.failures[0]}", report)
    return report


def _finish(
    work: Work,
    bundle: Bundle,
    tried: tuple[Bundle, Device],
    report: ParityReport,
    loss: dict[str, Any],
    decoded: dict[str, Decoded],
) -> Bundle:
    """Measures the quality on what has not been decoded yet, and writes all findings into the manifest.

    Args:
        tried: what of the bundle runs here, and where.
    """
    work.say("measuring their quality")
    quality = {
        f"{name} {NAMES[metric]}": round(value, 3)
        for name, pairs in work.data.items()
        for metric, value in (decoded.get(name) or work.decode(*tried, pairs)).scores.items()
    }
    update = {"parity": report.document, "quality": quality, "loss": loss}
    write_manifest(bundle.manifest.model_copy(update=update), bundle.path)
    return load_bundle(bundle.path)
