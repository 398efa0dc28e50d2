"""Bundles of random weights, made as an export makes them but for its check.

The check compares every step with the model, which has no cache: of the base shape that takes minutes, for long texts
half an hour. Random weights have no quality to measure, and the graphs are those that are checked elsewhere.
"""

import math
from pathlib import Path

from export.assemble import CacheChoice, Options, write_files, write_manifest
from export.data import evaluation_data
from export.precision.search import search
from export.quality import decode
from server.bundle.load import load_bundle
from server.bundle.manifest import INTEGERS, Precision
from server.runtime.device import CPU
from training.run import load_run


def unchecked(run: Path, scratch: Path, name: str, precision: Precision, cache: CacheChoice = "auto") -> Path:
    """Makes the bundle of a run.

    Returns:
        its directory within `scratch`.
    """
    loaded = load_run(run)
    place = scratch / "traced"
    place.mkdir()
    write_manifest(write_files(loaded, place, Options(name, description="random weights"), ()), place)
    for integers in INTEGERS:
        if precision == integers:
            exact = load_bundle(place)
            pairs = next(iter(evaluation_data(loaded, lambda line: None).values()))
            before = decode(exact, CPU, pairs, loaded.recipe.evaluation.metrics)
            folder = scratch / integers
            return search(exact, folder, integers, pairs, [], before, math.inf, cache, lambda line: None).bundle.path
    return place
