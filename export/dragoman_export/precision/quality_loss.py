"""What a precision below fp32 costs and brings, against fp32 graphs of the same model."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from dragoman_export.bundle.bf16_on_cpu import stood_in_for
from dragoman_export.checks.quality import NAMES, Decoded, lost
from dragoman_export.checks.serving_simulation import draw_sources
from dragoman_export.checks.step_timing import least_seconds
from dragoman_export.errors import ExportError
from dragoman_export.precision.calibration import Feed
from dragoman_export.precision.sensitivity import log_probabilities
from dragoman_server.bundle.load import Bundle
from dragoman_server.bundle.manifest import Precision
from dragoman_server.machine import usable_cpus
from dragoman_server.runtime.device import CPU, Device, open_session
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from dragoman_training.recipe import Metric

TIMED_ROWS = (1, 8, 32, 64)
LEAST_GAIN = 1.0  # points by which a metric must be better than chance to show a loss
UNJUDGED = 100.0  # a limit of so many points means that nothing is to be judged


def points_lost(exact: Decoded, other: Decoded) -> float:
    """The most that any metric got worse; less than 0 where all got better."""
    return max((lost(metric, before, other.scores[metric]) for metric, before in exact.scores.items()), default=0.0)


def check_judgeable(exact: Decoded, data: str, precision: Precision, limit: float) -> None:
    """Refuses to judge a precision by answers that show nothing: what is all wrong can't get worse.

    Args:
        exact: decoded in fp32.
        data: name of the set.
        limit: points that may be lost.

    Raises:
        ExportError: no metric is better than chance.
    """
    if limit >= UNJUDGED:
        return
    chance = exact.by_chance()
    if any(lost(metric, value, chance[metric]) >= LEAST_GAIN for metric, value in exact.scores.items()):
        return
    values = ", ".join(
        f"{NAMES[metric]} {value:.3g}, by chance {chance[metric]:.3g}" for metric, value in exact.scores.items()
    )
    raise ExportError(
        f"what --precision {precision} costs can't be judged: the model's answers to {data} are no better in fp32 than "
        f"the same answers given to other sources ({values or 'the recipe has no metrics'}); train it further, look at "
        f"its data, or pass --max-quality-loss {UNJUDGED:g} to export it unjudged"
    )


def compare(
    bundles: tuple[Bundle, Bundle], decoded: tuple[Decoded, Decoded], feeds: Sequence[Feed], device: Device
) -> dict[str, Any]:
    """For the manifest.

    Args:
        bundles: in fp32, and the other.
        decoded: by each of them.
        feeds: of the scorer, of the same data.
        device: where the other runs; the one in fp32 runs on the CPU.
    """
    names = tuple(bundle.manifest.precision for bundle in bundles)
    scores: dict[str, dict[str, float]] = {}
    metrics: list[Metric] = list(decoded[0].scores)
    for metric in metrics:
        before, after = (each.scores[metric] for each in decoded)
        scores[NAMES[metric]] = {names[0]: round(before, 3), names[1]: round(after, 3)}
    likely = [
        log_probabilities(open_session(bundle.scorer, where, usable_cpus()), feeds)
        for bundle, where in zip(bundles, (CPU, device), strict=True)
    ]
    sizes = [sum(file.bytes for file in bundle.manifest.files.values()) for bundle in bundles]
    equal, tokens = agreement(decoded[0].ids, decoded[1].ids)
    timed = device.kind == "cpu" and not stood_in_for(bundles[1].manifest, device)  # fp32 does not run on a GPU
    return {
        "sources": len(decoded[0].ids),
        "quality": scores,
        "points_lost": round(points_lost(*decoded), 3),
        "equal_answers": round(equal, 4),
        "equal_tokens": round(tokens, 4),
        "mean_log_probability": dict(zip(names, (round(float(each.mean()), 4) for each in likely), strict=True)),
        "finite": bool(np.isfinite(likely[1]).all()),
        "megabytes": dict(zip(names, (round(size / 1e6, 2) for size in sizes), strict=True)),
        "step_time": step_times(bundles, device) if timed else {},
    }


def agreement(before: Mapping[str, Sequence[int]], after: Mapping[str, Sequence[int]]) -> tuple[float, float]:
    """Shares of answers that are equal, and of tokens that are equal to those in the same place."""
    equal = sum(list(ids) == list(after[source]) for source, ids in before.items())
    places = [pair for source, ids in before.items() for pair in zip_longest(ids, after[source])]
    return equal / len(before), sum(a == b for a, b in places) / max(1, len(places))


def step_times(bundles: tuple[Bundle, Bundle], device: Device) -> dict[str, float]:
    """How long a decode step of the second bundle takes, as a share of the first one's, by number of rows.

    In the middle of targets, over short sources.
    """
    runtimes = [Runtime(Sessions(bundle, device, usable_cpus()), max(TIMED_ROWS)) for bundle in bundles]
    rng = np.random.default_rng(4)
    sources = draw_sources(runtimes[0], max(TIMED_ROWS), min(16, runtimes[0].source_capacity), rng)
    for runtime in runtimes:
        runtime.encode(sources, 0)
        runtime.positions[:] = runtime.target_capacity // 2
    shares = {}
    for rows in TIMED_ROWS:
        before, after = least_seconds(runtimes, rows)
        shares[str(rows)] = round(after / before, 2)
    return shares
