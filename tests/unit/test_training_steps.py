"""Optimizer steps: accumulation, precisions, memory, and what several processes share."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dragoman_training import cli
from dragoman_training.data.batches import Batch, EncodedPair, collate
from dragoman_training.errors import TrainingError
from dragoman_training.optimization.allocator import finding_lack_of_memory
from dragoman_training.optimization.learner import Learner
from dragoman_training.processes import Processes
from dragoman_training.recipe import Recipe
from dragoman_training.trainer import Trainer
from tests.support.training import make_trainer, run_training, small_recipe

TrainerFactory = Callable[[Recipe], Trainer]


@pytest.fixture
def new_trainer(tmp_path: Path) -> Iterator[TrainerFactory]:
    trainers: list[Trainer] = []

    def make(recipe: Recipe) -> Trainer:
        trainers.append(make_trainer(recipe, tmp_path / f"run-{len(trainers)}"))
        return trainers[-1]

    yield make
    for trainer in trainers:
        trainer.metrics_log.close()


def test_accumulation_equals_one_larger_batch(new_trainer: TrainerFactory) -> None:
    """A mean of means would differ: the parts have different numbers of target tokens."""
    recipe = small_recipe("model.dropout=0", "training.clip_norm=null")
    pairs = [EncodedPair([4, 3], [5, 3]), EncodedPair([5, 6, 3], [7, 8, 9, 10, 3]), EncodedPair([6, 3], [6, 3])]
    one, accumulated = new_trainer(recipe).learner, new_trainer(recipe).learner
    loss = one.update([collate(pairs)], 9)
    assert accumulated.update([collate(pairs[:1]), collate(pairs[1:])], 9) == pytest.approx(loss, rel=1e-5)
    for expected, actual in zip(one.model.parameters(), accumulated.model.parameters(), strict=True):
        # Compares the gradients; the weights show little, since Adam makes equal steps of all gradients.
        means = one.optimizer.state[expected]["exp_avg"], accumulated.optimizer.state[actual]["exp_avg"]
        torch.testing.assert_close(*means, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_precisions_learn(precision: str, new_trainer: TrainerFactory) -> None:
    trainer = new_trainer(small_recipe(f"training.precision={precision}", "training.learning_rate=0.01"))
    batch = collate(trainer.data.train[:20])
    losses = [trainer.learner.update([batch], batch.target_tokens) for _ in range(10)]
    assert losses[-1] < losses[0]
    assert all(parameter.dtype == torch.float32 for parameter in trainer.learner.model.parameters())


def test_memory_is_released_with_each_log_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[None] = []
    monkeypatch.setattr("dragoman_training.trainer.loop.release_memory", lambda: released.append(None))
    run_training(small_recipe("training.log_every=4", "training.evaluate_every=12"), tmp_path / "run")
    assert len(released) == 3


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"),
            " for another 2.00 GiB; ",
        ),
        (
            RuntimeError("CPUAllocator: can't allocate memory: you tried to allocate 64 bytes."),
            " for another 64 bytes; ",
        ),
        (MemoryError(), "; "),
        (RuntimeError("a bug"), None),
    ],
)
def test_a_lack_of_memory_is_one_sentence(error: Exception, message: str | None) -> None:
    with pytest.raises(RuntimeError if message is None else TrainingError) as caught, finding_lack_of_memory():
        raise error
    expected = f"there is not enough memory{message}choose a smaller model, or a lower training.batch_tokens with a "
    assert str(caught.value) == ("a bug" if message is None else f"{expected}higher training.accumulate")


def test_a_run_without_enough_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Learner, "update", fail)
    with pytest.raises(TrainingError, match="there is not enough memory; "):
        run_training(small_recipe(), tmp_path / "run")


def test_a_dry_run_needs_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_stop_on_signals", lambda **_: threading.Event())  # signals are for pytest
    monkeypatch.setattr(Processes, "of_environment", lambda: Processes(0, 2))
    done = CliRunner().invoke(cli.app, ["tiny", "--dry-run"])
    assert done.exit_code == 1
    assert done.stderr == "error: --dry-run needs one process, not 2; start it without torchrun\n"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE: expected a number of processes, got 'two'"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "WORLD_SIZE is 2, but MASTER_ADDR, MASTER_PORT is not set"),
    ],
)
def test_incomplete_variables_of_a_launcher(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert Processes.of_environment().count == 1
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TrainingError) as caught:
        Processes.of_environment()
    assert str(caught.value) == message


def test_random_numbers_depend_on_the_place_alone(new_trainer: TrainerFactory) -> None:
    """Otherwise dropout would differ with the process that a batch is in."""
    learner = new_trainer(small_recipe("model.dropout=0.5")).learner
    batch = collate([EncodedPair([4, 5, 6, 3], [5, 6, 7, 3])], number=1)

    def loss(number: int, step: int) -> float:
        learner.step = step
        learner._seed(number)
        return learner._loss(batch).item()

    assert loss(1, 7) == loss(1, 7)
    assert len({loss(1, 7), loss(2, 7), loss(1, 8)}) == 3


@pytest.mark.parametrize(("accumulate", "processes"), [(2, 2), (3, 2), (1, 3)])
def test_processes_share_the_batches_of_a_step(accumulate: int, processes: int, new_trainer: TrainerFactory) -> None:
    """All run as many; those without a batch of their own run one without targets."""
    recipe = small_recipe(f"training.accumulate={accumulate}")
    alone = new_trainer(recipe)
    expected, tokens = alone._next_batches(alone.sampler.plan())
    assert tokens == sum(batch.target_tokens for batch in expected)
    shares: list[list[Batch]] = []
    for rank in range(processes):
        trainer = new_trainer(recipe)
        trainer.processes = Processes(rank, processes)
        share, same = trainer._next_batches(trainer.sampler.plan())
        assert (same, trainer.position) == (tokens, alone.position)
        shares.append(share)
    assert {len(share) for share in shares} == {-(-accumulate // processes)}
    found = sorted((b for share in shares for b in share if b.target_tokens), key=lambda batch: batch.number)
    assert [batch.number for batch in found] == [*range(accumulate)]
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.target_output, other.target_output)
