"""Locks a run directory and checks that it may be started or resumed with a recipe."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman_training.errors import TrainingError
from dragoman_training.files import (
    BAD_LINES_FILE,
    BEGUN_FILE,
    CURVES_FILE,
    DATA_FILE,
    DEV_ANSWERS_FILE,
    DEV_FILE,
    IMPORTED_FILE,
    LONGEST_FILE,
    METRICS_FILE,
    MODEL_FILE,
    RECIPE_FILE,
    REPORT_FILE,
    SOURCE_PIECES,
    SOURCE_TOKENIZER,
    START_FILE,
    TARGET_PIECES,
    TARGET_TOKENIZER,
    TEST_ANSWERS_FILE,
)
from dragoman_training.recipe import Recipe, file_paths, load_recipe
from dragoman_training.run.changes import Changes, changed_keys, check_changes
from dragoman_training.run.checkpoint import checkpoint_steps

WRITTEN_AFTER_TOKENIZERS = (BEGUN_FILE, RECIPE_FILE, DATA_FILE, DEV_FILE, LONGEST_FILE, METRICS_FILE)
# In the order in which a new start removes them: while some are left, so is the sign that a run has written them.
WRITTEN_BEFORE_TRAINING = (
    *WRITTEN_AFTER_TOKENIZERS,
    BAD_LINES_FILE,
    START_FILE,
    IMPORTED_FILE,
    SOURCE_PIECES,
    TARGET_PIECES,
    TARGET_TOKENIZER,
    SOURCE_TOKENIZER,
)
WRITTEN = (*WRITTEN_BEFORE_TRAINING, CURVES_FILE, DEV_ANSWERS_FILE, TEST_ANSWERS_FILE, REPORT_FILE, MODEL_FILE)


def prepare_directory(recipe: Recipe, run: Path, resume: bool, recipe_file: Path | None = None) -> Changes:
    """Checks the directory against the recipe and removes what a failed start left there.

    The caller saves the recipe once the data has been read without errors.

    Args:
        recipe_file: The file of the recipe. If it stands in the run directory, it stays.

    Returns:
        The recipe keys that changed since the run started, each with its old and its new value.

    Raises:
        TrainingError: The directory holds a run that is not to be resumed, or whose past the recipe would change; or
            the run would write over its data.
    """
    _check_data(recipe, run)
    begun = begun_recipe(run, recipe_file)
    if checkpoint_steps(run) or (run / MODEL_FILE).exists():
        if not resume:
            raise TrainingError(f"{run} already holds a run; continue it with --resume or choose another directory")
        changed = changed_keys(load_recipe(begun or run / RECIPE_FILE), recipe)
        check_changes(run, changed, recipe)
        if not checkpoint_steps(run) and (changed or not (run / REPORT_FILE).exists()):
            raise TrainingError(
                f"{run} has a {MODEL_FILE} but no checkpoint to go on from; start a new run with --init-from {run}"
            )
        return changed
    if resume and begun is not None and load_recipe(begun) == recipe:
        # Killed before its first checkpoint. The tokenizers stay: training unigram again does not give the same one.
        return {}
    # A start that failed before the first checkpoint, for instance because of its data, does not block a new one.
    run.mkdir(parents=True, exist_ok=True)
    left = [
        name
        for name in WRITTEN_BEFORE_TRAINING
        if (run / name).exists() and not (name == RECIPE_FILE and _is_given(run, recipe_file))
    ]
    others = [name for name in left if name in WRITTEN_AFTER_TOKENIZERS]
    if others and SOURCE_TOKENIZER not in left:
        raise TrainingError(
            f"{run} holds {', '.join(others)}, but no run that has been started; choose another directory, or remove "
            "what a run would write over"
        )
    for name in left:
        (run / name).unlink()
    return {}


def begun_recipe(run: Path, recipe_file: Path | None) -> Path | None:
    """Returns the recipe that the run in a directory was begun with; None if none has been begun.

    Args:
        recipe_file: The file of the recipe now. It may be the one in the directory, which users edit.
    """
    if (run / BEGUN_FILE).exists():
        return run / BEGUN_FILE
    if not (run / RECIPE_FILE).exists() or (_is_given(run, recipe_file) and not checkpoint_steps(run)):
        return None
    return run / RECIPE_FILE  # of a run of an older version


def _is_given(run: Path, recipe_file: Path | None) -> bool:
    """Returns whether the recipe in a run directory is the file that the user named."""
    saved = run / RECIPE_FILE
    return recipe_file is not None and saved.exists() and saved.samefile(recipe_file)


def _check_data(recipe: Recipe, run: Path) -> None:
    """Checks that the run writes over none of its data.

    Raises:
        TrainingError: A data file, or the folder of the prepared data, stands where the run writes.
    """
    directory = run.resolve()
    written = {directory / name for name in WRITTEN}
    for split in ("train", "dev", "test"):
        for path in (path for entry in getattr(recipe.data, split) or [] for path in file_paths(entry)):
            if not written.isdisjoint((path.resolve(), path.parent.resolve() / path.name)):
                raise TrainingError(
                    f"data.{split}: {path} is where the run would write its own {path.name}; rename the file, or "
                    "choose another directory for the run"
                )
    if recipe.data.prepared is not None and recipe.data.prepared.resolve() == directory:
        raise TrainingError(f"data.prepared: {recipe.data.prepared} is the run directory; name another folder")


@contextmanager
def lock_directory(run: Path) -> Iterator[None]:
    """Creates the run directory and keeps other processes from training in it.

    Raises:
        TrainingError: Another process trains there, or the directory cannot be created, or has a name that TensorBoard
            cannot write to.
    """
    try:
        str(run).encode()
    except UnicodeEncodeError:
        raise TrainingError(f"{run}: this name is not UTF-8; choose another directory for the run") from None
    try:
        run.mkdir(parents=True, exist_ok=True)
        directory = os.open(run, os.O_RDONLY)
    except OSError as error:
        raise TrainingError(f"{run}: cannot be created or read ({error.strerror})") from None
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrainingError(f"{run}: another process is training there; wait for it or stop it") from None
        except OSError:  # the file system has no locks
            pass
        yield
    finally:
        os.close(directory)
