"""A run that diverges: it ends with its sound checkpoints alone, and what it says to do next works as it is written."""

import io
import math
import re
import threading
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from dragoman_training import cli, trainer
from dragoman_training.data.batches import collate
from dragoman_training.data.prepare import prepare
from dragoman_training.errors import TrainingError
from dragoman_training.optimization import divergence
from dragoman_training.optimization.optimizer import learning_rate
from dragoman_training.recipe import SHIPPED_RECIPES, TrainingConfig, load_recipe
from dragoman_training.run.checkpoint import checkpoint_path, checkpoint_steps, load_state
from dragoman_training.run.load import load_run
from dragoman_training.run.metrics_log import read_metrics_log
from dragoman_training.trainer import Trainer, train

torch.set_num_threads(1)

SMALL = [
    "model.d_model=16",
    "model.heads=2",
    "model.d_ff=16",
    "data.test=null",
    "data.dev_held_out_sources=20",
    "training.steps=12",
    "training.schedule=inverse_square_root",
    "training.warmup_steps=0",
    "training.batch_tokens=300",
    "training.checkpoint_every=4",
    "training.evaluate_every=12",
    "training.log_every=1",
    "training.average_last=1",
    "training.keep_checkpoints=3",
]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("dragoman_training.cli.signal.signal", lambda *_: None)
    arguments = ["tiny", "--out", str(tmp_path / "run"), "--device", "cpu", "--threads", "1"]
    return arguments + [part for change in SMALL for part in ("--set", change)]


def call(arguments: list[str]) -> tuple[int, str]:
    done = CliRunner().invoke(cli.app, arguments)
    return done.exit_code, done.output.replace("\n", " ")


def advice(said: str) -> list[str]:
    """The flags that an error gives between backquotes."""
    found = re.search(r"error: .*`(.*?)`", said)
    assert found, said
    return found[1].split()


@pytest.mark.parametrize(("rate", "every"), [(1e20, 1), (300.0, 12)])
def test_at_once(rate: float, every: int, command: list[str], tmp_path: Path) -> None:
    command += ["--set", f"training.learning_rate={rate}", "--set", f"training.checkpoint_every={every}"]
    code, said = call(command)
    assert code == 1
    assert "training has diverged" in said
    assert "no checkpoint was saved; to start again, add `" in said
    assert checkpoint_steps(tmp_path / "run") == []
    code, said = call(command + advice(said))
    assert code == 0, said


