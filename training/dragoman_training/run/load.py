"""A run's directory, as those who come after training see it."""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from dragoman_training.data.pairs import Pair, read_pairs_file
from dragoman_training.data.tokenizers import NEVER_GENERATED, PAD_ID, load_tokenizer
from dragoman_training.errors import TrainingError
from dragoman_training.files import DEV_FILE, MODEL_FILE, RECIPE_FILE, SOURCE_TOKENIZER, TARGET_TOKENIZER, read_json
from dragoman_training.model import Transformer
from dragoman_training.recipe import ParallelFiles, Recipe, load_recipe
from dragoman_training.run.checkpoint import average_checkpoints, checkpoint_steps, load_state


@dataclass(frozen=True)
class Run:
    """A trained model with what it was made of.

    unseen_source_tokens are ids that no training source holds; none where the run did not write them down.

    provenance holds: finished (whether training came to its end), steps_averaged, recipe (file names instead of paths),
    torch, data (counts), and report (dev and test metrics) where the run is finished.
    """

    path: Path
    recipe: Recipe
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    model: Transformer
    unseen_source_tokens: list[int]
    provenance: dict[str, Any]

    def dev_pairs(self) -> list[Pair]:
        """The pairs that were measured as dev while the run was trained; none where the recipe has no dev set.

        Raises:
            DataError: what the run wrote down of them is gone or damaged.
        """
        return read_pairs_file(self.path / DEV_FILE)


def load_run(path: Path) -> Run:
    """Reads a run: its averaged model, or where training has not ended the average of the checkpoints there are.

    The model writes none of the special tokens but the end token: smoothed labels give them a little probability, but
    no target has one, and they have no text.

    Raises:
        TrainingError: the directory holds no run, no checkpoint, or a damaged file.
    """
    if not (path / RECIPE_FILE).exists():
        raise TrainingError(f"{path}: no run here (recipe.yaml is missing); expected what dragoman-train wrote")
    recipe = load_recipe(path / RECIPE_FILE)
    source, target = load_tokenizer(path / SOURCE_TOKENIZER), load_tokenizer(path / TARGET_TOKENIZER)
    finished = (path / MODEL_FILE).exists()
    if finished:
        state = load_state(path / MODEL_FILE)
        weights, steps = state["model"], state["steps"]
    else:
        steps = checkpoint_steps(path)[-recipe.training.average_last :]
        if not steps:
            raise TrainingError(f"{path}: no model.pt and no checkpoint yet, so there is nothing to load")
        weights, steps = average_checkpoints(path, steps)
    model = Transformer(recipe.model, source.get_vocab_size(), target.get_vocab_size(), PAD_ID)
    try:
        model.load_state_dict(weights)
    except RuntimeError:  # which lists every tensor
        raise TrainingError(
            f"{path}: its weights are not of the shape that recipe.yaml and the tokenizers give"
        ) from None
    model.decoder.forbid(NEVER_GENERATED)
    provenance = _provenance(path, recipe, finished, steps)
    unseen = provenance.get("data", {}).pop("unseen_source_tokens", [])
    return Run(path, recipe, source, target, model.eval(), unseen, provenance)


def _provenance(path: Path, recipe: Recipe, finished: bool, steps: list[int]) -> dict[str, Any]:
    document = recipe.model_dump(mode="json")
    document["data"] = {
        **document["data"],
        **{split: [_names(entry) for entry in getattr(recipe.data, split) or []] for split in ("train", "dev", "test")},
    }
    written = {name: path / f"{name}.json" for name in ("data", "report")}
    return {
        "finished": finished,
        "steps_averaged": steps,
        "recipe": document,
        "torch": version("torch"),
        **{name: found for name, file in written.items() if (found := read_json(file)) is not None},
    }


def _names(entry: Path | ParallelFiles) -> str | list[str]:
    """File names alone: where they lay is nobody's business but the trainer's."""
    return entry.name if isinstance(entry, Path) else [entry.source.name, entry.target.name]
