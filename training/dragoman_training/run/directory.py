"""Locks a run directory and checks that it may be started or resumed with a recipe."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dragoman_training.errors import TrainingError
from dragoman_training.files import (
    BAD_LINES_FILE,
    DATA_FILE,
    DEV_FILE,
    LONGEST_FILE,
    METRICS_FILE,
    MODEL_FILE,
    RECIPE_FILE,
    SOURCE_TOKENIZER,
    TARGET_TOKENIZER,
)
from dragoman_training.recipe import Recipe, load_recipe
from dragoman_training.run.checkpoint import checkpoint_steps

WRITTEN_BEFORE_TRAINING = (
    RECIPE_FILE,
    SOURCE_TOKENIZER,
    TARGET_TOKENIZER,
    DATA_FILE,
    DEV_FILE,
    LONGEST_FILE,
    METRICS_FILE,
    BAD_LINES_FILE,
)
# Keys that may change when a run resumes: they affect the steps to come and nothing that was learned before.
CHANGEABLE = ("training.learning_rate", "training.warmup_steps", "training.clip_norm", "training.precision")


def prepare_directory(recipe: Recipe, run: Path, resume: bool) -> dict[str, tuple[Any, Any]]:
    """Checks the directory against the recipe and removes what a failed start left there.

    The caller saves the recipe once the data has been read without errors.

    Returns:
        The recipe keys that changed since the run started, each with its old and its new value.

    Raises:
        TrainingError: The directory holds a run that is not to be resumed, or a run with another recipe.
    """
    saved = run / RECIPE_FILE
    finished = (run / MODEL_FILE).exists()
    if checkpoint_steps(run) or finished:
        if not resume:
            raise TrainingError(f"{run} already holds a run; continue it with --resume or choose another directory")
        old, new = (_flatten(r.model_dump(mode="json")) for r in (load_recipe(saved), recipe))
        changed = {
            key: (old.get(key), new.get(key)) for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)
        }
        fixed = [key for key in changed if finished or key not in CHANGEABLE]
        if fixed:
            raise TrainingError(f"{run} was started with a different recipe, {saved}: {', '.join(fixed)} changed")
        return changed
    if resume and saved.exists() and load_recipe(saved) == recipe:
        # Killed before its first checkpoint. The tokenizers stay: training unigram again does not give the same one.
        return {}
    # A start that failed before the first checkpoint, for instance because of its data, does not block a new one.
    run.mkdir(parents=True, exist_ok=True)
    for name in WRITTEN_BEFORE_TRAINING:
        (run / name).unlink(missing_ok=True)
    return {}


def _flatten(document: dict[str, Any]) -> dict[str, Any]:
    """Returns dotted keys, without the data paths: data may move, and a fingerprint checks its content."""
    data = {k: v for k, v in document.pop("data").items() if k not in ("train", "dev", "test")}
    sections = {"data": data, **{k: v for k, v in document.items() if isinstance(v, dict)}}
    flat = {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}
    return {**flat, **{k: v for k, v in document.items() if not isinstance(v, dict)}}


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
