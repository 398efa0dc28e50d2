"""The training loop: steps, evaluations and checkpoints."""

import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from dragoman_training.data.batches import Batch, BatchSampler, EpochPairs, PlannedBatch, Position
from dragoman_training.data.pairs import Pair
from dragoman_training.data.prepare import TrainingData
from dragoman_training.data.shares import share_out
from dragoman_training.errors import Stopped, TrainingError
from dragoman_training.evaluation.decoding import Search
from dragoman_training.evaluation.evaluate import Evaluation, measure, negative_log_likelihood
from dragoman_training.files import CURVES_FILE
from dragoman_training.model import Transformer
from dragoman_training.optimization.allocator import keep_freed_memory, memory_in_use, release_memory
from dragoman_training.optimization.learner import Learner
from dragoman_training.optimization.optimizer import learning_rate
from dragoman_training.processes import ALONE, Processes
from dragoman_training.progress import ProgressBar, Window
from dragoman_training.recipe import Recipe, TrainingConfig
from dragoman_training.run.changes import Changes, former_training
from dragoman_training.run.checkpoint import (
    checkpoint_path,
    checkpoint_steps,
    delete_checkpoints,
    latest_checkpoint,
    save_state,
)
from dragoman_training.run.metrics_log import MetricsLog, draw_curves
from dragoman_training.run.teachers import load_teachers
from dragoman_training.trainer.time_left import evaluations_left
from dragoman_training.trainer.together import in_first

DRAW_SECONDS = 10  # between two drawings of the curves, which take tenths of a second: evaluations may be frequent


