"""The training loop on small runs: what it writes, when it ends, what it averages, what it refuses."""

import io
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console

from dragoman_training.data.batches import Batch, EncodedPair, collate
from dragoman_training.data.prepare import prepare
from dragoman_training.data.tokenizers import SPECIAL_TOKENS
from dragoman_training.errors import TrainingError
from dragoman_training.recipe import SHIPPED_RECIPES, Recipe, load_recipe
from dragoman_training.run import checkpoint
from dragoman_training.run.checkpoint import checkpoint_path, checkpoint_steps, load_state
from dragoman_training.run.directory import lock_directory
from dragoman_training.run.load import load_run
from dragoman_training.run.metrics_log import read_metrics_log
from dragoman_training.trainer import Outcome, Trainer, train

torch.set_num_threads(1)

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


def small(*overrides: str) -> Recipe:
    return load_recipe(SHIPPED_RECIPES / "tiny.yaml", [*SMALL, *overrides])


def go(recipe: Recipe, run: Path, *, resume: bool = False, stop: threading.Event | None = None) -> tuple[Outcome, str]:
    console = Console(file=io.StringIO(), width=200)
    outcome = train(recipe, run, resume=resume, device="cpu", stop=stop, console=console)
    assert isinstance(console.file, io.StringIO)
    return outcome, console.file.getvalue()


def same(run: Path, other: Path, name: str = "model.pt") -> bool:
    one, two = load_state(run / name)["model"], load_state(other / name)["model"]
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def test_what_a_run_leaves(tmp_path: Path) -> None:
    outcome, said = go(small("evaluation.metrics=[exact_match, word_error_rate, bleu, chrf]"), tmp_path / "run")
    run = tmp_path / "run"
    assert outcome.finished
    assert {path.name for path in run.iterdir()} == {
        "recipe.yaml",
        "source_tokenizer.json",
        "target_tokenizer.json",
        "data.json",
        "dev.tsv",
        "longest.tsv",
        "metrics.jsonl",
        "tensorboard",
        "curves.png",
        "checkpoints",
        "report.json",
        "model.pt",
        "model.sha256",
    }
    # Every fourth step, every sixth (where dev is measured), and the last three of them kept.
    assert checkpoint_steps(run) == [6, 8, 12]
    assert load_state(checkpoint_path(run, 12)).keys() == {"model", "optimizer", "step", "epoch", "position", "rng"}
    records = read_metrics_log(run)
    assert [r["step"] for r in records if r["kind"] == "train"] == [5, 10, 12]
    assert [r["step"] for r in records if r["kind"] == "dev"] == [6, 12]
    report = json.loads((run / "report.json").read_text())
    assert report == outcome.report
    assert report["steps_averaged"] == [12]
    assert "version:" in report["dev"]["bleu_signature"]
    assert "step 5/12  loss " in said
    assert "tokens/s" in said

    loaded = load_run(run)
    assert not loaded.model.training
    assert loaded.provenance["finished"]
    assert loaded.provenance["report"] == report
    assert loaded.provenance["recipe"]["data"]["train"] == ["numbers.train.tsv"]
    assert len(loaded.dev_pairs()) == 20


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_stopped_and_resumed_is_as_if_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    options = "training.average_last=2", "model.dropout=0.2", "training.accumulate=2"
    recipe = small(*options, f"training.precision={precision}")
    go(recipe, tmp_path / "whole")
    stop = threading.Event()
    stop.set()
    assert go(recipe, tmp_path / "parts", resume=True, stop=stop)[0].step == 0
    update = Trainer.update
    for step in (1, 5, 6, 11):

        def stopped(self: Trainer, batches: list[Batch], tokens: int, step: int = step) -> float:
            loss = update(self, batches, tokens)
            if self.step == step:
                stop.set()
            return loss

        stop.clear()
        monkeypatch.setattr(Trainer, "update", stopped)
        assert go(recipe, tmp_path / "parts", resume=True, stop=stop)[0] == Outcome(step, None)
    stop.clear()
    assert go(recipe, tmp_path / "parts", resume=True, stop=stop)[0].finished
    assert same(tmp_path / "whole", tmp_path / "parts")
    assert json.loads((tmp_path / "parts" / "report.json").read_text())["steps_averaged"] == [8, 12]


