"""Bundles of random weights: the base shape of "Attention Is All You Need", and others.

Speed does not depend on the weights, only on the number of decoded tokens, so answers have a fixed length, see
tests.support.random_model. The bundles are exported without the parity check, which compares every step with the model
and takes minutes for the base shape; the same graphs are checked elsewhere.
"""

import hashlib
import math
import shutil
import tempfile
from pathlib import Path

from dragoman_export.build import BuildInput
from dragoman_export.bundle.options import CacheChoice, ExportOptions
from dragoman_export.bundle.write import write_files, write_manifest
from dragoman_export.original import Original
from dragoman_export.precision.quantization_search import QuantizationTask, quantize_within_limit
from dragoman_export.run_data import read_run
from dragoman_server.bundle.load import Bundle, BundleError, load_bundle
from dragoman_server.bundle.manifest import INTEGERS, Precision
from dragoman_server.runtime.device import CPU
from dragoman_training.model import ModelConfig
from tests.support.random_model import write_run

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "bench"
CODE = (
    "export",
    "training/dragoman_training/model",
    "server/dragoman_server/bundle",
    "tests/support/random_model.py",
    "tests/benchmark/random_bundle.py",
)
VOCABULARY = 32_000
BASE = ModelConfig(
    d_model=512,
    heads=8,
    d_ff=2048,
    encoder_layers=6,
    decoder_layers=6,
    activation="relu",
    norm="pre",
    positions="sinusoidal",
    share_embeddings="output",
    dropout=0.1,
    max_source_length=64,
    max_target_length=64,
)


def random_bundle(
    name: str, config: ModelConfig, vocabulary: int, precision: Precision = "fp32", cache: CacheChoice = "auto"
) -> Bundle:
    """Returns a bundle with random weights, made in BUILD unless the same code has made it there already.

    Args:
        name: Name of the model, and the start of the folder's name.
        vocabulary: Number of tokens of each side, special tokens included.
    """
    digest = hashlib.sha256(f"{config} {vocabulary} {cache} {fingerprint()}".encode()).hexdigest()[:12]
    place = BUILD / f"{name}-{precision}-{digest}"
    try:
        return load_bundle(place)
    except BundleError:
        BUILD.mkdir(parents=True, exist_ok=True)
        for stale in BUILD.glob(f"{name}-{precision}-*"):
            shutil.rmtree(stale)
        with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
            run = Path(scratch) / "run"
            write_run(run, config, vocabulary)
            unchecked(read_run(run, print), Path(scratch), name, precision, cache).rename(place)
        return load_bundle(place)


def unchecked(original: Original, scratch: Path, name: str, precision: Precision, cache: CacheChoice = "auto") -> Path:
    """Exports a model of random weights without any check; returns the bundle's directory within `scratch`."""
    place = scratch / "traced"
    place.mkdir()
    write_manifest(write_files(original, place, ExportOptions(name, description="random weights"), ()), place)
    for integers in INTEGERS:
        if precision == integers:
            exact = load_bundle(place)
            work = BuildInput(original, scratch, ExportOptions(name), lambda line: None)
            data, folder = work.comparison_set(exact), scratch / integers
            task = QuantizationTask(
                exact, folder, integers, data, work.longest, data.decode(exact, CPU), math.inf, work.say
            )
            return quantize_within_limit(task, cache).bundle.path
    return place


def fingerprint() -> str:
    """Returns a hash of the code that makes bundles."""
    digest = hashlib.sha256()
    for name in CODE:
        path = ROOT / name
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()
