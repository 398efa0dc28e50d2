"""What may change when a run resumes, and what that does to the files of the run."""

import json
from pathlib import Path
from typing import Any

from dragoman_training.errors import TrainingError
from dragoman_training.files import MODEL_FILE, REPORT_FILE
from dragoman_training.recipe import Recipe, TrainingConfig, flatten, weight
from dragoman_training.run.checkpoint import checkpoint_steps, delete_checkpoints

Changes = dict[str, tuple[Any, Any]]

# They affect the steps to come and nothing that was learned before. So do all keys of `evaluation`.
CHANGEABLE = {
    f"training.{key}"
    for key in (
        "steps",
        "learning_rate",
        "warmup_steps",
        "decay_steps",
        "clip_norm",
        "precision",
        "compile",
        "sharding",
        "log_every",
        "checkpoint_every",
        "evaluate_every",
        "keep_checkpoints",
        "average_last",
        "average_best",
        "patience",
    )
}


def changed_keys(old: Recipe, new: Recipe) -> Changes:
    """Returns the keys that differ, each with its old and its new value.

    Data paths are left out: data may move, and a fingerprint checks its content.
    """
    before, now = (flatten(recipe.model_dump(mode="json")) | _weights(recipe) for recipe in (old, new))
    keys = sorted(before.keys() | now.keys())
    paths = {"data.train", "data.dev", "data.test", "data.prepared"}
    return {k: (before.get(k), now.get(k)) for k in keys if k not in paths and before.get(k) != now.get(k)}


def _weights(recipe: Recipe) -> dict[str, list[float]]:
    """Returns the weights of the training files by key, if there are any."""
    weights = [weight(entry) for entry in recipe.data.train]
    return {} if set(weights) == {1.0} else {"data.train.weight": weights}


def check_changes(run: Path, changed: Changes, recipe: Recipe) -> None:
    """Checks that a run can go on with the changed keys.

    Raises:
        TrainingError: One of them would have changed the steps that were made, or there are more of those than wanted.
    """
    fixed = [key for key in changed if key not in CHANGEABLE and not key.startswith("evaluation.")]
    if fixed:
        raise TrainingError(
            f"{run} was started with a different recipe: {', '.join(_describe(key, *changed[key]) for key in fixed)}; "
            "--resume can only change what affects the steps to come"
        )
    made = max(checkpoint_steps(run), default=0)
    if recipe.training.steps < made:
        raise TrainingError(
            f"training.steps is {recipe.training.steps}, but {run} has made {made} steps; expected at least as many"
        )


def apply_changes(run: Path, changed: Changes, recipe: Recipe) -> list[str]:
    """Makes the files of a run that has been changed those of an unfinished run.

    The results of a finished run are kept under another name. If the decay of the learning rate moves to a later step,
    the checkpoints of the old decay are deleted: the run goes on from the step where it began.

    Returns:
        Lines for the user about what happened to the files.
    """
    lines: list[str] = []
    if changed and (run / MODEL_FILE).exists():
        step = max(checkpoint_steps(run), default=0)
        model = run / MODEL_FILE
        # The model last: a run that was killed in between still counts as finished, and the rest follows.
        for file in (run / REPORT_FILE, model.with_suffix(".sha256"), model):
            if file.exists():
                file.replace(_of_step(file, step))
        lines.append(f"{run} was finished; its model is kept as {_of_step(model, step).name}")
    start = _decay_start_before(changed, recipe)
    if start is not None and recipe.training.decay_start > start:
        saved = checkpoint_steps(run)
        stable = [step for step in saved if step <= start]
        if stable and saved[-1] > start:
            delete_checkpoints(run, stable)
            lines.append(
                f"the learning rate now falls from step {recipe.training.decay_start} on: the steps after "
                f"{stable[-1]}, in which it was falling, are repeated"
            )
    return lines


def _of_step(file: Path, step: int) -> Path:
    return file.with_stem(f"{file.stem}-step-{step}")


def _decay_start_before(changed: Changes, recipe: Recipe) -> int | None:
    """Returns the step at which warmup_stable_decay would have begun its decay without the changes."""
    if recipe.training.schedule != "warmup_stable_decay":
        return None
    return former_training(changed, recipe).decay_start


def former_training(changed: Changes, recipe: Recipe) -> TrainingConfig:
    """Returns the section `training` as it was before the changes."""
    former = {key.removeprefix("training."): old for key, (old, _) in changed.items() if key.startswith("training.")}
    return recipe.training.model_copy(update=former)


def _describe(key: str, old: Any, new: Any) -> str:
    return f"{key} was {json.dumps(old)} and is {json.dumps(new)}"