def test_a_stop_saves_where_it_is_and_does_not_count_in_the_average(tmp_path: Path) -> None:
    recipe, run = small("training.average_last=3", "training.log_every=1"), tmp_path / "run"
    stop = threading.Event()

    class StopAtFive(Console):
        def print(self, *objects: object, **options: object) -> None:
            if "".join(map(str, objects)).startswith("step 5/"):  # rich 14.0 prints nothing at the end
                stop.set()

    outcome = train(recipe, run, device="cpu", stop=stop, console=StopAtFive(file=io.StringIO()))
    assert outcome == Outcome(5, None)
    assert checkpoint_steps(run) == [4, 5]
    assert not load_run(run).provenance["finished"]
    outcome, said = go(recipe, run, resume=True)
    assert "resuming at step 5" in said
    assert outcome.report is not None
    assert outcome.report["steps_averaged"] == [6, 8, 12]


def test_killed_between_checkpoint_and_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = small()
    go(recipe, tmp_path / "whole")

    def killed(self: Trainer) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_evaluate", killed)
        with pytest.raises(KeyboardInterrupt):
            go(recipe, tmp_path / "run")
    assert checkpoint_steps(tmp_path / "run")[-1] == 6
    go(recipe, tmp_path / "run", resume=True)
    assert [r["step"] for r in read_metrics_log(tmp_path / "run") if r["kind"] == "dev"] == [6, 12]
    assert same(tmp_path / "whole", tmp_path / "run")


def test_a_truncated_checkpoint_costs_only_the_way_from_the_one_before(tmp_path: Path) -> None:
    recipe, run = small(), tmp_path / "run"
    go(recipe, run)
    before = load_state(run / "model.pt")["model"]
    for name in ("model.pt", "report.json"):
        (run / name).unlink()
    last = checkpoint_path(run, 12)
    last.write_bytes(last.read_bytes()[:5000])
    _, said = go(recipe, run, resume=True)
    assert "warning: " in said
    assert "step-00000012.pt: truncated or modified" in said.replace("\n", "")
    assert "resuming at step 8" in said
    after = load_state(run / "model.pt")["model"]
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_memory_is_given_back_with_every_line_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[str] = []
    monkeypatch.setattr("dragoman_training.trainer.release_memory", lambda: times.append("given"))
    go(small("training.log_every=4"), tmp_path / "run")
    assert len(times) == 3


def scripted_dev(monkeypatch: pytest.MonkeyPatch, losses: dict[int, float]) -> None:
    monkeypatch.setattr(Trainer, "_evaluate", lambda self: (losses[self.step], {}))


def test_early_stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_dev(monkeypatch, {2: 3.0, 4: 2.0, 6: 2.5, 8: 2.0, 10: 1.0})
    recipe = small("training.evaluate_every=2", "training.patience=2")
    outcome, said = go(recipe, tmp_path / "run")
    assert outcome.step == 8
    assert outcome.finished
    assert "dev loss has not improved for 2 evaluations" in said


def test_average_of_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_dev(monkeypatch, {2: 3.0, 4: 1.0, 6: 2.5, 8: 2.0, 10: 4.0, 12: 5.0})
    recipe = small("training.evaluate_every=2", "training.average_best=2", "training.keep_checkpoints=1")
    outcome, _ = go(recipe, tmp_path / "run")
    assert outcome.report is not None
    assert outcome.report["steps_averaged"] == [4, 8]
    assert checkpoint_steps(tmp_path / "run") == [4, 8, 12]
    mean, _ = checkpoint.average_checkpoints(tmp_path / "run", [4, 8])
    model = load_state(tmp_path / "run" / "model.pt")["model"]
    assert all(torch.equal(mean[key], model[key]) for key in mean)


MakeTrainer = Callable[[Recipe], Trainer]


@pytest.fixture
def make_trainer(tmp_path: Path) -> Iterator[MakeTrainer]:
    made: list[Trainer] = []

    def make(recipe: Recipe) -> Trainer:
        run = tmp_path / f"run-{len(made)}"
        run.mkdir()
        data = prepare(recipe, run, lambda line: None)
        made.append(Trainer(recipe, run, data, torch.device("cpu"), threading.Event(), lambda line: None))
        return made[-1]

    yield make
    for trainer in made:
        trainer.metrics_log.close()


