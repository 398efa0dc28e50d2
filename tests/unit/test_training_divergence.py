"""Divergence: the run ends, keeps only intact checkpoints, and prints a remedy that works as written."""

import copy
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dragoman_training import cli
from dragoman_training.data.batches import collate
from dragoman_training.errors import TrainingError
from dragoman_training.optimization import learner
from dragoman_training.optimization.divergence import untrained_loss
from dragoman_training.optimization.optimizer import learning_rate
from dragoman_training.recipe import TrainingConfig, load_recipe
from dragoman_training.run.checkpoint import checkpoint_path, checkpoint_steps, load_state
from dragoman_training.run.load import load_run
from dragoman_training.run.metrics_log import read_metrics_log
from dragoman_training.trainer import Trainer
from tests.support.training import SMALL, make_trainer, run_training, small_recipe

OVERRIDES = [
    "training.schedule=inverse_square_root",
    "training.warmup_steps=0",
    "training.evaluate_every=12",
    "training.log_every=1",
    "training.keep_checkpoints=3",
]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    arguments = ["tiny", "--out", str(tmp_path / "run"), "--device", "cpu", "--threads", "1"]
    return arguments + [part for change in [*SMALL, *OVERRIDES] for part in ("--set", change)]


def call(arguments: list[str]) -> tuple[int, str]:
    done = CliRunner().invoke(cli.app, arguments)
    return done.exit_code, done.output.replace("\n", " ")


def remedy(output: str) -> list[str]:
    """Returns the options between backquotes of an error."""
    found = re.search(r"error: .*`(.*?)`", output)
    assert found, output
    return found[1].split()


@pytest.mark.parametrize(("rate", "every"), [(1e20, 1), (300.0, 12)])
def test_divergence_before_the_first_checkpoint(rate: float, every: int, command: list[str], tmp_path: Path) -> None:
    command += ["--set", f"training.learning_rate={rate}", "--set", f"training.checkpoint_every={every}"]
    code, output = call(command)
    assert code == 1
    assert "training has diverged; no checkpoint was saved; to start again, add `--set " in output
    assert checkpoint_steps(tmp_path / "run") == []
    code, output = call(command + remedy(output))
    assert code == 0, output


