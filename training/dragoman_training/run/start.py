"""Starts a run from the weights and tokenizers of another one."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman_training.data.imported import ImportedRules
from dragoman_training.data.languages import language_token
from dragoman_training.errors import TrainingError
from dragoman_training.files import (
    IMPORTED_FILE,
    MODEL_FILE,
    RECIPE_FILE,
    SOURCE_PIECES,
    SOURCE_TOKENIZER,
    START_FILE,
    TARGET_PIECES,
    TARGET_TOKENIZER,
    read_json,
    write_text,
)
from dragoman_training.recipe import Recipe, file_paths, flatten, source_language, target_language
from dragoman_training.run.checkpoint import checkpoint_steps
from dragoman_training.run.load import Run, load_run

# Keys of model and tokenizers that change neither weights nor vocabularies. Learned positions are weights: a table of
# them is as long as the limits.
FREE = {
    "model.dropout",
    "model.max_source_length",
    "model.max_target_length",
    "tokenizers.target_bpe_dropout",
    *(f"tokenizers.{side}.{key}" for side in ("source", "target") for key in ("bpe_dropout", "byte_dropout")),
}
_LIMITS = {"model.max_source_length", "model.max_target_length"}


@dataclass(frozen=True)
class Start:
    """Where a run starts: the directory of another run, and its weights."""

    run: Path
    weights: dict[str, Tensor]
    provenance: dict[str, Any]
    unseen_source_tokens: list[int]


def find_start(recipe: Recipe, run: Path, init_from: Path | None) -> Start | None:
    """Returns the weights that a run starts from; None if it starts untrained or has started already.

    Args:
        run: The run's own directory. What it recorded is enough to resume.
        init_from: Directory of the other run, None if no --init-from was given.

    Raises:
        TrainingError: There is no such run, its model or tokenizers are not the recipe's, or the run did not start
            from there.
    """
    recorded = read_json(run / START_FILE)
    if checkpoint_steps(run) or (run / MODEL_FILE).exists():
        if init_from is not None and (recorded is None or recorded["run"] != str(init_from.resolve())):
            begun = "untrained" if recorded is None else f"from {recorded['run']}"
            raise TrainingError(f"--init-from {init_from}: {run} started {begun}; resume it without --init-from")
        return None
    if init_from is None and recorded is not None:
        init_from = Path(recorded["run"])
    return load_start(recipe, init_from)


def load_start(recipe: Recipe, init_from: Path | None) -> Start | None:
    """Loads the weights that a new run starts from; None for untrained ones.

    Raises:
        TrainingError: There is no such run, or its model or tokenizers are not the recipe's.
    """
    if init_from is None:
        if recipe.training.freeze:
            raise TrainingError("training.freeze needs --init-from: frozen parts of an untrained model never learn")
        return None
    start = _load(init_from)
    _check(recipe, start)
    return Start(init_from.resolve(), start.model.state_dict(), start.provenance, start.unseen_source_tokens)


def write_start(start: Start, run: Path) -> None:
    """Copies the tokenizers of the start to a run and records where they and the weights come from."""
    document = {
        "run": str(start.run),
        "provenance": start.provenance,
        "unseen_source_tokens": start.unseen_source_tokens,
    }
    write_text(run / START_FILE, json.dumps(document, indent=2, default=str) + "\n")
    for name in (SOURCE_TOKENIZER, TARGET_TOKENIZER, SOURCE_PIECES, TARGET_PIECES, IMPORTED_FILE):
        if (start.run / name).exists():
            shutil.copyfile(start.run / name, run / name)


def _load(path: Path) -> Run:
    if not (path / RECIPE_FILE).exists() and (path / "manifest.json").exists():
        command = f"dragoman-export --to-run {path} RUN"
        raise TrainingError(f"--init-from {path}: this is a bundle; `{command}` turns it into a run")
    try:
        return load_run(path)
    except TrainingError as error:
        raise TrainingError(f"--init-from {error}") from None


def _check(recipe: Recipe, start: Run) -> None:
    """Checks that the weights fit the recipe's model and tokenizers."""
    theirs, ours = ({**_section(r, "model"), **_section(r, "tokenizers")} for r in (start.recipe, recipe))
    free = FREE - _LIMITS if recipe.model.positions == "learned" else FREE
    differences = [
        f"{key} is {json.dumps(theirs.get(key))} there and {json.dumps(ours.get(key))} in the recipe"
        for key in sorted(theirs.keys() | ours.keys())
        if theirs.get(key) != ours.get(key) and key not in free
    ]
    if differences:
        raise TrainingError(f"--init-from {start.path}: {', '.join(differences)}; expected the same")
    if start.tokenizers.rules is not None:
        _check_languages(recipe, start.tokenizers.rules)
        return
    for code in recipe.data.target_languages:
        if start.tokenizers.source.token_to_id(language_token(code)) is None:
            raise TrainingError(f"--init-from {start.path}: it was not trained for the target_language {code} of data")


def _check_languages(recipe: Recipe, rules: ImportedRules) -> None:
    """Checks that each data file names languages of the imported model."""
    for name in ("train", "dev", "test"):
        for entry in getattr(recipe.data, name) or []:
            problems = rules.problem("source", source_language(entry)), rules.problem("target", target_language(entry))
            for problem in filter(None, problems):
                raise TrainingError(f"data.{name}: {file_paths(entry)[0]} {problem}")


def _section(recipe: Recipe, name: str) -> dict[str, Any]:
    return flatten({name: getattr(recipe, name).model_dump(mode="json")})
