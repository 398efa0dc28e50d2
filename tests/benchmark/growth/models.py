"""Models with random weights that are like a given one in all but what grows."""

import hashlib
import shutil
import tempfile
from pathlib import Path

from export.assemble import SCORER, Options, write_files, write_manifest
from export.data import evaluation_data
from export.precision.cache import find_scales
from export.precision.calibration import ranges
from export.precision.lower import Weights, load_graphs, lower, weight_names
from export.precision.search import example_feeds
from server.bundle.load import Bundle, BundleError, load_bundle
from server.bundle.manifest import INTEGERS, Cache, Precision
from server.cpu import usable_cpus
from tests.benchmark.base_model import fingerprint, write_run
from training.model import ModelConfig
from training.run import load_run

LONGEST = 256  # tokens of source and target, where lengths grow
FEW_TOKENS = 1024  # of the vocabulary there, so that the output layer does not hide what grows


def with_vocabulary(bundle: Bundle, vocabulary: int, folder: Path) -> Bundle:
    """The shape of a bundle's decoder under a vocabulary of that size; one encoder layer, which does not matter."""
    limits = bundle.manifest.limits
    longest = max(limits.max_source_tokens, limits.max_target_tokens)
    return _model(bundle, folder, encoder_layers=1, vocabulary=vocabulary, longest=longest)


def with_long_texts(bundle: Bundle, folder: Path) -> Bundle:
    """The shape of a bundle for texts of up to LONGEST tokens."""
    layers = bundle.manifest.shape.encoder_layers
    return _model(bundle, folder, encoder_layers=layers, vocabulary=FEW_TOKENS, longest=LONGEST)


def _model(bundle: Bundle, folder: Path, *, encoder_layers: int, vocabulary: int, longest: int) -> Bundle:
    """In the bundle's precision, its caches too, made in `folder`, unless it stands there from the same code."""
    shape, precision, cache = bundle.manifest.shape, bundle.manifest.precision, bundle.manifest.cache
    config = ModelConfig(
        d_model=shape.d_model,
        heads=shape.heads,
        d_ff=shape.d_ff,
        encoder_layers=encoder_layers,
        decoder_layers=shape.decoder_layers,
        norm="pre",
        max_source_length=longest,
        max_target_length=longest,
    )
    code = fingerprint() + Path(__file__).read_text()
    digest = hashlib.sha256(f"{config} {vocabulary} {code}".encode()).hexdigest()[:12]
    prefix = f"growth-d{shape.d_model}-v{vocabulary}-l{longest}-{precision}-{cache}"
    place = folder / f"{prefix}-{digest}"
    try:
        return load_bundle(place)
    except BundleError:
        for stale in folder.glob(f"{prefix}-*"):
            shutil.rmtree(stale)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            run = Path(scratch) / "run"
            write_run(run, config, vocabulary)
            _unchecked(run, Path(scratch), precision, cache).rename(place)
        return load_bundle(place)


def _unchecked(run: Path, scratch: Path, precision: Precision, cache: Cache) -> Path:
    """The bundle of a run without the check of an export.

    That compares every step with the model, which has no cache: for long texts and a large model it takes half an hour.

    Returns:
        its directory within `scratch`.
    """
    loaded = load_run(run)
    place = scratch / "traced"
    place.mkdir()
    write_manifest(write_files(loaded, place, Options("growth", description="random weights"), ()), place)
    for integers in INTEGERS:
        if precision == integers:
            exact = load_bundle(place)
            pairs = next(iter(evaluation_data(loaded, lambda line: None).values()))
            models, shown = load_graphs(exact), example_feeds(exact, pairs)
            names, seen = weight_names(models), ranges(models[SCORER], shown)
            weights = Weights({key: name for key, name in names.items() if key in seen}, seen)
            scales = find_scales(exact, shown, usable_cpus()) if cache == "int8" else None
            return lower(exact, scratch / integers, integers, weights, (), scales).path
    return place