def test_accumulation_is_one_larger_batch(make_trainer: MakeTrainer) -> None:
    """Not the same as a mean of means: the parts have different numbers of target tokens."""
    recipe = small("model.dropout=0", "training.clip_norm=null")
    pairs = [EncodedPair([4, 3], [5, 3]), EncodedPair([5, 6, 3], [7, 8, 9, 10, 3]), EncodedPair([6, 3], [6, 3])]
    whole, parts = make_trainer(recipe), make_trainer(recipe)
    loss = whole.update([collate(pairs)], 9)
    assert parts.update([collate(pairs[:1]), collate(pairs[1:])], 9) == pytest.approx(loss, rel=1e-5)
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        # The mean of the gradients; the weights are no measure, since Adam makes equal steps of all gradients.
        means = whole.optimizer.state[one]["exp_avg"], parts.optimizer.state[other]["exp_avg"]
        torch.testing.assert_close(*means, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_precisions_learn(precision: str, make_trainer: MakeTrainer) -> None:
    loop = make_trainer(small(f"training.precision={precision}", "training.learning_rate=0.01"))
    batch = collate(loop.data.train[:20])
    losses = [loop.update([batch], batch.target_tokens) for _ in range(10)]
    assert losses[-1] < losses[0]
    assert all(parameter.dtype == torch.float32 for parameter in loop.model.parameters())


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    recipe, run = small(), tmp_path / "run"
    go(recipe, run)
    with pytest.raises(TrainingError, match="already holds a run; continue it with --resume"):
        go(recipe, run)
    with pytest.raises(TrainingError, match=r"another recipe, .*recipe\.yaml: seed, training\.steps changed"):
        go(small("training.steps=20", "seed=2"), run, resume=True)
    outcome, _ = go(recipe, run, resume=True)
    assert outcome.finished


def test_one_process_trains_in_a_directory(tmp_path: Path) -> None:
    with lock_directory(tmp_path / "run"), pytest.raises(TrainingError, match="another process is training there"):
        go(small("training.steps=3"), tmp_path / "run")
    assert go(small("training.steps=3"), tmp_path / "run")[0].finished


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_what_a_run_wrote_and_was_damaged_is_named(content: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    go(small("training.steps=3"), run)
    for name in ("data.json", "report.json"):
        sound = (run / name).read_text()
        (run / name).write_text(content)
        with pytest.raises(TrainingError, match=rf"{name}: (cannot be read as JSON|expected a JSON object)"):
            load_run(run)
        (run / name).write_text(sound)


def test_weights_of_another_recipe(tmp_path: Path) -> None:
    go(small("training.steps=3"), tmp_path / "run")
    recipe = tmp_path / "run" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("d_ff: 16", "d_ff: 32"))
    with pytest.raises(TrainingError, match=r"the shapes of the weights do not match recipe\.yaml") as error:
        load_run(tmp_path / "run")
    assert "\n" not in str(error.value)


def test_an_attempt_that_came_to_nothing_binds_nobody(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no such data file"):
        go(small("data.train=[none.tsv]"), tmp_path / "run")
    assert go(small("training.steps=3"), tmp_path / "run")[0].finished


def test_joint_vocabulary(tmp_path: Path) -> None:
    recipe = small(
        "tokenizers={joint: true, source: {kind: bpe, vocabulary: 400}}",
        "model.share_embeddings=all",
        "model.max_source_length=40",
        "model.max_target_length=60",
        "training.steps=3",
    )
    assert go(recipe, tmp_path / "run")[0].finished
    run = load_run(tmp_path / "run")
    assert run.source_tokenizer.to_str() == run.target_tokenizer.to_str()
    assert run.model.encoder.embedding.tokens.weight is run.model.decoder.projection.weight
    # Sources are digits: no other byte was trained, and no piece of a target.
    unseen = {run.source_tokenizer.id_to_token(token) for token in run.unseen_source_tokens}
    assert {"<0xF0>", "▁thousand"} <= unseen
    assert not {"7", "▁", *SPECIAL_TOKENS} & unseen
    assert "unseen_source_tokens" not in run.provenance["data"]


def test_runs_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"no run here \(recipe\.yaml is missing\)"):
        load_run(tmp_path)
    go(small("training.steps=3"), tmp_path / "run")
    model = tmp_path / "run" / "model.pt"
    model.write_bytes(model.read_bytes()[:1000])
    with pytest.raises(TrainingError, match=r"model\.pt: truncated or modified"):
        load_run(tmp_path / "run")
