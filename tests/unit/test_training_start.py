"""Runs that start from trained weights, frozen parts, and the moving average of weights."""

import json
from pathlib import Path

import pytest
import torch

from dragoman_training.data.batches import collate
from dragoman_training.errors import TrainingError
from dragoman_training.optimization.freeze import count_parameters
from dragoman_training.recipe import flatten
from dragoman_training.run.checkpoint import average_checkpoints, checkpoint_path, checkpoint_steps, load_state
from dragoman_training.run.load import load_run
from dragoman_training.trainer import train
from tests.support.training import make_trainer, run_training, same_weights, small_recipe


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the small recipe; do not change it."""
    run = tmp_path_factory.mktemp("first") / "run"
    run_training(small_recipe(), run)
    return run


@pytest.fixture
def other_data(tmp_path: Path) -> str:
    """An override for data that has other symbols than the first run."""
    file = tmp_path / "other.tsv"
    file.write_text("".join(f"{n:04}\tmillion {n}\n" for n in range(300)))
    return f"data.train=[{file}]"


def test_a_run_starts_from_another_with_other_data(first_run: Path, other_data: str, tmp_path: Path) -> None:
    recipe = small_recipe(other_data, "model.dropout=0.3", "model.max_target_length=40", "training.freeze=[encoder]")
    run = tmp_path / "run"
    outcome, shown = run_training(recipe, run, init_from=first_run)
    assert outcome.finished
    assert f"starting from the weights and tokenizers of {first_run}" in shown
    for name in ("source_tokenizer.json", "target_tokenizer.json"):
        assert (run / name).read_bytes() == (first_run / name).read_bytes()
    before, after = load_run(first_run).model.state_dict(), load_run(run).model.state_dict()
    same = {key for key in before if torch.equal(before[key], after[key])}
    assert same == {key for key in before if key.startswith(("encoder.layers.", "encoder.norm."))}
    loaded = load_run(run)
    assert loaded.provenance["start"]["run"] == "run"
    assert loaded.provenance["start"]["steps_averaged"] == [12]
    before_recipe, after_recipe = (flatten(load_run(each).recipe.model_dump(mode="json")) for each in (first_run, run))
    changed = {key for key, value in before_recipe.items() if after_recipe[key] != value}
    assert set(loaded.provenance["start"]["recipe"]) == changed
    assert changed
    assert not set(loaded.unseen_source_tokens) - set(load_run(first_run).unseen_source_tokens)


def test_a_start_is_not_needed_to_resume(first_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = small_recipe()
    run_training(recipe, tmp_path / "uninterrupted", init_from=first_run)
    run = tmp_path / "run"

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    for killed_at in ("learner.Learner.start_from", "optimizer.AdamW.step"):
        with monkeypatch.context() as patch:
            patch.setattr(f"dragoman_training.optimization.{killed_at}", kill)
            init_from = None if run.exists() else first_run
            with pytest.raises(KeyboardInterrupt):
                run_training(recipe, run, resume=run.exists(), init_from=init_from)
    assert checkpoint_steps(run) == [0]
    start = load_run(first_run).model.state_dict()
    assert all(torch.equal(value, start[key]) for key, value in load_state(checkpoint_path(run, 0))["model"].items())
    with pytest.raises(TrainingError) as error:
        run_training(recipe, run, resume=True, init_from=tmp_path)
    assert str(error.value) == (
        f"--init-from {tmp_path}: {run} started from {first_run}; resume it without --init-from"
    )
    assert run_training(recipe, run, resume=True)[0].finished
    assert same_weights(run / "model.pt", tmp_path / "uninterrupted" / "model.pt")
    with pytest.raises(TrainingError, match=f"{first_run} started untrained; resume it without --init-from"):
        run_training(recipe, first_run, resume=True, init_from=run)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["model.heads=4", "model.bias=false"],
            "model.bias is true there and false in the recipe, model.heads is 2 there and 4 in the recipe",
        ),
        (
            ["tokenizers.target={kind: bpe}"],
            'tokenizers.target.kind is "symbols" there and "bpe" in the recipe',
        ),
    ],
)
def test_another_model_is_refused_by_name(overrides: list[str], sentence: str, first_run: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as error:
        run_training(small_recipe(*overrides), tmp_path / "run", init_from=first_run)
    assert str(error.value) == f"--init-from {first_run}: {sentence}; expected the same"


def test_a_start_without_the_languages_of_the_data_is_refused(first_run: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as error:
        run_training(small_recipe("data.train=[{file: a, target_language: de}]"), tmp_path / "run", init_from=first_run)
    assert str(error.value) == f"--init-from {first_run}: it was not trained for the target_language de of data"


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        (None, "no run here (recipe.yaml is missing); expected a directory of dragoman-train"),
        ("manifest.json", "this is a bundle; `dragoman-export --to-run {} RUN` turns it into a run"),
    ],
)
def test_what_is_not_a_run_is_refused(file: str | None, sentence: str, tmp_path: Path) -> None:
    if file is not None:
        (tmp_path / file).touch()
    with pytest.raises(TrainingError) as error:
        run_training(small_recipe(), tmp_path / "run", init_from=tmp_path)
    assert str(error.value) == f"--init-from {tmp_path}: {sentence.format(tmp_path)}"


def test_freezing_needs_a_start_and_something_to_train(first_run: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as error:
        run_training(small_recipe("training.freeze=[decoder]"), tmp_path / "run")
    assert str(error.value) == "training.freeze needs --init-from: frozen parts of an untrained model never learn"
    # The embeddings are the output layer.
    recipe = small_recipe("training.freeze=[embeddings, encoder, decoder]")
    with pytest.raises(TrainingError) as error:
        run_training(recipe, tmp_path / "run", init_from=first_run)
    assert str(error.value) == "training.freeze: [embeddings, encoder, decoder] leaves nothing to train"


def test_parameters_are_counted_once(tmp_path: Path) -> None:
    for shared, output in (("output", 0), ("none", 34 * 16)):
        trainer = make_trainer(small_recipe(f"model.share_embeddings={shared}"), tmp_path / shared)
        trainer.metrics_log.close()
        counts = count_parameters(trainer.learner.model)
        assert counts["output"] == output
        assert counts["embeddings"] == (14 + 34) * 16
        assert sum(counts.values()) == sum(parameter.numel() for parameter in trainer.learner.model.parameters())


# The moving average


def test_the_moving_average_follows_the_weights(tmp_path: Path) -> None:
    trainer = make_trainer(small_recipe("training.ema_decay=0.3"), tmp_path / "run")
    trainer.metrics_log.close()
    learner, batch = trainer.learner, collate(trainer.data.train[:9])
    name = "decoder.layers.0.feed_forward.contract.weight"
    expected = learner.model.state_dict()[name].double()
    for step in range(1, 6):
        learner.update([batch], batch.target_tokens)
        decay = min(0.3, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * learner.model.state_dict()[name].double()
        with learner.evaluated() as model:
            average = model.state_dict()[name]
        torch.testing.assert_close(average.double(), expected, rtol=1e-6, atol=1e-7)
    assert not torch.equal(average, learner.model.state_dict()[name])


def test_the_moving_average_is_saved_evaluated_and_exported(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    options = "training.average_last=2", "model.dropout=0.2"
    run_training(small_recipe(*options), plain)
    recipe, run = small_recipe(*options, "training.ema_decay=0.5"), tmp_path / "run"
    train(recipe, run, device="cpu", max_hours=0)
    run_training(recipe, run, resume=True)
    last = load_state(checkpoint_path(run, 12))
    assert all(torch.equal(v, last["model"][k]) for k, v in load_state(checkpoint_path(plain, 12))["model"].items())
    averaged = [load_state(checkpoint_path(run, step))["ema"] for step in (8, 12)]
    for key, value in average_checkpoints(run, [8, 12])[0].items():
        torch.testing.assert_close(value, (averaged[0][key] + averaged[1][key]) / 2)
    exported, report = load_run(run).model.state_dict(), json.loads((run / "report.json").read_text())
    average = average_checkpoints(run, report["steps_averaged"])[0]
    assert all(torch.equal(value, average[key]) for key, value in exported.items())
    assert report["dev"]["loss"] != json.loads((plain / "report.json").read_text())["dev"]["loss"]
