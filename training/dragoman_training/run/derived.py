"""Writes a finished run whose weights were computed from another run's."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman_training.errors import TrainingError
from dragoman_training.files import (
    DATA_FILE,
    DEV_FILE,
    MODEL_FILE,
    RECIPE_FILE,
    REPORT_FILE,
    START_FILE,
    TOKENIZER_FILES,
    write_text,
)
from dragoman_training.recipe import Recipe, save_recipe
from dragoman_training.run.checkpoint import save_state
from dragoman_training.run.load import Run

_KEPT = DATA_FILE, DEV_FILE, START_FILE, *TOKENIZER_FILES


def check_absent(out: Path) -> None:
    """Raises a TrainingError if there is something in the place of a run to be written."""
    if out.exists():
        raise TrainingError(f"{out} already exists; choose another place for the run")


def write_derived_run(
    out: Path, source: Run, recipe: Recipe, weights: dict[str, Tensor], report: dict[str, Any]
) -> None:
    """Writes a run with the tokenizers and the dev set of another one.

    Args:
        out: Directory of the run; it appears when it is complete.
        source: The other run.
        recipe: Recipe of the new run.
        weights: Weights of its model.
        report: Contents of its report.json: where the weights come from.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        folder = Path(scratch) / "run"
        folder.mkdir()
        for name in _KEPT:
            if (source.path / name).exists():
                shutil.copyfile(source.path / name, folder / name)
        save_recipe(recipe, folder / RECIPE_FILE)
        write_text(folder / REPORT_FILE, json.dumps(report, indent=2) + "\n")
        save_state(folder / MODEL_FILE, {"model": weights, "steps": source.provenance["steps_averaged"]})
        folder.rename(out)
