"""Models with random weights that are like a given one in all but what grows."""

import hashlib
import shutil
import tempfile
from pathlib import Path

from server.bundle.load import Bundle, BundleError, load_bundle
from tests.benchmark.base_model import fingerprint
from tests.benchmark.unchecked import unchecked
from tests.support.random_model import write_run
from training.model import ModelConfig

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
    digest = hashlib.sha256(f"{config} {vocabulary} {fingerprint()}".encode()).hexdigest()[:12]
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
            unchecked(run, Path(scratch), "growth", precision, cache).rename(place)
        return load_bundle(place)
