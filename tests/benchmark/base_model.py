"""A bundle of the base shape of "Attention Is All You Need" with random weights.

Speed does not depend on what the weights say, only on how many tokens are decoded; so answers get a fixed length.
"""

import hashlib
import shutil
import tempfile
from pathlib import Path

from server.bundle.load import BundleError, load_bundle
from server.bundle.manifest import Precision
from tests.benchmark.unchecked import unchecked
from tests.support.random_model import write_run
from training.model import ModelConfig

ROOT = Path(__file__).resolve().parents[2]
CODE = (Path(__file__), Path(__file__).with_name("unchecked.py"), ROOT / "tests" / "support" / "random_model.py")
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


def base_bundle(folder: Path, precision: Precision = "fp32") -> Path:
    """The bundle of the random model, made in `folder` unless it stands there from the same code.

    Returns:
        its directory.
    """
    bundle = folder / f"base-{precision}-{fingerprint()}"
    try:
        load_bundle(bundle)
    except BundleError:
        for stale in folder.glob(f"base-{precision}-*"):
            shutil.rmtree(stale)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            run = Path(scratch) / "run"
            write_run(run, BASE, VOCABULARY)
            unchecked(run, Path(scratch), "base", precision).rename(bundle)
    return bundle


def fingerprint() -> str:
    """Of the code that makes the bundle."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in CODE))
    for folder in ("export", "training/model", "server/bundle"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
