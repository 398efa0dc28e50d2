"""Loads a training run: its recipe, tokenizers, averaged weights and provenance."""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dragoman_training.data.encode import Tokenizers
from dragoman_training.data.pairs import Pair, read_pairs_file
from dragoman_training.data.tokenizers import NEVER_GENERATED
from dragoman_training.errors import TrainingError
from dragoman_training.files import (
    DATA_FILE,
    DEV_FILE,
    MODEL_FILE,
    RECIPE_FILE,
    REPORT_FILE,
    SOURCE_TOKENIZER,
    START_FILE,
    TARGET_TOKENIZER,
    read_json,
)
from dragoman_training.model import Transformer
from dragoman_training.recipe import DataFile, Recipe, file_paths, flatten, load_recipe
from dragoman_training.run.checkpoint import average_checkpoints, checkpoint_steps, load_state


@dataclass(frozen=True)
class Run:
    """A trained model and where it comes from.

    Attributes:
        path: The run directory.
        unseen_source_tokens: Ids that occur in no training source; empty for runs that did not record them.
        provenance: `finished` (whether training reached its end), `steps_averaged`, `recipe` (with file names instead
            of paths), `torch` (its version), `data` (counts), for finished runs `report` (dev and test metrics), and
            `start` (the same of the run whose weights it started from, if any; its `recipe` has the keys whose values
            differ from those of the later run).
    """

    path: Path
    recipe: Recipe
    tokenizers: Tokenizers
    model: Transformer
    unseen_source_tokens: list[int]
    provenance: dict[str, Any]

    def dev_pairs(self) -> list[Pair]:
        """Returns the pairs that were the dev set during training; empty if the recipe has no dev set.

        Raises:
            DataError: The run's dev.tsv is missing or damaged.
        """
        return read_pairs_file(self.path / DEV_FILE)


def check_run(path: Path) -> None:
    """Checks that a directory holds a run. Raises TrainingError."""
    if (path / RECIPE_FILE).exists():
        return
    if (path / "manifest.json").exists():
        command = f"dragoman-export --to-run {path} RUN"
        raise TrainingError(f"{path}: this is a bundle; `{command}` turns it into a run")
    raise TrainingError(f"{path}: no run here ({RECIPE_FILE} is missing); expected a directory of dragoman-train")


def load_run(path: Path) -> Run:
    """Loads a run with its averaged weights; of an unfinished run, the average of its last checkpoints.

    The loaded model generates no special tokens except the end token. Label smoothing gives the others a little
    probability, but they occur in no target and have no text. What an imported model generates is up to its settings.

    Raises:
        TrainingError: The directory holds no run or no checkpoint, or one of its files is damaged.
    """
    check_run(path)
    recipe = load_recipe(path / RECIPE_FILE)
    tokenizers = Tokenizers.load(path / SOURCE_TOKENIZER, path / TARGET_TOKENIZER)
    finished = (path / MODEL_FILE).exists()
    if finished:
        state = load_state(path / MODEL_FILE)
        weights, steps = state["model"], state["steps"]
    else:
        steps = checkpoint_steps(path)[-recipe.training.average_last :]
        if not steps:
            raise TrainingError(f"{path}: neither {MODEL_FILE} nor a checkpoint exists, so there is nothing to load")
        weights, steps = average_checkpoints(path, steps)
    model = Transformer(recipe.model, *tokenizers.vocabularies, tokenizers.special.pad)
    try:
        model.load_state_dict(weights)
    except RuntimeError:  # its message lists every tensor
        raise TrainingError(
            f"{path}: the shapes of the weights do not match {RECIPE_FILE} and the tokenizers"
        ) from None
    if tokenizers.rules is None:
        model.decoder.forbid(NEVER_GENERATED)
    elif recipe.model.output_bias:
        model.decoder.forbid(())
    provenance = _provenance(path, recipe, finished, steps)
    unseen = provenance.get("data", {}).pop("unseen_source_tokens", [])
    return Run(path, recipe, tokenizers, model.eval(), unseen, provenance)


def _provenance(path: Path, recipe: Recipe, finished: bool, steps: list[int]) -> dict[str, Any]:
    document = recipe.model_dump(mode="json")
    splits = ("train", "dev", "test")
    names = {split: [_file_names(entry) for entry in getattr(recipe.data, split) or []] for split in splits}
    document["data"] = {**document["data"], **names}
    document["training"]["teachers"] = [run.name for run in recipe.training.teachers]
    records = {"data": read_json(path / DATA_FILE), "report": read_json(path / REPORT_FILE)}
    start = read_json(path / START_FILE)
    return {
        **({} if start is None else {"start": _earlier(start["run"], start["provenance"], document)}),
        "finished": finished,
        "steps_averaged": steps,
        "recipe": document,
        "torch": version("torch"),
        **{name: record for name, record in records.items() if record is not None},
    }


def _earlier(run: str, provenance: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """Returns the provenance of a run that another started from, with what differs from the other's recipe."""
    found, recipe = {"run": Path(run).name, **provenance}, provenance.get("recipe")
    if recipe is not None:
        known = flatten(later)
        found["recipe"] = {
            key: value for key, value in flatten(recipe).items() if key not in known or known[key] != value
        }
        if "start" in found:
            found["start"] = _earlier(found["start"]["run"], found["start"], recipe)
    return found


def _file_names(entry: DataFile) -> str | list[str]:
    """Returns file names without their directories, which are private to the machine that trained."""
    names = [path.name for path in file_paths(entry)]
    return names[0] if len(names) == 1 else names
