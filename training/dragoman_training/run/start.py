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
from dragoman_training.files import MODEL_FILE, START_FILE, TOKENIZER_FILES, read_json, write_text
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
    for name in TOKENIZER_FILES:
        if (start.run / name).exists():
            shutil.copyfile(start.run / name, run / name)


def weight_differences(one: Recipe, other: Recipe) -> list[tuple[str, Any, Any]]:
    """Returns the keys that affect weights or vocabularies and differ between recipes, with the values of both."""
    first, second = ({**_section(recipe, "model"), **_section(recipe, "tokenizers")} for recipe in (one, other))
    free = FREE - _LIMITS if other.model.positions == "learned" else FREE
    keys = sorted((first.keys() | second.keys()) - free)
    return [(key, first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)]


def _load(path: Path) -> Run:
    try:
        return load_run(path)
    except TrainingError as error:
        raise TrainingError(f"--init-from {error}") from None


def _check(recipe: Recipe, start: Run) -> None:
    """Checks that the weights fit the recipe's model and tokenizers."""
    if differences := weight_differences(start.recipe, recipe):
        described = (f"{key} is {json.dumps(a)} there and {json.dumps(b)} in the recipe" for key, a, b in differences)
        raise TrainingError(f"--init-from {start.path}: {', '.join(described)}; expected the same")
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
