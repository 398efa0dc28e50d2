"""Small training runs: the recipe `tiny` made smaller, trained in this process."""

import io
import threading
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import torch
from rich.console import Console

from dragoman_training.data.prepare import prepare
from dragoman_training.progress import ProgressBar
from dragoman_training.recipe import SHIPPED_RECIPES, Recipe, load_recipe
from dragoman_training.run.checkpoint import load_state
from dragoman_training.trainer import Outcome, Trainer, finish, loop, train

TINY = SHIPPED_RECIPES / "tiny.yaml"
SMALL = [
    "model.d_model=16",
    "model.heads=2",
    "model.d_ff=16",
    "data.test=null",
    "data.dev_held_out_sources=20",
    "training.steps=12",
    "training.warmup_steps=2",
    "training.batch_tokens=300",
    "training.checkpoint_every=4",
    "training.evaluate_every=6",
    "training.log_every=5",
    "training.average_last=1",
]


def small_recipe(*overrides: str) -> Recipe:
    """Returns a recipe of twelve steps, which take about a second."""
    return load_recipe(TINY, [*SMALL, *overrides])


def run_training(
    recipe: Recipe,
    run: Path,
    *,
    resume: bool = False,
    stop: threading.Event | None = None,
    init_from: Path | None = None,
    curves: bool = False,
) -> tuple[Outcome, str]:
    """Trains on the CPU; returns the outcome and what was printed.

    Args:
        curves: Whether they are drawn, which takes half of the time of a run as small as `SMALL`.
    """
    output = io.StringIO()
    console = Console(file=output, width=200)
    with ExitStack() as stack:
        for module in () if curves else (loop, finish):
            stack.enter_context(patch.object(module, "draw_curves"))
        outcome = train(recipe, run, resume=resume, device="cpu", stop=stop, init_from=init_from, console=console)
    return outcome, output.getvalue()


def same_weights(one: Path, two: Path) -> bool:
    """Returns whether two files of `save_state` hold the same model, bit for bit."""
    first, second = load_state(one)["model"], load_state(two)["model"]
    return bool(first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first))


def silent_bar(recipe: Recipe) -> ProgressBar:
    """Returns a progress bar that nobody sees."""
    return ProgressBar(recipe.training.steps, Console(quiet=True))


def make_trainer(recipe: Recipe, run: Path) -> Trainer:
    """Returns a trainer at step 0; close its `metrics_log` when done."""
    run.mkdir(exist_ok=True)
    data = prepare(recipe, run, lambda line: None)
    return Trainer(recipe, run, data, torch.device("cpu"), threading.Event(), silent_bar(recipe))