def explode_from(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the learning rate explode at a step of runs with the recipe's own rate."""

    def rate(config: TrainingConfig, d_model: int, now: int) -> float:
        return 1e20 if now >= step and config.learning_rate > 1e-3 else learning_rate(config, d_model, now)

    monkeypatch.setattr(learner, "learning_rate", rate)


@pytest.mark.parametrize(("every", "kept"), [(4, [4]), (1, [3, 4, 5])])
def test_divergence_after_a_checkpoint(
    every: int, kept: list[int], command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    explode_from(6, monkeypatch)
    run, last = tmp_path / "run", kept[-1]
    command += ["--set", f"training.checkpoint_every={every}"]
    code, output = call(command)
    assert code == 1
    assert checkpoint_steps(run) == kept
    for step in kept:
        weights = load_state(checkpoint_path(run, step))["model"].values()
        assert all(weight.abs().max() < 100 for weight in weights)
    assert f"to continue from the intact checkpoint of step {last}, add `" in output
    assert remedy(output) == ["--resume", "--set", "training.learning_rate=0.0004"]
    code, output = call(command + remedy(output))
    assert code == 0, output
    assert f"resuming at step {last}" in output
    assert f"training.learning_rate changes from 0.004 to 0.0004 at step {last}" in output
    assert load_recipe(run / "recipe.yaml").training.learning_rate == 0.0004
    change = {"step": last, "training.learning_rate": [0.004, 0.0004]}
    assert load_run(run).provenance["report"]["recipe_changes"] == [change]
    rates = {r["step"]: r["learning_rate"] for r in read_metrics_log(run) if r["kind"] == "train"}
    assert rates[last] == pytest.approx(10 * rates[last + 1], rel=0.2)


def test_keys_that_may_change(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    explode_from(6, monkeypatch)
    assert call(command)[0] == 1
    code, output = call([*command, "--resume", "--set", "training.weight_decay=0.1", "--set", "training.clip_norm=0.5"])
    assert code == 1
    assert "was started with a different recipe: training.weight_decay was 0.0 and is 0.1; --resume can only" in output
    lower = ["--resume", "--set", "training.learning_rate=1e-3", "--set", "training.warmup_steps=6"]
    assert call([*command, *lower, "--set", "training.clip_norm=0.5"])[0] == 0


@pytest.fixture
def new_trainer(tmp_path: Path) -> Iterator[Trainer]:
    made = make_trainer(small_recipe(*OVERRIDES), tmp_path / "run")
    yield made
    made.metrics_log.close()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(value: float, new_trainer: Trainer) -> None:
    batch = collate(new_trainer.data.train[:2])
    new_trainer.learner.update([batch], batch.target_tokens)
    before = {key: weight.clone() for key, weight in new_trainer.learner.model.state_dict().items()}
    output_layer = new_trainer.learner.model.decoder.projection.weight
    output_layer.register_hook(lambda gradient: gradient * value)  # type: ignore[no-untyped-call]
    with pytest.raises(TrainingError, match=r"the gradient norm is (nan|inf) at step 2: training has diverged"):
        new_trainer.learner.update([batch], batch.target_tokens)
    assert all(torch.equal(weight, before[key]) for key, weight in new_trainer.learner.model.state_dict().items())


def test_a_loss_that_is_not_finite_changes_nothing(new_trainer: Trainer) -> None:
    batch = collate(new_trainer.data.train[:2])
    with torch.no_grad():
        next(new_trainer.learner.model.encoder.layers.parameters()).fill_(math.nan)
    before = new_trainer.learner.model.decoder.norm.bias.clone()  # type: ignore[operator]
    with pytest.raises(TrainingError, match=r"the loss is nan at step 1: training has diverged"):
        new_trainer.learner.update([batch], batch.target_tokens)
    assert torch.equal(new_trainer.learner.model.decoder.norm.bias, before)  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match=r"the loss is nan at step 0"):
        new_trainer.save(batch)
    assert checkpoint_steps(new_trainer.run) == []


def test_checking_weights_has_no_side_effects(new_trainer: Trainer) -> None:
    """Otherwise the interval of checkpoints would change the result."""
    batch = collate(new_trainer.data.train[:9])
    before = copy.deepcopy(new_trainer.learner.state())
    new_trainer.save(batch)
    after = new_trainer.learner.state()
    assert all(torch.equal(after["model"][name], weight) for name, weight in before["model"].items())
    assert after["optimizer"] == before["optimizer"]  # which has no moments yet
    assert new_trainer.learner.model.training
    assert all(parameter.grad is None for parameter in new_trainer.learner.model.parameters())


def test_an_untrained_model_has_not_diverged(tmp_path: Path) -> None:
    """A wide model whose embedding is its output layer starts at several times the loss of guessing."""
    changes = "model.d_model=512", "model.share_embeddings=output", "model.norm=pre", "training.steps=1"
    _, shown = run_training(small_recipe(*OVERRIDES, *changes), tmp_path / "run")
    assert "step 1/1" in shown
    loss = read_metrics_log(tmp_path / "run")[0]["loss"]
    vocabulary = load_run(tmp_path / "run").tokenizers.target.get_vocab_size()
    assert 2 * math.log(vocabulary) < loss < untrained_loss(vocabulary, 512)


@pytest.mark.parametrize(("warmup", "warns"), [(48, True), (12, False)])
def test_warning_of_a_long_warmup_and_unclipped_norms(warmup: int, warns: bool, tmp_path: Path) -> None:
    recipe = small_recipe(*OVERRIDES, f"training.warmup_steps={warmup}", "training.clip_norm=null")
    _, shown = run_training(recipe, tmp_path / "run")
    warning = (
        f"warning: the warm-up (training.warmup_steps {warmup}) is longer than the run (training.steps 12): "
        "the learning rate rises until the end and only reaches 25% of its peak\n"
    )
    assert (warning in shown) == warns
    norms = [r["gradient_norm"] for r in read_metrics_log(tmp_path / "run") if r["kind"] == "train"]
    assert len(norms) == 12
    assert all(0 < norm < math.inf for norm in norms)
