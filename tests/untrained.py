"""Small models with random weights, as runs that can be exported."""

from pathlib import Path
from typing import Any

from tests.benchmark.base_model import write_run
from training.model import ModelConfig

VOCABULARY = 40
SMALL: dict[str, Any] = {
    "d_model": 32,
    "heads": 2,
    "d_ff": 64,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "norm": "pre",
    "max_source_length": 9,
    "max_target_length": 8,
}


def small_run(folder: Path, **changes: object) -> Path:
    """Writes a run of a small model, some of its shape changed; returns its directory."""
    write_run(folder, ModelConfig.model_validate(SMALL | changes), VOCABULARY)
    return folder
