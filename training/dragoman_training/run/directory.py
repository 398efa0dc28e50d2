"""Locks a run directory and checks that it may be started or resumed with a recipe."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman_training.errors import TrainingError
from dragoman_training.files import (
    BAD_LINES_FILE,
    DATA_FILE,
    DEV_FILE,
    IMPORTED_FILE,
    LONGEST_FILE,
    METRICS_FILE,
    MODEL_FILE,
    RECIPE_FILE,
    SOURCE_PIECES,
    SOURCE_TOKENIZER,
    START_FILE,
    TARGET_PIECES,
    TARGET_TOKENIZER,
)
from dragoman_training.recipe import Recipe, load_recipe
from dragoman_training.run.changes import Changes, changed_keys, check_changes
from dragoman_training.run.checkpoint import checkpoint_steps

WRITTEN_BEFORE_TRAINING = (
    RECIPE_FILE,
    START_FILE,
    SOURCE_TOKENIZER,
    TARGET_TOKENIZER,
    IMPORTED_FILE,
    SOURCE_PIECES,
    TARGET_PIECES,
    DATA_FILE,
    DEV_FILE,
    LONGEST_FILE,
    METRICS_FILE,
    BAD_LINES_FILE,
)


def prepare_directory(recipe: Recipe, run: Path, resume: bool) -> Changes:
    """Checks the directory against the recipe and removes what a failed start left there.

    The caller saves the recipe once the data has been read without errors.

    Returns:
        The recipe keys that changed since the run started, each with its old and its new value.

    Raises:
        TrainingError: The directory holds a run that is not to be resumed, or whose past the recipe would change.
    """
    saved = run / RECIPE_FILE
    if checkpoint_steps(run) or (run / MODEL_FILE).exists():
        if not resume:
            raise TrainingError(f"{run} already holds a run; continue it with --resume or choose another directory")
        changed = changed_keys(load_recipe(saved), recipe)
        check_changes(run, changed, recipe)
        return changed
    if resume and saved.exists() and load_recipe(saved) == recipe:
        # Killed before its first checkpoint. The tokenizers stay: training unigram again does not give the same one.
        return {}
    # A start that failed before the first checkpoint, for instance because of its data, does not block a new one.
    run.mkdir(parents=True, exist_ok=True)
    for name in WRITTEN_BEFORE_TRAINING:
        (run / name).unlink(missing_ok=True)
    return {}


@contextmanager
def lock_directory(run: Path) -> Iterator[None]:
    """Creates the run directory and keeps other processes from training in it.

    Raises:
        TrainingError: Another process trains there, or the directory cannot be created.
    """
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