def rates_that_explode(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """From this step on, in a run with the recipe's own learning rate."""

    def rate(config: TrainingConfig, d_model: int, now: int) -> float:
        return 1e20 if now >= step and config.learning_rate > 1e-3 else learning_rate(config, d_model, now)

    monkeypatch.setattr(trainer, "learning_rate", rate)


@pytest.mark.parametrize(("every", "kept"), [(4, [4]), (1, [3, 4, 5])])
def test_on_the_way(
    every: int, kept: list[int], command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates_that_explode(monkeypatch, 6)
    run = tmp_path / "run"
    command += ["--set", f"training.checkpoint_every={every}"]
    code, said = call(command)
    assert code == 1
    assert checkpoint_steps(run) == kept
    for step in kept:
        weights = load_state(checkpoint_path(run, step))["model"].values()
        assert all(weight.abs().max() < 100 for weight in weights)
    last = kept[-1]
    assert f"to continue from the intact checkpoint of step {last}, add `" in said
    assert advice(said) == ["--resume", "--set", "training.learning_rate=0.0004"]
    code, said = call(command + advice(said))
    assert code == 0, said
    assert f"resuming at step {last}" in said
    assert "training.learning_rate changes from 0.004 to 0.0004 at step" in said
    assert load_recipe(run / "recipe.yaml").training.learning_rate == 0.0004
    change = {"step": last, "training.learning_rate": [0.004, 0.0004]}
    assert load_run(run).provenance["report"]["recipe_changes"] == [change]
    rates = {r["step"]: r["learning_rate"] for r in read_metrics_log(run) if r["kind"] == "train"}
    assert rates[last] == pytest.approx(10 * rates[last + 1], rel=0.2)


def test_what_a_run_may_go_on_with(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates_that_explode(monkeypatch, 6)
    assert call(command)[0] == 1
    code, said = call([*command, "--resume", "--set", "training.weight_decay=0.1", "--set", "training.clip_norm=0.5"])
    assert code == 1
    assert "was started with another recipe" in said
    assert ": training.weight_decay changed" in said
    lower = ["--resume", "--set", "training.learning_rate=1e-3", "--set", "training.warmup_steps=6"]
    assert call([*command, *lower, "--set", "training.clip_norm=0.5"])[0] == 0
    # What is finished stays what it is.
    assert "another recipe" in call([*command, *lower])[1]


@pytest.fixture
def loop(tmp_path: Path) -> Trainer:
    recipe = load_recipe(SHIPPED_RECIPES / "tiny.yaml", SMALL)
    data = prepare(recipe, tmp_path, lambda line: None)
    return Trainer(recipe, tmp_path, data, torch.device("cpu"), threading.Event(), lambda line: None)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(broken: float, loop: Trainer) -> None:
    batch = collate(loop.data.train[:2])
    loop.update([batch], batch.target_tokens)
    before = {key: value.clone() for key, value in loop.model.state_dict().items()}
    loop.model.decoder.projection.weight.register_hook(lambda gradient: gradient * broken)  # type: ignore[no-untyped-call]
    with pytest.raises(TrainingError, match=r"the gradient norm is (nan|inf) at step 2: training has diverged"):
        loop.update([batch], batch.target_tokens)
    assert all(torch.equal(value, before[key]) for key, value in loop.model.state_dict().items())
    loop.metrics_log.close()


def test_a_loss_that_is_not_finite_changes_nothing(loop: Trainer) -> None:
    batch = collate(loop.data.train[:2])
    with torch.no_grad():
        next(loop.model.encoder.layers.parameters()).fill_(math.nan)
    before = loop.model.decoder.norm.bias.clone()  # type: ignore[operator]
    with pytest.raises(TrainingError, match=r"the loss is nan at step 1: training has diverged"):
        loop.update([batch], batch.target_tokens)
    assert torch.equal(loop.model.decoder.norm.bias, before)  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match=r"the loss is nan at step 0"):
        loop.save(batch)
    assert checkpoint_steps(loop.run) == []
    loop.metrics_log.close()


def test_an_untrained_model_has_not_diverged(tmp_path: Path) -> None:
    """A wide one pays several times what guessing costs, where its embedding is its output layer too."""
    changes = "model.d_model=512", "model.share_embeddings=output", "model.norm=pre", "training.steps=1"
    assert "step 1/1" in said_by(tmp_path / "run", *changes)
    loss = read_metrics_log(tmp_path / "run")[0]["loss"]
    vocabulary = load_run(tmp_path / "run").target_tokenizer.get_vocab_size()
    assert 2 * math.log(vocabulary) < loss < divergence.untrained_loss(vocabulary, 512)


def test_weights_are_tried_without_a_trace(loop: Trainer) -> None:
    """Else a run that saves more often would be another run."""
    batch = collate(loop.data.train[:9])
    before = torch.get_rng_state()
    loop.save(batch)
    assert torch.equal(torch.get_rng_state(), before)
    assert loop.model.training
    assert all(parameter.grad is None for parameter in loop.model.parameters())
    loop.metrics_log.close()


def said_by(run: Path, *changes: str) -> str:
    console = Console(file=io.StringIO(), width=200)
    train(load_recipe(SHIPPED_RECIPES / "tiny.yaml", [*SMALL, *changes]), run, device="cpu", console=console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_gradient_norms_are_written_down(tmp_path: Path) -> None:
    said_by(tmp_path / "run", "training.clip_norm=null", "training.log_every=4")
    norms = [r["gradient_norm"] for r in read_metrics_log(tmp_path / "run") if r["kind"] == "train"]
    assert len(norms) == 3
    assert all(0 < norm < math.inf for norm in norms)


def test_a_warm_up_longer_than_the_run_is_said(tmp_path: Path) -> None:
    warning = (
        "warning: the warm-up (training.warmup_steps 48) is longer than the run (training.steps 12): "
        "the learning rate rises until the end and only reaches 25% of its peak\n"
    )
    assert warning in said_by(tmp_path / "long", "training.warmup_steps=48")
    assert "warm-up" not in said_by(tmp_path / "fits", "training.warmup_steps=12")


def test_data_that_are_refused_leave_no_run(tmp_path: Path) -> None:
    """With `--resume` such an attempt would be taken up."""
    han, run = tmp_path / "han.tsv", tmp_path / "run"
    han.write_text("".join(f"{n}\t{chr(0x4E00 + n)}\n" for n in range(300)), encoding="utf-8")
    small = "tokenizers={source: {kind: characters}, target: {kind: unigram, vocabulary: 400}}"
    with pytest.raises(TrainingError, match=r"tokenizers\.target\.vocabulary \(400\) is too small"):
        said_by(run, f"data.train=[{han}]", small)
    assert list(run.iterdir()) == []
    with pytest.raises(TrainingError, match="no run here"):
        load_run(run)
