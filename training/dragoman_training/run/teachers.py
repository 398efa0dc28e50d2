"""The teachers of a run: other runs, whose distributions it learns."""

from pathlib import Path

import torch

from dragoman_training.data.encode import Tokenizers
from dragoman_training.errors import TrainingError
from dragoman_training.model import Transformer
from dragoman_training.recipe import Recipe
from dragoman_training.run.load import check_run, load_run


def check_teachers(recipe: Recipe) -> None:
    """Checks before any work that the teachers exist. Raises TrainingError."""
    try:
        for run in recipe.training.teachers:
            check_run(run)
    except TrainingError as error:
        raise TrainingError(f"training.teachers: {error}") from None


def load_teachers(recipe: Recipe, tokenizers: Tokenizers, device: torch.device) -> list[Transformer]:
    """Loads the teachers of a recipe, in eval mode.

    Args:
        tokenizers: Those of the model that learns.
        device: Where the teachers compute.

    Raises:
        TrainingError: One of them is missing or damaged, has other tokenizers, or takes no texts as long as the recipe.
    """
    return [_load(run, recipe, tokenizers).to(device) for run in recipe.training.teachers]


def _load(path: Path, recipe: Recipe, tokenizers: Tokenizers) -> Transformer:
    try:
        run = load_run(path)
    except TrainingError as error:
        raise TrainingError(f"training.teachers: {error}") from None
    for side in ("source", "target"):
        theirs, ours = getattr(run.tokenizers, side), getattr(tokenizers, side)
        if theirs.get_vocab() != ours.get_vocab():
            raise TrainingError(
                f"training.teachers: {path} has another {side} vocabulary; expected the same, as a run has that starts "
                "with --init-from a teacher or a smaller copy of it (`python -m dragoman_training.shrink`)"
            )
        key = f"max_{side}_length"
        there, here = getattr(run.recipe.model, key), getattr(recipe.model, key)
        if there < here:
            raise TrainingError(f"training.teachers: model.{key} is {there} in {path} and {here} in the recipe")
    return run.model.requires_grad_(False)
