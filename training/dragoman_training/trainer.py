"""The training loop: steps, evaluations, checkpoints, and the average of them at the end."""

import json
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from torch import Tensor

from dragoman_training.data.batches import Batch, BatchSampler
from dragoman_training.data.pairs import Pair, distinct_sources
from dragoman_training.data.prepare import TrainingData, prepare
from dragoman_training.data.tokenizers import PAD_ID
from dragoman_training.errors import TrainingError
from dragoman_training.evaluation.evaluate import measure, negative_log_likelihood
from dragoman_training.evaluation.metrics import Score
from dragoman_training.files import CURVES_FILE, MODEL_FILE, RECIPE_FILE, REPORT_FILE, read_json, write_text
from dragoman_training.model import Transformer
from dragoman_training.optimization import divergence
from dragoman_training.optimization.allocator import give_back, keep_freed
from dragoman_training.optimization.loss import smoothed_cross_entropy
from dragoman_training.optimization.optimizer import build_optimizer, learning_rate, warmup_warning
from dragoman_training.progress import ProgressBar, Window
from dragoman_training.recipe import Recipe, save_recipe
from dragoman_training.run.checkpoint import (
    average_checkpoints,
    checkpoint_path,
    checkpoint_steps,
    drop_checkpoints,
    latest_checkpoint,
    save_state,
)
from dragoman_training.run.directory import lock_directory, prepare_directory
from dragoman_training.run.metrics_log import MetricsLog, draw_curves


class _Stopped(Exception):
    """Raised inside an evaluation when the run is asked to stop."""


@dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended: finished with a report, or asked to stop at a step, with its checkpoint saved."""

    step: int
    report: dict[str, Any] | None

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.report is not None


def train(
    recipe: Recipe,
    run: Path,
    *,
    resume: bool = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    threads: int | None = None,
    stop: threading.Event | None = None,
    console: Console | None = None,
) -> Outcome:
    """Trains a model as the recipe says and leaves everything in the run's directory.

    On one CPU with one thread count the result is a function of the recipe and the data, however often the run was
    stopped or killed and resumed on its way.

    Args:
        recipe: what to do.
        run: the run's directory; made where it does not exist.
        resume: go on where the run's last checkpoint is (from the start, where there is none); what `CHANGEABLE` names
            may differ from the recipe that the run was begun with.
        device: auto takes CUDA where PyTorch finds it.
        threads: of PyTorch on the CPU; None leaves its choice.
        stop: once set, the run saves a checkpoint after the step it is in, and returns.
        console: where progress goes; None for standard error.

    Raises:
        TrainingError: the directory holds another run, data is bad, or training has diverged; the checkpoints there are
            then from before.
    """
    place = _device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    with lock_directory(run):
        return _train(recipe, run, resume, place, stop or threading.Event(), console or Console(stderr=True))


def _train(
    recipe: Recipe, run: Path, resume: bool, place: torch.device, stop: threading.Event, console: Console
) -> Outcome:
    changed = prepare_directory(recipe, run, resume)
    ended = read_json(run / REPORT_FILE)
    if (run / MODEL_FILE).exists() and ended is not None:
        return Outcome(ended["steps_trained"], ended)
    report: dict[str, Any] | None = None
    with ProgressBar(recipe.training.steps, console) as bar:
        warning = warmup_warning(recipe.training)
        if warning:
            bar.say(f"warning: {warning}")
        data = prepare(recipe, run, bar.say)
        trainer = Trainer(recipe, run, data, place, stop, bar.say)
        try:
            trainer.note(changed)
            # Not before, so that data that are refused leave no run behind; but before anything is learned.
            save_recipe(recipe, run / RECIPE_FILE)
            if trainer.run_steps(bar):
                report = trainer.finish()
        except _Stopped:
            pass  # its checkpoint is saved; what was begun is done again by the resumed run
        finally:
            trainer.journal.close()
    return Outcome(trainer.step, report)


def _device(choice: Literal["auto", "cpu", "cuda"]) -> torch.device:
    if choice == "cuda" and not torch.cuda.is_available():
        raise TrainingError("device cuda was asked for, but PyTorch finds no CUDA device")
    return torch.device("cuda" if choice != "cpu" and torch.cuda.is_available() else "cpu")


class Trainer:
    """One model being trained: its weights, its optimizer, and its place in the data.

    Starts where the run's newest whole checkpoint is, or at the beginning.

    Args:
        stop: see `train`.
        say: takes lines for the user.
    """

    def __init__(
        self,
        recipe: Recipe,
        run: Path,
        data: TrainingData,
        device: torch.device,
        stop: threading.Event,
        say: Callable[[str], None],
    ) -> None:
        self.recipe = recipe
        self.config = recipe.training
        self.run = run
        self.data = data
        self.device = device
        self.stop = stop
        self.say = say
        torch.manual_seed(recipe.seed)
        sizes = data.source_tokenizer.get_vocab_size(), data.target_tokenizer.get_vocab_size()
        self.model = Transformer(recipe.model, *sizes, PAD_ID).to(device)
        self.optimizer = build_optimizer(self.model, self.config)
        self.sampler = BatchSampler(data.train, self.config.batch_tokens, recipe.seed)
        self.step = self.epoch = self.position = 0
        self.gradient_norm = 0.0  # of the last step, before it was clipped
        self._restore()
        self.journal = MetricsLog(run, self.step)
        if device.type == "cpu":
            keep_freed()

    def _restore(self) -> None:
        state = latest_checkpoint(self.run, lambda message: self.say(f"warning: {message}"))
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.epoch, self.position = state["step"], state["epoch"], state["position"]
        torch.set_rng_state(state["rng"])
        if self.device.type == "cuda" and "cuda_rng" in state:
            torch.cuda.set_rng_state(state["cuda_rng"])
        self.say(f"resuming at step {self.step}")

    def note(self, changed: dict[str, tuple[Any, Any]]) -> None:
        """Writes down, and says, with what else the recipe goes on from here than it was begun with."""
        for key, (before, now) in changed.items():
            self.say(f"{key} is {now} from here on, it was {before}")
        if changed:
            self.journal.note(self.step, changed)

    def save(self, batch: Batch | None) -> None:
        """Writes a checkpoint of this step, and drops those that nothing needs any more.

        Args:
            batch: what the weights are tried on first; None where they come from a checkpoint or are new.

        Raises:
            TrainingError: training has diverged; nothing is written.
        """
        if batch is not None:
            self._try(batch)
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "epoch": self.epoch,
            "position": self.position,
            "rng": torch.get_rng_state(),
        }
        if self.device.type == "cuda":
            state["cuda_rng"] = torch.cuda.get_rng_state()
        save_state(checkpoint_path(self.run, self.step), state)
        best = self.journal.best(self.recipe.evaluation.choose_by, self.config.average_best)
        drop_checkpoints(self.run, {self.step, *self._planned()[-self.config.keep_checkpoints :], *best})

    def _due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.config.steps

    def _planned(self) -> list[int]:
        """Steps of the checkpoints that the recipe asked for.

        One that a stop saved in between, or before the first step, is not among them: the average at the end must not
        depend on interruptions.
        """
        every = (self.config.checkpoint_every, self.config.evaluate_every)
        steps = checkpoint_steps(self.run)
        return [s for s in steps if s > 0 and (s == self.config.steps or any(s % n == 0 for n in every))]

    def run_steps(self, bar: ProgressBar) -> bool:
        """Trains until the recipe's end.

        Returns:
            False if it was asked to stop before; the checkpoint is saved.
        """
        stream = self.sampler.stream(self.epoch, self.position)
        batches: list[Batch] = []
        window = Window()
        bar.begin(self.step)
        while not self._ended(window):
            if self.stop.is_set():
                self.save(batches[-1] if batches else None)
                return False
            batches = []
            for _ in range(self.config.accumulate):
                self.epoch, self.position, batch = next(stream)
                batches.append(batch)
            tokens = sum(batch.target_tokens for batch in batches)
            window.add(self.update(batches, tokens), self.gradient_norm, tokens)
            bar.advance(self.step)
            if self._due(self.config.log_every):
                self._log(window, bar)
                window = Window()
                give_back()
            if self._due(self.config.checkpoint_every) or self._due(self.config.evaluate_every):
                self.save(batches[-1])
        return True

    def update(self, batches: list[Batch], tokens: int) -> float:
        """One optimizer step.

        Args:
            batches: their gradients are accumulated.
            tokens: target tokens in all of them.

        Returns:
            the loss: label-smoothed cross entropy, mean over the target tokens, in nats.

        Raises:
            TrainingError: training has diverged; the weights are left as they were.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.recipe.model.d_model, self.step + 1)
        total = 0.0
        for batch in batches:
            loss = self._loss(batch.to(self.device), tokens)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        limit = math.inf if self.config.clip_norm is None else self.config.clip_norm
        self.gradient_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit).item()
        self._check(total, self.gradient_norm, self.step + 1)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return total

    def _loss(self, batch: Batch, tokens: int) -> Tensor:
        """Label-smoothed cross entropy of a batch on this device, summed over its target tokens / `tokens`."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            hidden = self.model.hidden(batch.source, batch.target_input)  # [batch, target, d_model]
            projection, smoothing = self.model.decoder.projection.weight, self.config.label_smoothing
            return smoothed_cross_entropy(hidden, projection, batch.target_output, smoothing) / tokens

    def _try(self, batch: Batch) -> None:
        """Looks at what the next step would meet, were it made of this batch, and leaves no trace.

        NOTE: as a step does it. The fused attention of an evaluation takes scores that are not numbers for masked ones.
        """
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            loss = self._loss(batch.to(self.device), batch.target_tokens)
            gradients = torch.autograd.grad(loss, list(self.model.parameters()))
        self._check(loss.item(), torch.nn.utils.get_total_norm(gradients).item(), self.step)

    def _check(self, loss: float, gradient_norm: float, step: int) -> None:
        untrained = divergence.untrained_loss(self.data.target_tokenizer.get_vocab_size(), self.recipe.model.d_model)
        divergence.check(loss, gradient_norm, untrained, step, self.run, self.config)

    def _log(self, window: Window, bar: ProgressBar) -> None:
        values = {
            "epoch": self.epoch,
            "loss": window.loss / window.tokens,
            "gradient_norm": window.gradient_norm,
            "tokens_per_second": window.tokens / window.seconds(),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
        }
        self.journal.write("train", self.step, values)
        left = (self.config.steps - self.step) * window.seconds() / window.steps
        bar.report(self.step, values["loss"], values["tokens_per_second"], values["learning_rate"], left)

    def _ended(self, window: Window) -> bool:
        """Evaluates where that is due, and tells whether the recipe's end is reached.

        Raises:
            _Stopped: asked to stop during the evaluation; the checkpoint of this step is saved already.
        """
        metric = self.recipe.evaluation.choose_by
        # A run killed in its evaluation has the checkpoint but not the record, and evaluates when it resumes.
        due = self.step > 0 and self._due(self.config.evaluate_every) and self.step not in self.journal.dev("loss")
        if due and self.data.dev:
            with window.paused():
                loss, scores = self._evaluate()
            values = {"loss": loss, **{name: score.value for name, score in scores.items()}}
            self.journal.write("dev", self.step, values)
            self.say(f"step {self.step}  dev  " + "  ".join(f"{k} {v:.4g}" for k, v in values.items()))
        patience = self.config.patience
        if patience is not None and self.journal.stale(metric) >= patience:
            self.say(f"step {self.step}: dev {metric} is no better since {patience} evaluations; training ends here")
            return True
        return self.step >= self.config.steps

    def _between(self) -> None:
        if self.stop.is_set():
            raise _Stopped

    def _evaluate(self) -> tuple[float, dict[str, Score]]:
        """Loss and metrics on dev; draws no random numbers, so that training goes on as if it had not been."""
        self.model.eval()
        loss = negative_log_likelihood(self.model, self.data.dev, self.config.batch_tokens, between=self._between)
        scores = self._measure(self.data.dev_pairs)
        self.model.train()
        return loss, scores

    def _measure(self, pairs: list[Pair]) -> dict[str, Score]:
        tokenizers = self.data.source_tokenizer, self.data.target_tokenizer
        return measure(self.model, *tokenizers, pairs, self.recipe.evaluation.metrics, between=self._between)

    def finish(self) -> dict[str, Any]:
        """Averages checkpoints, measures the average on dev and test, and writes RUN/model.pt and its report.

        Raises:
            _Stopped: asked to stop meanwhile; a resumed run does it again.
        """
        steps = self._planned()[-self.config.average_last :]
        if self.config.average_best:
            best = self.journal.best(self.recipe.evaluation.choose_by, self.config.average_best)
            steps = sorted(set(best) & set(checkpoint_steps(self.run)))
        weights, steps = average_checkpoints(self.run, steps, lambda message: self.say(f"warning: {message}"))
        self.model.load_state_dict(weights)
        report: dict[str, Any] = {"steps_trained": self.step, "steps_averaged": steps, "decoding": "greedy"}
        self.model.eval()
        for name, pairs in (("dev", self.data.dev_pairs), ("test", self.data.test_pairs)):
            if pairs:
                scores = self._measure(pairs)
                report[name] = {
                    "sources": len(distinct_sources(pairs, self.data.source_tokenizer)),
                    **{metric: score.value for metric, score in scores.items()},
                    **{f"{metric}_signature": score.signature for metric, score in scores.items() if score.signature},
                }
                self.say(f"{name}  " + "  ".join(f"{metric} {score.value:.2f}" for metric, score in scores.items()))
        changes = self.journal.notes()
        if changes:
            report["recipe_changes"] = changes
        draw_curves(self.journal.records, self.run / CURVES_FILE)
        write_text(self.run / REPORT_FILE, json.dumps(report, indent=2) + "\n")
        # Last: a run that has its model.pt is finished.
        save_state(self.run / MODEL_FILE, {"model": weights, "steps": steps})
        return report
