"""Finds how much of a model can be integers."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman_export.bundle.write import SCORER, CacheChoice
from dragoman_export.checks.offline_decoding import within_limit
from dragoman_export.checks.quality import Decoded, decode
from dragoman_export.errors import ExportError
from dragoman_export.precision.caches import Scales, find_scales, pays
from dragoman_export.precision.calibration import Feed, feeds, ranges
from dragoman_export.precision.quality_loss import points_lost
from dragoman_export.precision.quantize import WIDER, Weights, load_graphs, quantize_bundle, weight_names
from dragoman_export.precision.sensitivity import most_sensitive
from dragoman_export.run_data import spread
from dragoman_server.bundle.load import Bundle
from dragoman_server.bundle.manifest import Integers
from dragoman_server.machine import usable_cpus
from dragoman_server.runtime.device import CPU
from dragoman_training.data.pairs import Pair
from dragoman_training.recipe import Metric

CALIBRATED = 512  # sources that tell how large activations become
RANKED = 48  # of them, those that tell which weights are sensitive
WIDEST_SHARE = 4  # at most one weight of so many is kept wider


@dataclass(frozen=True)
class Found:
    """A bundle of integers that is good enough.

    Attributes:
        decoded: its answers to the data.
        wider: names of the weights that were kept wider, and in which precision: those that are too sensitive, and
            those of which the scorer, by which ranges are found, has no like.
    """

    bundle: Bundle
    decoded: Decoded
    wider: dict[str, str]


def search(
    exact: Bundle,
    folder: Path,
    precision: Integers,
    pairs: Sequence[Pair],
    longest: Sequence[Pair],
    decoded: Decoded,
    limit: float,
    cache: CacheChoice,
    say: Callable[[str], None],
) -> Found:
    """Makes all weights integers, and then, as long as too much quality is lost, ever fewer: the least sensitive.

    Caches that may be integers or not are floats again before any weight is.

    Args:
        exact: in fp32.
        folder: where to write the bundle.
        pairs: data to find scales with and to measure quality on.
        longest: more to find scales with, which may be longer: numbers grow with the length.
        decoded: what `exact` makes of them.
        limit: points that may be lost.
        cache: the numbers in it.

    Raises:
        ExportError: more is lost even so.
    """
    metrics: list[Metric] = list(decoded.scores)
    shown = [*example_feeds(exact, pairs), *example_feeds(exact, longest)]
    models = load_graphs(exact)
    scorer = models[SCORER]
    names, seen = weight_names(models), ranges(scorer, shown)
    del models
    weights = Weights({key: name for key, name in names.items() if key in seen}, seen)
    scales = _cache_scales(exact, folder, precision, weights, shown, cache, say)
    ranking: list[str] = []
    wider: list[str] = []
    least = float("inf")
    while True:
        bundle = quantize_bundle(exact, folder, precision, weights, wider, scales)
        found = decode(bundle, CPU, pairs, metrics)
        points = points_lost(decoded, found)
        if points <= limit:
            unseen = {name: "fp32" for key, name in names.items() if key not in seen}
            return Found(bundle, found, unseen | {weights.names[key]: WIDER[precision] for key in wider})
        if cache == "auto" and scales is not None:
            say(f"{precision} with integers in the caches loses {points:.3g} points: floats again")
            scales = None
            continue
        say(f"{precision} with {len(wider)} of {len(weights.names)} weights wider loses {points:.3g} points")
        least = min(least, points)
        if not ranking:
            say("measuring which weights are sensitive")
            ranked = most_sensitive(scorer, shown[:RANKED], precision, weights)
            ranking = [key for key, _ in ranked][: max(1, len(ranked) // WIDEST_SHARE)]
        if len(wider) == len(ranking):
            raise ExportError(
                f"--precision {precision} loses {least:.3g} points of quality or more, with up to {len(wider)} of the "
                f"most sensitive weights in {WIDER[precision]}, and --max-quality-loss is {limit:g}"
            )
        wider = ranking[: max(1, 2 * len(wider))]


def _cache_scales(
    exact: Bundle,
    folder: Path,
    precision: Integers,
    weights: Weights,
    shown: Sequence[Feed],
    cache: CacheChoice,
    say: Callable[[str], None],
) -> Scales | None:
    """Of the integers in the caches; None where floats shall be there."""
    if cache == "float" or (cache == "auto" and (precision != "int8" or exact.manifest.attention != "ort")):
        return None
    threads = usable_cpus()
    scales = find_scales(exact, shown, threads)
    if cache == "int8":
        return scales
    other = folder.with_name(f"{folder.name}-cache")
    plain = quantize_bundle(exact, folder, precision, weights, [])
    faster = pays(plain, quantize_bundle(exact, other, precision, weights, [], scales), shown, threads)
    shutil.rmtree(other)
    say(f"caches hold {'integers' if faster else 'floats'}, with which steps are faster here")
    return scales if faster else None


def example_feeds(bundle: Bundle, pairs: Sequence[Pair]) -> list[Feed]:
    """Some pairs, from evenly over all, as inputs of the scorer; those beyond the model's limits left out."""
    limits, tokens = bundle.manifest.limits, bundle.manifest.tokens
    targets = {pair.source: pair.target for pair in pairs}
    sources = spread(list(targets), CALIBRATED)
    kept = list(within_limit(bundle.source_tokenizer, sources, limits.max_source_tokens))
    encoded = bundle.target_tokenizer.encode_batch([targets[source] for source, _ in kept])
    ids = [[i for i in encoding.ids if i not in (tokens.begin, tokens.end)] for encoding in encoded]
    return list(
        feeds(
            [(source, row) for (_, source), row in zip(kept, ids, strict=True) if len(row) < limits.max_target_tokens],
            tokens.begin,
        )
    )