class Trainer:
    """A model in training: weights, optimizer state and position in the data.

    Starts from the newest intact checkpoint of the run, or from scratch. Of several processes, each has one and makes
    the same steps and decisions; process 0 alone uses the run directory.

    Args:
        stop: Event that stops the run, see `train`.
        bar: Where progress is shown.
        processes: Processes that train the model.
    """

    def __init__(
        self,
        recipe: Recipe,
        run: Path,
        data: TrainingData,
        device: torch.device,
        stop: threading.Event,
        bar: ProgressBar,
        processes: Processes = ALONE,
    ) -> None:
        self.recipe = recipe
        self.config = recipe.training
        self.run = run
        self.data = data
        self.device = device
        self.stop = stop
        self.processes = processes
        self.bar, self.echo = bar, bar.echo
        special = data.tokenizers.special
        teachers = load_teachers(recipe, data.tokenizers, device)
        self.learner = Learner(recipe, data.tokenizers.vocabularies, special.pad, device, run, processes, teachers)
        self.sampler = BatchSampler(data.epochs, self.config.batch_tokens, recipe.seed, special)
        self.position = Position()
        self._begin = -1, Position()  # the step before the current one, and the position in the data at its end
        self.former_precision: str | None = None  # of the steps before a resume
        self._draw_from = 0.0  # the time from which on curves are drawn again
        for line in self.learner.notices:
            self.echo(line)
        self._restore()
        self.metrics_log = MetricsLog(run, self.step, processes)
        if device.type == "cpu":
            keep_freed_memory()

    @property
    def step(self) -> int:
        """Optimizer steps made."""
        return self.learner.step

    def warn(self, message: str) -> None:
        """Shows a warning to the user."""
        self.echo(f"warning: {message}")

    def _restore(self) -> None:
        state = self.learner.restore(in_first(self.processes, lambda: latest_checkpoint(self.run, self.warn)))
        if state is None:
            return
        self.position = _position(state, self.data.epochs, self.run)
        self.former_precision = state.get("precision")  # checkpoints of older versions lack it
        self.echo(f"resuming at step {self.step}")

    def record_changes(self, changed: Changes) -> None:
        """Logs and shows the recipe keys that change at this step, each with its old and its new value.

        A precision that auto chooses differently on this machine is such a change.
        """
        former, now = self.former_precision, self.learner.precision.name
        if former not in (None, now):
            changed = {"training.precision": (former, now), **changed}
        for key, (old, new) in changed.items():
            self.echo(f"{key} changes from {old} to {new} at step {self.step}")
        if changed:
            self._show_change_of_rate(former_training(changed, self.recipe))
            self.metrics_log.write_recipe_changes(self.step, changed)

    def _show_change_of_rate(self, former: TrainingConfig) -> None:
        """Shows what the next step's learning rate would have been and is, if it differs."""
        step = self.step + 1
        d_model = self.recipe.model.d_model
        old, new = learning_rate(former, d_model, min(step, former.steps)), learning_rate(self.config, d_model, step)
        if step <= self.config.steps and not math.isclose(old, new, rel_tol=0.01):
            self.echo(f"the learning rate goes from {old:.2e} to {new:.2e} at step {step}")

    def save(self, batch: Batch | None) -> None:
        """Writes a checkpoint of this step and deletes those that are no longer needed.

        Args:
            batch: Batch of this process that the weights are checked with first; None in all processes if they come
                from a checkpoint or are new.

        Raises:
            TrainingError: Training has diverged; nothing is written.
        """
        if batch is not None:
            self.learner.check_weights(batch)
        with self.learner.lock:
            state = self.learner.state() | self.position._asdict()
            self.processes.first_does(lambda: self._write(state))

    def _write(self, state: dict[str, Any]) -> None:
        save_state(checkpoint_path(self.run, self.step), state)
        keep = {self.step, *self.scheduled()[-self.config.keep_checkpoints :], *self.best()}
        if self.config.schedule == "warmup_stable_decay":
            keep.add(self.config.decay_start)  # a run with more steps goes on from there
        delete_checkpoints(self.run, keep)

    def save_overdue(self) -> int:
        """Saves the last step that is done, from another thread, whatever this one is doing.

        No step is done from then on, since the lock is kept: the caller ends the process. Process 0 saves; it can't if
        it has a shard of the weights only.

        Returns:
            The step that a resumed run starts from.
        """
        self.learner.lock.acquire()
        saved = checkpoint_steps(self.run)
        able = self.processes.is_first and not self.learner.sharded
        if self.step in saved or not able or not self.learner.is_finite():
            return max(saved, default=0)
        # During a step, its batches are to be drawn again.
        begin_step, begin = self._begin
        position = begin if begin_step == self.step else self.position
        state = self.learner.state() | position._asdict()
        save_state(checkpoint_path(self.run, self.step), state)
        return self.step

    def _due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.config.steps

    def _save_due(self) -> bool:
        starts_decay = self.config.schedule == "warmup_stable_decay" and self.step == self.config.decay_start
        return self._due(self.config.checkpoint_every) or self._due(self.config.evaluate_every) or starts_decay

    def scheduled(self) -> list[int]:
        """Returns the steps whose checkpoints the recipe schedules.

        A checkpoint that was saved by a stop in between is not one of them: the average at the end must not depend on
        interruptions.
        """
        every = (self.config.checkpoint_every, self.config.evaluate_every)
        steps = checkpoint_steps(self.run)
        return [s for s in steps if s > 0 and (s == self.config.steps or any(s % n == 0 for n in every))]

    def best(self) -> list[int]:
        """Returns the `average_best` steps that are best on dev, among those whose checkpoints still exist."""
        saved = set(checkpoint_steps(self.run))
        ranked = self.metrics_log.best_steps(self.recipe.evaluation.choose_by, self.step)
        return [step for step in ranked if step in saved][: self.config.average_best]

    def run_steps(self) -> bool:
        """Trains until the end of the recipe.

        Returns:
            False if the run was asked to stop; its checkpoint is saved.
        """
        plan = self.sampler.plan(self.position)
        window = Window()
        batches: list[Batch] = []
        self.bar.begin(self.step)
        while not self._evaluate_and_check_end(window):
            if self.processes.any(self.stop.is_set()):
                self.save(batches[-1] if batches else None)
                return False
            batches, tokens = self._next_batches(plan)
            window.add(self.learner.update(batches, tokens), self.learner.gradient_norm, tokens)
            self.bar.advance(self.step)
            if self._due(self.config.log_every):
                self._log(window)
                window = Window()
                release_memory()
            if self._save_due():
                self.save(batches[-1])
        return True

    def _next_batches(self, plan: Iterator[PlannedBatch]) -> tuple[list[Batch], int]:
        """Reads this process's share of the batches of the next step; each process has as many.

        Returns:
            The batches, and the number of target tokens in those of all processes.
        """
        with self.learner.lock:
            self._begin = self.step, self.position
            planned = [next(plan) for _ in range(self.config.accumulate)]
            self.position = planned[-1].position
        shares = share_out([batch.tokens for batch in planned], self.processes.count)
        batches = [planned[i].read(i) for i in shares[self.processes.rank]]
        missing = max(map(len, shares)) - len(batches)
        batches += [planned[0].read().without_targets()] * missing
        return batches, sum(batch.target_tokens for batch in planned)

    def _log(self, window: Window) -> None:
        values = {
            "epoch": self.position.epoch,
            "loss": window.loss / window.tokens,
            "gradient_norm": window.gradient_norm,
            "tokens_per_second": window.tokens / window.seconds(),
            "learning_rate": self.learner.optimizer.param_groups[0]["lr"],
        }
        self.metrics_log.write("train", self.step, values)
        speed, rate = values["tokens_per_second"], values["learning_rate"]
        seconds_left = (self.config.steps - self.step) * window.seconds() / window.steps
        seconds_left += evaluations_left(self.recipe, self.data, self.metrics_log.records, self.step, speed)
        self.bar.report(self.step, values["loss"], speed, rate, memory_in_use(self.device), seconds_left)

    def _evaluate_and_check_end(self, window: Window) -> bool:
        """Evaluates on dev if this step is due, and returns whether training ends here.

        Raises:
            Stopped: The run was asked to stop during the evaluation; the checkpoint of this step is saved.
        """
        metric = self.recipe.evaluation.choose_by
        # A run that was killed during its evaluation has the checkpoint but no record; it evaluates when it resumes.
        evaluated = self.step in self.metrics_log.dev_values("loss")
        if self.step > 0 and self._due(self.config.evaluate_every) and not evaluated and self.data.dev:
            with window.paused():
                begin = time.monotonic()
                loss, evaluation = self.evaluate()
                seconds = round(time.monotonic() - begin, 3)
            values = evaluation.values(loss)
            self.metrics_log.write("dev", self.step, values | {"seconds": seconds})
            if self.processes.is_first and time.monotonic() >= self._draw_from:
                draw_curves(self.metrics_log.records, self.run / CURVES_FILE)
                self._draw_from = time.monotonic() + DRAW_SECONDS
            shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            self.echo(f"step {self.step}  dev  {shown}  ({seconds:.0f} s)")
        patience = self.config.patience
        if patience is not None and self.metrics_log.evaluations_since_best(metric) >= patience:
            self.echo(f"step {self.step}: dev {metric} has not improved for {patience} evaluations; training ends here")
            return True
        return self.step >= self.config.steps

    def raise_if_stopped(self) -> None:
        """Raises Stopped if the run was asked to stop."""
        if self.stop.is_set():
            raise Stopped

    def evaluate(self) -> tuple[float, Evaluation]:
        """Computes loss and metrics on dev; draws no random numbers, so that it does not affect training.

        Raises:
            Stopped: The run was asked to stop meanwhile.
        """
        with self.learner.evaluated() as model:
            with self._autocast():
                loss = negative_log_likelihood(
                    model,
                    self.data.dev,
                    self.config.batch_tokens,
                    before_step=self.raise_if_stopped,
                    processes=self.processes,
                    special=self.data.tokenizers.special,
                )
            return loss, self._measure(model, "dev", self.data.dev_pairs)

    def measure(self, name: str, pairs: list[Pair]) -> Evaluation:
        """Answers the sources of a data set and computes the metrics of the recipe.

        Raises:
            Stopped: The run was asked to stop meanwhile.
        """
        with self.learner.evaluated() as model:
            return self._measure(model, name, pairs)

    def _measure(self, model: Transformer, name: str, pairs: list[Pair]) -> Evaluation:
        config = self.recipe.evaluation
        with self._autocast(), self.bar.answering(name) as answered:
            return measure(
                model,
                self.data.tokenizers,
                pairs,
                config.metrics,
                Search.of(config),
                before_step=self.raise_if_stopped,
                answered=answered,
                processes=self.processes,
            )

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.learner.precision.name == "bf16")


def _position(state: dict[str, Any], epochs: EpochPairs, run: Path) -> Position:
    """Returns the position of a checkpoint.

    Raises:
        TrainingError: It is one of an older version, which did not divide the epochs of this corpus into blocks.
    """
    if "block" not in state and epochs.blocks(state["epoch"]) > 1:
        raise TrainingError(
            f"{run}: was started by an older version, which shuffled large corpora differently; start a new run, "
            f"with --init-from {run} to keep its weights"
        )
    return Position(state["epoch"], state.get("block", 0), state["position"])
