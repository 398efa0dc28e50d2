"""What a precision below fp32 costs and gains, compared with fp32 graphs of the same model."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from dragoman_export.bundle.bf16_on_cpu import is_emulated
from dragoman_export.checks.affordable import reserved_rows
from dragoman_export.checks.quality import NAMES, DecodedSet, points_worse
from dragoman_export.checks.step_timing import fastest_steps, fill_with_short_sources
from dragoman_export.errors import ExportError
from dragoman_export.precision.calibration import Feed, log_probabilities
from dragoman_server.bundle.load import Bundle
from dragoman_server.bundle.manifest import Precision
from dragoman_server.machine import usable_cpus
from dragoman_server.runtime.device import CPU, Device, open_session
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from dragoman_training.recipe import Metric

TIMED_ROWS = (1, 8, 32, 64)
LEAST_GAIN = 1.0  # points by which a metric must beat chance to show a loss
UNJUDGED = 100.0  # a limit of this many points turns the judgement off


def points_lost(exact: DecodedSet, other: DecodedSet) -> float:
    """Returns the largest loss of any metric; negative if all got better."""
    return max(
        (points_worse(metric, before, other.scores[metric]) for metric, before in exact.scores.items()), default=0.0
    )


def is_judgeable(exact: DecodedSet) -> bool:
    """Returns whether a metric of the answers is better than chance, and so could get worse."""
    chance = exact.chance_scores()
    return any(points_worse(metric, value, chance[metric]) >= LEAST_GAIN for metric, value in exact.scores.items())


def check_judgeable(exact: DecodedSet, data: str, precision: Precision, limit: float) -> None:
    """Refuses to judge a precision by answers that are no better than chance, as those cannot get worse.

    Args:
        exact: The answers in fp32.
        data: Name of the data set.
        precision: The precision to judge.
        limit: Points that may be lost.

    Raises:
        ExportError: No metric is better than chance.
    """
    if limit >= UNJUDGED or is_judgeable(exact):
        return
    chance = exact.chance_scores()
    values = ", ".join(
        f"{NAMES[metric]} {value:.3g}, by chance {chance[metric]:.3g}" for metric, value in exact.scores.items()
    )
    raise ExportError(
        f"what --precision {precision} costs can't be judged: the model's answers to {data} are no better in fp32 than "
        f"the same answers given to other sources ({values or 'the recipe has no metrics'}); train the model further, "
        f"check its data, or pass --max-quality-loss {UNJUDGED:g} to export it unjudged"
    )


def compare(
    bundles: tuple[Bundle, Bundle], decoded: tuple[DecodedSet, DecodedSet], feeds: Sequence[Feed], device: Device
) -> dict[str, Any]:
    """Returns the manifest's `loss`.

    Args:
        bundles: The bundle in fp32, and the other.
        decoded: The answers of each.
        feeds: Scorer inputs of the same data.
        device: Device of the other bundle; the one in fp32 runs on the CPU.
    """
    names = tuple(bundle.manifest.precision for bundle in bundles)
    scores: dict[str, dict[str, float]] = {}
    metrics: list[Metric] = list(decoded[0].scores)
    for metric in metrics:
        before, after = (answers.scores[metric] for answers in decoded)
        scores[NAMES[metric]] = {names[0]: round(before, 3), names[1]: round(after, 3)}
    likelihoods = [
        log_probabilities(open_session(bundle.scorer, where, usable_cpus()), feeds)
        for bundle, where in zip(bundles, (CPU, device), strict=True)
    ]
    means = (round(float(values.mean()), 4) for values in likelihoods)
    sizes = (round(sum(file.bytes for file in bundle.manifest.files.values()) / 1e6, 2) for bundle in bundles)
    equal_answers, equal_tokens = agreement(decoded[0].ids, decoded[1].ids)
    timed = device.kind == "cpu" and not is_emulated(bundles[1].manifest, device)  # fp32 does not run on a GPU
    return {
        "sources": len(decoded[0].ids),
        "quality": scores,
        "points_lost": round(points_lost(*decoded), 3),
        "equal_answers": round(equal_answers, 4),
        "equal_tokens": round(equal_tokens, 4),
        "mean_log_probability": dict(zip(names, means, strict=True)),
        "finite": bool(np.isfinite(likelihoods[1]).all()),
        "megabytes": dict(zip(names, sizes, strict=True)),
        "step_time": step_times(bundles, device) if timed else {},
    }


def agreement(before: Mapping[str, Sequence[int]], after: Mapping[str, Sequence[int]]) -> tuple[float, float]:
    """Returns the shares of equal answers, and of tokens equal to those in the same position."""
    equal = sum(list(ids) == list(after[source]) for source, ids in before.items())
    tokens = [pair for source, ids in before.items() for pair in zip_longest(ids, after[source])]
    return equal / len(before), sum(a == b for a, b in tokens) / max(1, len(tokens))


def step_times(bundles: tuple[Bundle, Bundle], device: Device) -> dict[str, float]:
    """Returns the duration of a step of the second bundle as a share of the first one's, by number of rows.

    The rows are in the middle of their targets, over short sources.
    """
    most = reserved_rows(bundles[0].manifest, max(TIMED_ROWS))
    runtimes = [Runtime(Sessions(bundle, device, usable_cpus()), most) for bundle in bundles]
    fill_with_short_sources(runtimes, most, seed=4)
    shares = {}
    for rows in (rows for rows in TIMED_ROWS if rows <= most):
        before, after = fastest_steps(runtimes, rows)
        shares[str(rows)] = round(after / before, 2)
    return shares
