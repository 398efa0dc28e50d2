"""The training loop: what a run writes, stops, kills and resumes, early stopping, averages."""

import io
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from dragoman_training.data.batches import Batch
from dragoman_training.data.pairs import read_pairs_file
from dragoman_training.evaluation import decoding, evaluate
from dragoman_training.evaluation.evaluate import Evaluation
from dragoman_training.evaluation.metrics import METRICS, Score
from dragoman_training.optimization.learner import Learner
from dragoman_training.run.checkpoint import average_checkpoints, checkpoint_path, checkpoint_steps, load_state
from dragoman_training.run.load import load_run
from dragoman_training.run.metrics_log import read_metrics_log
from dragoman_training.trainer import Outcome, Trainer, loop, overdue, train
from tests.support.training import run_training, small_recipe


def weights(run: Path) -> dict[str, torch.Tensor]:
    model: dict[str, torch.Tensor] = load_state(run / "model.pt")["model"]
    return model


def assert_same_weights(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.fixture(scope="module")
def reference_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the small recipe without interruptions."""
    run = tmp_path_factory.mktemp("reference") / "run"
    run_training(small_recipe(), run)
    return run


def test_files_of_a_run(tmp_path: Path) -> None:
    metrics = "evaluation.metrics=[exact_match, word_error_rate, bleu, chrf, ter]"
    recipe, run = small_recipe(metrics, "evaluation.beam_size=3"), tmp_path / "run"
    outcome, shown = run_training(recipe, run, curves=True)
    assert outcome.finished
    assert {path.name for path in run.iterdir()} == {
        "recipe.yaml",
        ".recipe.yaml",
        "source_tokenizer.json",
        "target_tokenizer.json",
        "data.json",
        "dev.tsv",
        "dev_answers.tsv",
        "longest.tsv",
        "prepared",
        "metrics.jsonl",
        "tensorboard",
        "curves.png",
        "checkpoints",
        "report.json",
        "model.pt",
        "model.sha256",
    }
    # Every fourth step and every sixth (evaluations); the last three are kept.
    assert checkpoint_steps(run) == [6, 8, 12]
    state = load_state(checkpoint_path(run, 12))
    assert state.keys() == {"model", "optimizer", "step", "epoch", "block", "position", "precision"}
    records = read_metrics_log(run)
    assert [r["step"] for r in records if r["kind"] == "train"] == [5, 10, 12]
    assert all(r["gradient_norm"] > 0 for r in records if r["kind"] == "train")
    assert [r["step"] for r in records if r["kind"] == "dev"] == [6, 12]
    report = json.loads((run / "report.json").read_text())
    assert report == outcome.report
    assert report["steps_averaged"] == [12]
    assert report["decoding"] == "beam of 3, length penalty 1"
    assert "bs:1000|seed:12345|" in report["dev"]["ter_signature"]
    assert report["dev"]["word_error_rate_interval"][0] < report["dev"]["word_error_rate_interval"][1]
    assert re.search(r"^dev  exact_match 0.00 \(0.00 to 0.00\)  word_error_rate \d+.\d+ \(\d+", shown, re.MULTILINE)
    assert "step 5/12  loss " in shown
    assert re.search(r"tokens/s  lr \d\.\d\de-\d\d  memory \d\.\d GB  \d\.\d min left", shown)

    loaded = load_run(run)
    assert not loaded.model.training
    assert loaded.provenance["finished"]
    assert loaded.provenance["report"] == report
    assert loaded.provenance["recipe"]["data"]["train"] == ["numbers.train.tsv"]
    answers = [pair.source for pair in read_pairs_file(run / "dev_answers.tsv")]
    assert answers == [pair.source for pair in loaded.dev_pairs()]
    assert len(answers) == 20


def test_curves_are_drawn_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(loop, "draw_curves", lambda records, path: drawn.append(records[-1]["step"]))
    options = "training.evaluate_every=2", "training.steps=6"
    run_training(small_recipe(*options), tmp_path / "often", curves=True)
    assert drawn == [2], "evaluations that follow at once are drawn at the end"
    assert (tmp_path / "often" / "curves.png").exists()
    drawn.clear()
    monkeypatch.setattr(loop, "DRAW_SECONDS", 0)
    run_training(small_recipe(*options), tmp_path / "seldom", curves=True)
    assert drawn == [2, 4, 6]


# Interruptions


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_stops_do_not_change_the_result(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = "training.average_last=2", "model.dropout=0.2", "training.accumulate=2"
    recipe = small_recipe(*options, f"training.precision={precision}")
    run_training(recipe, tmp_path / "uninterrupted")
    stop = threading.Event()
    stop.set()
    assert run_training(recipe, tmp_path / "stopped", resume=True, stop=stop)[0].step == 0
    update = Learner.update
    for step in (1, 5, 6, 11):

        def update_and_stop(self: Learner, batches: list[Batch], tokens: int, step: int = step) -> float:
            loss = update(self, batches, tokens)
            if self.step == step:
                stop.set()
            return loss

        stop.clear()
        monkeypatch.setattr(Learner, "update", update_and_stop)
        assert run_training(recipe, tmp_path / "stopped", resume=True, stop=stop, curves=True)[0] == Outcome(step, None)
    assert (tmp_path / "stopped" / "curves.png").exists(), "drawn at an evaluation"
    stop.clear()
    assert run_training(recipe, tmp_path / "stopped", resume=True, stop=stop)[0].finished
    assert_same_weights(weights(tmp_path / "uninterrupted"), weights(tmp_path / "stopped"))
    reports = [json.loads((tmp_path / name / "report.json").read_text()) for name in ("uninterrupted", "stopped")]
    assert reports[0] == reports[1]
    assert reports[0]["average_and_best"]["average"]["steps"] == [8, 12]


@pytest.mark.parametrize("place", ["answers", "metrics", "the report"])
def test_a_stop_in_the_midst_of_an_evaluation(
    place: str, reference_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, run = threading.Event(), tmp_path / "run"
    calls: list[None] = []

    def stop_at_the_second(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            calls.append(None)
            if len(calls) == 2:
                stop.set()
            assert len(calls) <= 2 or not stop.is_set(), "it goes on"
            return function(*arguments)

        return called

    with monkeypatch.context() as patch:
        module, name = {
            "answers": (decoding, "_best"),
            "metrics": (evaluate, "METRICS"),
            "the report": (Score, "with_interval"),
        }[place]
        if place == "metrics":
            patch.setattr(module, name, {metric: stop_at_the_second(METRICS[metric]) for metric in METRICS})
        else:
            patch.setattr(module, name, stop_at_the_second(getattr(module, name)))
        recipe = small_recipe("evaluation.metrics=[exact_match, sequence_error_rate, word_error_rate, bleu]")
        assert run_training(recipe, run, stop=stop)[0] == Outcome(12 if place == "the report" else 6, None)
    stop.clear()
    assert run_training(recipe, run, resume=True, stop=stop)[0].finished
    assert_same_weights(weights(reference_run), weights(run))


def test_a_step_that_is_overdue_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = small_recipe("training.accumulate=2", "model.dropout=0.2")
    run_training(recipe, tmp_path / "uninterrupted")
    stop, abandoned, run = threading.Event(), threading.Event(), tmp_path / "run"
    steps: list[int | None] = []
    losses: list[None] = []

    def end(step: int | None) -> None:
        steps.append(step)
        abandoned.set()

    def hang(learner: Learner, *arguments: Any, loss: Callable[..., Any] = Learner._loss) -> torch.Tensor:
        losses.append(None)
        result: torch.Tensor = loss(learner, *arguments)  # draws random numbers
        if len(losses) == 15:  # a checkpoint of step 4 has checked a batch once more
            stop.set()
            assert abandoned.wait(60)
            raise KeyboardInterrupt  # instead of the end of the process
        return result

    monkeypatch.setattr(overdue, "GRACE", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "_loss", hang)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, run, device="cpu", stop=stop, abandon=end, console=Console(quiet=True))
    assert steps == [checkpoint_steps(run)[-1]]
    assert steps[0] not in (None, 4), "the step before, which the recipe does not save"
    assert run_training(recipe, run, resume=True)[0].finished
    assert_same_weights(weights(tmp_path / "uninterrupted"), weights(run))


def test_data_that_takes_long_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, abandoned = threading.Event(), threading.Event()
    steps: list[int | None] = []

    def end(step: int | None) -> None:
        steps.append(step)
        abandoned.set()

    def hang(*arguments: Any) -> None:
        stop.set()
        assert abandoned.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(overdue, "GRACE", 0.01)
    monkeypatch.setattr("dragoman_training.trainer.together.prepare", hang)
    with pytest.raises(KeyboardInterrupt):
        train(small_recipe(), tmp_path / "run", device="cpu", stop=stop, abandon=end, console=Console(quiet=True))
    assert steps == [None]


def test_a_checkpoint_of_a_stop_is_not_averaged(tmp_path: Path) -> None:
    recipe, run = small_recipe("training.average_last=3", "training.log_every=1"), tmp_path / "run"
    stop = threading.Event()

    class StopAtFive(Console):
        def print(self, *objects: object, **options: object) -> None:
            if "".join(map(str, objects)).startswith("step 5/"):  # rich 14.0 prints nothing at the end
                stop.set()

    assert train(recipe, run, device="cpu", stop=stop, console=StopAtFive(file=io.StringIO())) == Outcome(5, None)
    assert checkpoint_steps(run) == [4, 5]
    assert not load_run(run).provenance["finished"]
    outcome, shown = run_training(recipe, run, resume=True)
    assert "resuming at step 5" in shown
    assert outcome.report is not None
    assert outcome.report["average_and_best"]["average"]["steps"] == [6, 8, 12]


def test_killed_between_checkpoint_and_evaluation(
    reference_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(self: Trainer) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "evaluate", kill)
        with pytest.raises(KeyboardInterrupt):
            run_training(small_recipe(), tmp_path / "run")
    assert checkpoint_steps(tmp_path / "run")[-1] == 6
    run_training(small_recipe(), tmp_path / "run", resume=True)
    assert [r["step"] for r in read_metrics_log(tmp_path / "run") if r["kind"] == "dev"] == [6, 12]
    assert_same_weights(weights(reference_run), weights(tmp_path / "run"))


def test_a_truncated_checkpoint_is_trained_again(reference_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_training(small_recipe(), run)
    for name in ("model.pt", "report.json"):
        (run / name).unlink()
    last = checkpoint_path(run, 12)
    last.write_bytes(last.read_bytes()[:5000])
    _, shown = run_training(small_recipe(), run, resume=True)
    assert "warning: " in shown
    assert "step-00000012.pt: truncated or modified" in shown.replace("\n", "")
    assert "resuming at step 8" in shown
    assert_same_weights(weights(reference_run), weights(run))


def test_another_precision_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, run = small_recipe("training.precision=auto"), tmp_path / "run"
    stop = threading.Event()
    stop.set()
    for flags, name, change in (
        ({"avx512_bf16": True}, "bf16", None),
        ({}, "fp32", "training.precision changes from bf16 to fp32 at step 0"),
        ({}, "fp32", None),
    ):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda flags=flags: flags)
        if change is None and name == "fp32":
            stop.clear()
        outcome, shown = run_training(recipe, run, resume=True, stop=stop)
        assert f"training.precision: auto is {name} here: " in shown
        assert [line for line in shown.splitlines() if "changes from" in line] == ([change] if change else [])
    assert outcome.report is not None
    assert outcome.report["precision"] == "fp32"
    assert outcome.report["recipe_changes"] == [{"step": 0, "training.precision": ["bf16", "fp32"]}]


# Evaluations and averages


def script_dev_losses(monkeypatch: pytest.MonkeyPatch, losses: dict[int, float]) -> None:
    asked: list[int] = []

    def evaluate(trainer: Trainer) -> tuple[float, Evaluation]:
        """The loss of a step; of the average, which is evaluated after the last step, that of step 0."""
        asked.append(trainer.step)
        return losses[0 if asked.count(trainer.step) > 1 else trainer.step], Evaluation({"1": "one"}, {})

    monkeypatch.setattr(Trainer, "evaluate", evaluate)


def test_early_stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_dev_losses(monkeypatch, {0: 1.0, 2: 3.0, 4: 2.0, 6: 2.5, 8: 2.0, 10: 1.0})
    outcome, shown = run_training(small_recipe("training.evaluate_every=2", "training.patience=2"), tmp_path / "run")
    assert outcome.step == 8
    assert outcome.finished
    assert "dev loss has not improved for 2 evaluations" in shown


@pytest.mark.parametrize(("loss", "kept"), [(0.9, "average"), (1.0, "average"), (1.1, "best")])
def test_average_of_the_best_or_the_best_alone(
    loss: float, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_dev_losses(monkeypatch, {0: loss, 2: 3.0, 4: 1.0, 6: 2.5, 8: 2.0, 10: 4.0, 12: 5.0})
    recipe = small_recipe("training.evaluate_every=2", "training.average_best=2", "training.keep_checkpoints=1")
    outcome, shown = run_training(recipe, tmp_path / "run")
    assert outcome.report is not None
    assert outcome.report["average_and_best"] == {
        "metric": "loss",
        "average": {"steps": [4, 8], "value": loss},
        "best": {"step": 4, "value": 1.0},
        "kept": kept,
    }
    message = "the average of 2 checkpoints has a dev loss of 1.1, worse than 1 of step 4 alone, which is kept instead"
    assert (message in shown) == (kept == "best")
    steps = [4, 8] if kept == "average" else [4]
    assert outcome.report["steps_averaged"] == steps
    assert checkpoint_steps(tmp_path / "run") == [4, 8, 12]
    assert_same_weights(average_checkpoints(tmp_path / "run", steps)[0], weights(tmp_path / "run"))
