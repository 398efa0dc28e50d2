"""Runs that are changed when they resume: more steps, other intervals, a limit of time, and what is refused."""

import io
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dragoman_training import cli
from dragoman_training.errors import TrainingError
from dragoman_training.run.changes import apply_changes
from dragoman_training.run.checkpoint import checkpoint_path, checkpoint_steps, load_state
from dragoman_training.run.interpolate import interpolate
from dragoman_training.run.metrics_log import read_metrics_log
from dragoman_training.trainer.train import _set_after
from tests.support.training import SMALL, run_training, same_weights, small_recipe

STABLE = "training.schedule=warmup_stable_decay", "training.decay_steps=4"


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the small recipe; do not change it."""
    run = tmp_path_factory.mktemp("small") / "run"
    run_training(small_recipe(), run)
    return run


@pytest.mark.parametrize("schedule", ["inverse_square_root", "warmup_stable_decay"])
def test_more_steps_of_a_finished_run_equal_a_longer_run(schedule: str, tmp_path: Path) -> None:
    options = STABLE if schedule == "warmup_stable_decay" else (f"training.schedule={schedule}",)
    options = (*options, "training.average_last=2", "model.dropout=0.2")
    longer = small_recipe(*options, "training.steps=24")
    run_training(longer, tmp_path / "longer")
    run = tmp_path / "run"
    run_training(small_recipe(*options, "training.steps=11"), run)
    assert checkpoint_steps(run) == ([6, 7, 8, 11] if schedule == "warmup_stable_decay" else [6, 8, 11])
    outcome, shown = run_training(longer, run, resume=True)
    assert "model is kept as model-step-11.pt\n" in shown
    if schedule == "warmup_stable_decay":
        line = "the learning rate now falls from step 20 on: the steps after 7, in which it was falling, are repeated"
        assert line in shown
    step = 7 if schedule == "warmup_stable_decay" else 11
    assert f"training.steps changes from 11 to 24 at step {step}" in shown
    assert ("the learning rate goes from 3.00e-03 to 4.00e-03 at step 8" in shown) == (step == 7)
    assert same_weights(tmp_path / "longer" / "model.pt", run / "model.pt")
    assert outcome.report is not None
    assert outcome.report["recipe_changes"] == [{"step": step, "training.steps": [11, 24]}]
    report = json.loads((run / "report-step-11.json").read_text())
    assert report["average_and_best"]["average"]["steps"] == [8, 11]
    assert load_state(run / "model-step-11.pt")["steps"] == report["steps_averaged"]
    assert checkpoint_steps(run) == checkpoint_steps(tmp_path / "longer")
    assert run_training(longer, run, resume=True)[0].report == outcome.report, "a run without changes stays finished"


def test_a_longer_cosine_says_what_happens_to_the_rate(tmp_path: Path) -> None:
    run_training(small_recipe(), tmp_path / "run")
    shown = run_training(small_recipe("training.steps=16"), tmp_path / "run", resume=True)[1]
    assert "the learning rate goes from 0.00e+00 to 4.36e-04 at step 13" in shown


def test_intervals_averages_and_metrics_change(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_training(small_recipe(), run)
    changes = {
        "training.evaluate_every": ("5", 6),
        "training.checkpoint_every": ("3", 4),
        "training.log_every": ("1", 5),
        "training.keep_checkpoints": ("2", 3),
        "training.average_last": ("2", 1),
        "training.patience": ("9", None),
        "evaluation.metrics": ("[chrf]", ["exact_match", "sequence_error_rate", "word_error_rate"]),
        "evaluation.choose_by": ("chrf", "loss"),
    }
    overrides = [f"{key}={new}" for key, (new, _) in changes.items()]
    outcome, _ = run_training(small_recipe(*overrides, "training.steps=20"), run, resume=True)
    assert outcome.report is not None
    [recorded] = outcome.report["recipe_changes"]
    assert {key: recorded[key][0] for key in changes} == {key: old for key, (_, old) in changes.items()}
    assert checkpoint_steps(run) == [18, 20]
    dev = [record for record in read_metrics_log(run) if record["kind"] == "dev"]
    assert [record["step"] for record in dev] == [6, 12, 15, 20]
    assert "chrf" in dev[-1]
    assert "exact_match" not in dev[-1]


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("seed=2", "seed was 1 and is 2"),
        ("training.batch_tokens=200", "training.batch_tokens was 300 and is 200"),
        ("training.schedule=noam", 'training.schedule was "cosine" and is "noam"'),
        ("tokenizers.source.lowercase=true", "tokenizers.source.lowercase was false and is true"),
        ("model.decoder_heads=1", "model.decoder_heads was null and is 1"),
        ("data.dev_held_out_sources=19", "data.dev_held_out_sources was 20 and is 19"),
    ],
)
def test_what_would_change_the_past_is_refused(override: str, sentence: str, small_run: Path) -> None:
    message = (
        f"{small_run} was started with a different recipe: {sentence}; --resume can only change what affects the "
        "steps to come"
    )
    with pytest.raises(TrainingError) as error:
        run_training(small_recipe(override, "training.log_every=1"), small_run, resume=True)
    assert str(error.value) == message


def test_fewer_steps_than_made_are_refused(small_run: Path) -> None:
    with pytest.raises(TrainingError) as error:
        run_training(small_recipe("training.steps=11"), small_run, resume=True)
    assert str(error.value) == (f"training.steps is 11, but {small_run} has made 12 steps; expected at least as many")
    assert (small_run / "model.pt").exists()


def test_the_recipe_of_a_run_may_be_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has changed is not found by comparing the file with itself."""
    monkeypatch.setattr(cli, "_stop_on_signals", lambda **_: threading.Event())  # signals are for pytest
    run_training(small_recipe(), tmp_path)
    file = tmp_path / "recipe.yaml"
    arguments = [str(file), "--out", str(tmp_path), "--device", "cpu", "--threads", "1", "--resume"]
    text = file.read_text()
    for old, new, status, message in (
        ("d_ff: 16", "d_ff: 32", 1, "model.d_ff was 16 and is 32; --resume can only change"),
        ("  steps: 12\n", "  steps: 16\n", 0, "training.steps changes from 12 to 16 at step 12"),
    ):
        assert old in text
        file.write_text(text.replace(old, new))
        done = CliRunner().invoke(cli.app, arguments)
        assert (done.exit_code, message in done.output) == (status, True), done.output
    assert checkpoint_steps(tmp_path)[-1] == 16


