"""Finds how much of a model can be integers without losing too much quality."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dragoman_export.bundle.onnx_files import SCORER, load_models
from dragoman_export.bundle.options import CacheChoice
from dragoman_export.checks.quality import ComparisonSet, DecodedSet
from dragoman_export.errors import ExportError
from dragoman_export.graphs.onnx_model import OnnxModel
from dragoman_export.precision.caches import Scales, are_faster
from dragoman_export.precision.calibration import (
    Feed,
    activation_ranges,
    cache_peaks,
    calibration_feeds,
    cpu_session,
    log_probabilities,
)
from dragoman_export.precision.quality_loss import points_lost
from dragoman_export.precision.quantize import (
    WIDER,
    CalibratedWeights,
    quantize_bundle,
    quantize_graph,
    weight_names,
)
from dragoman_export.precision.scales import cache_scales
from dragoman_server.bundle.load import Bundle
from dragoman_server.bundle.manifest import Integers
from dragoman_server.machine import usable_cpus
from dragoman_server.runtime.device import CPU

RANKED_SOURCES = 48  # calibration sources by which the sensitivity of weights is ranked
WIDEST_SHARE = 4  # at most one of this many weights is kept wider


@dataclass(frozen=True)
class QuantizationTask:
    """A bundle to quantize, and the quality to keep.

    Attributes:
        exact: The bundle in fp32.
        folder: Where to write the quantized bundle.
        precision: Precision of the weights.
        data: Data to calibrate with and to measure quality on.
        longest: More data to calibrate with, possibly longer: activations and caches grow with the length.
        decoded: The answers of `exact` to `data`.
        max_loss: Points that may be lost.
        say: Prints a line for the user.
    """

    exact: Bundle
    folder: Path
    precision: Integers
    data: ComparisonSet
    longest: ComparisonSet
    decoded: DecodedSet
    max_loss: float
    say: Callable[[str], None]


@dataclass(frozen=True)
class QuantizedBundle:
    """A quantized bundle of sufficient quality.

    Attributes:
        bundle: The bundle.
        decoded: Its answers to the data.
        wider: Names of the weights that were kept wider, with their precision: the most sensitive ones, and those that
            the scorer, on which ranges are measured, does not have.
    """

    bundle: Bundle
    decoded: DecodedSet
    wider: dict[str, str]


def quantize_within_limit(task: QuantizationTask, cache: CacheChoice) -> QuantizedBundle:
    """Quantizes all weights. While too much quality is lost, it keeps ever more of the most sensitive ones wider.

    With `auto`, caches go back to floats before any weight is kept wider.

    Raises:
        ExportError: Too much is lost even so.
    """
    precision, say = task.precision, task.say
    feeds = [*calibration_feeds(task.exact, task.data), *calibration_feeds(task.exact, task.longest)]
    models = load_models(task.exact.path)
    scorer = models[SCORER]
    names, ranges = weight_names(models), activation_ranges(scorer, feeds)
    del models
    weights = CalibratedWeights({key: name for key, name in names.items() if key in ranges}, ranges)
    scales = _choose_cache_scales(task, cache, weights, feeds)
    ranking: list[str] = []
    wider: list[str] = []
    least_lost = float("inf")
    while True:
        bundle = quantize_bundle(task.exact, task.folder, precision, weights, wider, scales)
        decoded = task.data.decode(bundle, CPU)
        points = points_lost(task.decoded, decoded)
        if points <= task.max_loss:
            uncalibrated = {name: "fp32" for key, name in names.items() if key not in ranges}
            kept = {weights.names[key]: WIDER[precision] for key in wider}
            return QuantizedBundle(bundle, decoded, uncalibrated | kept)
        if cache == "auto" and scales is not None:
            say(f"{precision} with integer caches loses {points:.3g} points: back to float caches")
            scales = None
            continue
        say(f"{precision} with {len(wider)} of {len(weights.names)} weights wider loses {points:.3g} points")
        least_lost = min(least_lost, points)
        if not ranking:
            say("measuring which weights are sensitive")
            ranked = rank_by_sensitivity(scorer, feeds[:RANKED_SOURCES], precision, weights)
            ranking = [key for key, _ in ranked][: max(1, len(ranked) // WIDEST_SHARE)]
        if len(wider) == len(ranking):
            raise ExportError(
                f"--precision {precision} loses {least_lost:.3g} points of quality or more, with up to {len(wider)} of "
                f"the most sensitive weights in {WIDER[precision]}; --max-quality-loss is {task.max_loss:g}"
            )
        wider = ranking[: max(1, 2 * len(wider))]


def rank_by_sensitivity(
    scorer: OnnxModel, feeds: Sequence[Feed], precision: Integers, weights: CalibratedWeights
) -> list[tuple[str, float]]:
    """Returns the keys of the weights with the cost of each, the most sensitive first.

    The cost is the mean absolute change of the targets' log-probabilities, in nats, if only that weight is quantized.

    Args:
        scorer: The scorer graph in fp32.
        feeds: Its inputs.
        precision: Precision of the weights.
        weights: The weights to rank.
    """
    exact = log_probabilities(cpu_session(scorer), feeds)
    costs: dict[str, float] = {}
    for key in weights.names:
        model = scorer.copy()
        alone = CalibratedWeights({key: weights.names[key]}, {key: weights.ranges[key]}, weights.rounded)
        quantize_graph(model, precision, alone, ())
        costs[key] = float(np.abs(log_probabilities(cpu_session(model), feeds) - exact).mean())
    return sorted(costs.items(), key=lambda item: -item[1])


def _choose_cache_scales(
    task: QuantizationTask, cache: CacheChoice, weights: CalibratedWeights, feeds: Sequence[Feed]
) -> Scales | None:
    """Returns the scales of the caches; None for floats."""
    exact, folder, precision = task.exact, task.folder, task.precision
    if cache == "float" or (cache == "auto" and (precision != "int8" or exact.manifest.attention != "ort")):
        return None
    threads = usable_cpus()
    scales = cache_scales(cache_peaks(exact, feeds, threads))
    if cache == "int8":
        return scales
    other = folder.with_name(f"{folder.name}-cache")
    with_floats = quantize_bundle(exact, folder, precision, weights, [])
    with_integers = quantize_bundle(exact, other, precision, weights, [], scales)
    faster = are_faster(with_floats, with_integers, feeds, threads)
    shutil.rmtree(other)
    task.say(f"caches hold {'integers' if faster else 'floats'}, with which steps are faster here")
    return scales if faster else None
