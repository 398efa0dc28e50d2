"""Writes a finished run."""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman_export.errors import ExportError
from dragoman_export.places import check_place
from dragoman_training.files import DATA_FILE, MODEL_FILE, RECIPE_FILE, REPORT_FILE, write_text
from dragoman_training.recipe import Recipe, save_recipe
from dragoman_training.run.checkpoint import save_state


def check_free(run: Path) -> None:
    """Checks that a run can be made in a directory.

    Raises:
        ExportError: The directory exists, or can't be made.
    """
    if check_place(run):
        raise ExportError(f"{run} already exists; choose another place for the run")


def write_run(
    run: Path,
    recipe: Recipe,
    weights: Mapping[str, Tensor],
    steps: Sequence[int],
    unseen_source_tokens: Sequence[int],
    report: Mapping[str, Any],
    write_tokenizers: Callable[[Path], None],
) -> None:
    """Writes a run; the directory appears when it is complete.

    Args:
        steps: Steps of the checkpoints that the weights are the average of.
        unseen_source_tokens: Source ids that the training data lacked.
        write_tokenizers: Writes the tokenizers to a directory, under the names of a run.

    Raises:
        ExportError: The directory cannot be written.
    """
    try:
        run.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{run.name}.", dir=run.parent) as scratch:
            folder = Path(scratch) / "run"
            folder.mkdir()
            write_tokenizers(folder)
            save_recipe(recipe, folder / RECIPE_FILE)
            for name, document in (
                (DATA_FILE, {"unseen_source_tokens": list(unseen_source_tokens)}),
                (REPORT_FILE, report),
            ):
                write_text(folder / name, json.dumps(document, indent=2) + "\n")
            save_state(folder / MODEL_FILE, {"model": dict(weights), "steps": list(steps)})
            folder.rename(run)
    except OSError as error:
        raise ExportError(f"{run} can't be written: {error.strerror or error}") from error