def test_a_model_without_checkpoints_is_not_trained_anew(tmp_path: Path) -> None:
    """It would be replaced by one that began untrained."""
    run = tmp_path / "run"
    run_training(small_recipe(), run)
    shutil.rmtree(run / "checkpoints")
    refusal = rf"{run} has a model.pt but no checkpoint to go on from; start a new run with --init-from {run}"
    with pytest.raises(TrainingError, match=refusal):
        run_training(small_recipe("training.steps=16"), run, resume=True)
    interpolate(run, run, tmp_path / "between", 0.5)
    for finished in (run, tmp_path / "between"):
        assert run_training(small_recipe(), finished, resume=True)[0].finished
    (run / "report.json").unlink()  # as `dragoman-export --to-run` writes it
    with pytest.raises(TrainingError, match=refusal):
        run_training(small_recipe(), run, resume=True)
    assert load_state(run / "model.pt")["steps"] == [12]


@pytest.mark.parametrize("changes", [[], ["evaluation.metrics=[chrf]", "evaluation.choose_by=chrf"]])
def test_the_best_of_checkpoints_that_exist_is_taken(changes: list[str], tmp_path: Path) -> None:
    """Those of better steps may be deleted, and another metric may have been measured at no step."""
    run_training(small_recipe("training.keep_checkpoints=1"), tmp_path)
    log = tmp_path / "metrics.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    better = [{**record, "loss": 0.1} if record["step"] == 6 else record for record in records]
    log.write_text("".join(json.dumps(record) + "\n" for record in better))
    recipe = small_recipe("training.keep_checkpoints=1", "training.average_best=1", *changes)
    outcome, _ = run_training(recipe, tmp_path, resume=True)
    assert outcome.report is not None
    assert outcome.report["steps_averaged"] == [12]


@pytest.mark.parametrize("killed_at", [1, 2, 3])
def test_a_kill_while_results_are_renamed(killed_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("report.json", "model.sha256", "model.pt")
    for name in names:
        (tmp_path / name).write_text(name)
    recipe, changed = small_recipe("training.steps=20"), {"training.steps": (12, 20)}
    renames = 0

    def until_the_kill(path: Path, target: Path, rename: Callable[..., Path] = Path.replace) -> Path:
        nonlocal renames
        renames += 1
        if renames == killed_at:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", until_the_kill)
        with pytest.raises(KeyboardInterrupt):
            apply_changes(tmp_path, changed, recipe)
    apply_changes(tmp_path, changed, recipe)
    renamed = {name.replace(".", "-step-0."): name for name in names}
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == renamed


@pytest.mark.parametrize("hours", [float("inf"), 1e12])
def test_a_limit_beyond_all_clocks_is_none(hours: float, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    event = threading.Event()
    with _set_after(event, hours):
        assert not event.wait(0.05)
    assert not failed


class Unread(io.StringIO):
    """A stream whose reader is gone."""

    def flush(self) -> None:
        raise BrokenPipeError


@pytest.mark.parametrize(
    ("code", "processes"), [(cli.EXIT_STOPPED, None), (1, "2")], ids=["stopped", "an error in one of two processes"]
)
@pytest.mark.parametrize("stream", [None, Unread()], ids=["closed", "unread"])
def test_an_end_at_once_without_a_reader(
    stream: io.StringIO | None, code: int, processes: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        raise SystemExit(code)

    statuses: list[int] = []
    monkeypatch.setattr(cli, "configure_process", lambda: None)
    monkeypatch.setattr(cli, "app", work)
    monkeypatch.setattr(os, "_exit", statuses.append)
    if processes is not None:
        monkeypatch.setenv("WORLD_SIZE", processes)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        cli.main()
    assert statuses == [code]


def test_errors_of_the_system_say_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise shutil.SameFileError("a and b are the same file")

    monkeypatch.setattr(cli, "_stop_on_signals", lambda **_: threading.Event())  # signals are for pytest
    monkeypatch.setattr("dragoman_training.trainer.train", fail)
    done = CliRunner().invoke(cli.app, ["tiny", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stderr == "error: the run: a and b are the same file\n"
    assert CliRunner().invoke(cli.app, ["tiny", "--threads", "5000"]).exit_code == 2


def test_a_limit_of_time_stops_with_a_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = ["tiny", "--out", str(run), "--device", "cpu", "--threads", "1"]
    arguments += [part for change in SMALL for part in ("--set", change)]
    # The hours are over while the data is read.
    done = CliRunner().invoke(cli.app, [*arguments, "--max-hours", "0"])
    assert done.exit_code == 75
    assert f"stopped at step 0, saved in {run}; continue with --resume" in done.output.replace("\n", " ")
    assert load_state(checkpoint_path(run, 0))["step"] == 0
    assert CliRunner().invoke(cli.app, [*arguments, "--resume", "--max-hours", "9"]).exit_code == 0
    assert (run / "model.pt").exists()
    refused = CliRunner().invoke(cli.app, [*arguments, "--resume", "--max-hours", "-1"])
    assert refused.exit_code == 2
