"""Whose a run's directory is: a new run's, or one that goes on."""

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
# What a run may go on with changed: they decide how a step is made and nothing of what was learned before.
CHANGEABLE = ("training.learning_rate", "training.warmup_steps", "training.clip_norm")


def prepare_directory(recipe: Recipe, run: Path, resume: bool) -> dict[str, tuple[Any, Any]]:
    """Makes the directory ready for this recipe. The recipe itself is to be saved once its data is found to be sound.

    Returns:
        the keys in which the recipe differs from the one the run was begun with, each with its value there and now.

    Raises:
        TrainingError: it holds a run and this is not to resume it, or that run has another recipe.
    """
    saved = run / RECIPE_FILE
    finished = (run / MODEL_FILE).exists()
    if checkpoint_steps(run) or finished:
        if not resume:
            raise TrainingError(f"{run} already holds a run; give --resume to go on with it, or another directory")
        before, now = (_flat(r.model_dump(mode="json")) for r in (load_recipe(saved), recipe))
        changed = {
            key: (before.get(key), now.get(key))
            for key in sorted(before.keys() | now.keys())
            if before.get(key) != now.get(key)
        }
        fixed = [key for key in changed if finished or key not in CHANGEABLE]
        if fixed:
            raise TrainingError(f"{run} was started with another recipe, {saved}: {', '.join(fixed)} changed")
        return changed
    if resume and saved.exists() and load_recipe(saved) == recipe:
        return {}  # killed before its first checkpoint; its tokenizers stay, since to train unigram again gives others
    # What an attempt that came to no checkpoint left behind (its data were refused, say) binds nobody.
    run.mkdir(parents=True, exist_ok=True)
    for name in WRITTEN_BEFORE_TRAINING:
        (run / name).unlink(missing_ok=True)
    return {}


def _flat(document: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys, without the data's paths: data may move, and its content is checked by fingerprint."""
    data = {k: v for k, v in document.pop("data").items() if k not in ("train", "dev", "test")}
    sections = {"data": data, **{k: v for k, v in document.items() if isinstance(v, dict)}}
    flat = {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}
    return {**flat, **{k: v for k, v in document.items() if not isinstance(v, dict)}}


@contextmanager
def lock_directory(run: Path) -> Iterator[None]:
    """Within, no other process trains in this directory.

    Raises:
        TrainingError: one does already, or the directory can't be made.
    """
    try:
        run.mkdir(parents=True, exist_ok=True)
        directory = os.open(run, os.O_RDONLY)
    except OSError as error:
        raise TrainingError(f"{run}: cannot be made or read ({error.strerror})") from None
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrainingError(f"{run}: another process trains there; wait for it or end it") from None
        except OSError:  # a file system that knows no locks
            pass
        yield
    finally:
        os.close(directory)
