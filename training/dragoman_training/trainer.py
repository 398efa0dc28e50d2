"""The training loop: optimizer steps, evaluations, checkpoints, and the average of checkpoints at the end."""

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
from dragoman_training.optimization.allocator import keep_freed_memory, release_memory
from dragoman_training.optimization.divergence import check_divergence, untrained_loss
from dragoman_training.optimization.loss import smoothed_cross_entropy
from dragoman_training.optimization.optimizer import build_optimizer, learning_rate, warmup_warning
from dragoman_training.progress import ProgressBar, Window
from dragoman_training.recipe import Recipe, save_recipe
from dragoman_training.run.checkpoint import (
    average_checkpoints,
    checkpoint_path,
    checkpoint_steps,
    delete_checkpoints,
    latest_checkpoint,
    save_state,
)
from dragoman_training.run.directory import lock_directory, prepare_directory
from dragoman_training.run.metrics_log import MetricsLog, draw_curves


class _Stopped(Exception):
    """The run was asked to stop during an evaluation."""


@dataclass(frozen=True)
class Outcome:
    """The result of `train`: finished with a report, or stopped at a step with its checkpoint saved."""

    step: int
    report: dict[str, Any] | None

    @property
    def finished(self) -> bool:
        """Whether the run reached its end."""
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
    """Trains the model of a recipe and writes everything to the run directory.

    On one CPU with one thread count, the result is a function of the recipe and the data, no matter how often the run
    was stopped or killed and resumed.

    Args:
        recipe: Recipe of the run.
        run: Run directory, created if it does not exist.
        resume: Whether to continue from the last checkpoint (or from the start if there is none). The keys in
            `CHANGEABLE` may differ from the recipe that the run was started with.
        device: Device to train on; auto uses CUDA if available.
        threads: CPU threads of PyTorch; None leaves PyTorch's default.
        stop: Event that makes the run save a checkpoint after the current step and return.
        console: Console that shows the progress; None for standard error.

    Raises:
        TrainingError: The directory holds another run, the data is bad, or training has diverged. Existing checkpoints
            stay as they are.
    """
    torch_device = _device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    with lock_directory(run):
        changed = prepare_directory(recipe, run, resume)
        report = read_json(run / REPORT_FILE)
        if (run / MODEL_FILE).exists() and report is not None:
            return Outcome(report["steps_trained"], report)
        with ProgressBar(recipe.training.steps, console or Console(stderr=True)) as bar:
            return _train(recipe, run, changed, torch_device, stop or threading.Event(), bar)


def _train(
    recipe: Recipe,
    run: Path,
    changed: dict[str, tuple[Any, Any]],
    device: torch.device,
    stop: threading.Event,
    bar: ProgressBar,
) -> Outcome:
    if warning := warmup_warning(recipe.training):
        bar.echo(f"warning: {warning}")
    data = prepare(recipe, run, bar.echo)
    trainer = Trainer(recipe, run, data, device, stop, bar.echo)
    report: dict[str, Any] | None = None
    try:
        trainer.record_changes(changed)
        # Saved after the data was read, so that rejected data leaves no run behind, and before the first step.
        save_recipe(recipe, run / RECIPE_FILE)
        if trainer.run_steps(bar):
            report = trainer.finish()
    except _Stopped:
        pass  # the checkpoint is saved, and the resumed run repeats the interrupted evaluation
    finally:
        trainer.metrics_log.close()
    return Outcome(trainer.step, report)


def _device(choice: Literal["auto", "cpu", "cuda"]) -> torch.device:
    if choice == "cuda" and not torch.cuda.is_available():
        raise TrainingError("--device cuda: PyTorch finds no CUDA device; use --device cpu or a CUDA build of PyTorch")
    return torch.device("cuda" if choice != "cpu" and torch.cuda.is_available() else "cpu")


class Trainer:
    """A model in training: weights, optimizer state and position in the data.

    Starts from the newest intact checkpoint of the run, or from scratch.

    Args:
        stop: Event that stops the run, see `train`.
        echo: Callback that shows a line to the user.
    """

    def __init__(
        self,
        recipe: Recipe,
        run: Path,
        data: TrainingData,
        device: torch.device,
        stop: threading.Event,
        echo: Callable[[str], None],
    ) -> None:
        self.recipe = recipe
        self.config = recipe.training
        self.run = run
        self.data = data
        self.device = device
        self.stop = stop
        self.echo = echo
        torch.manual_seed(recipe.seed)
        sizes = data.source_tokenizer.get_vocab_size(), data.target_tokenizer.get_vocab_size()
        self.model = Transformer(recipe.model, *sizes, PAD_ID).to(device)
        self.optimizer = build_optimizer(self.model, self.config)
        self.sampler = BatchSampler(data.train, self.config.batch_tokens, recipe.seed)
        self.step = self.epoch = self.position = 0
        self.gradient_norm = 0.0  # of the last step, before clipping
        self._restore()
        self.metrics_log = MetricsLog(run, self.step)
        if device.type == "cpu":
            keep_freed_memory()

    def _warn(self, message: str) -> None:
        self.echo(f"warning: {message}")

    def _restore(self) -> None:
        state = latest_checkpoint(self.run, self._warn)
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.epoch, self.position = state["step"], state["epoch"], state["position"]
        torch.set_rng_state(state["rng"])
        if self.device.type == "cuda" and "cuda_rng" in state:
            torch.cuda.set_rng_state(state["cuda_rng"])
        self.echo(f"resuming at step {self.step}")

    def record_changes(self, changed: dict[str, tuple[Any, Any]]) -> None:
        """Logs and shows the recipe keys that change at this step, each with its old and its new value."""
        for key, (old, new) in changed.items():
            self.echo(f"{key} changes from {old} to {new} at step {self.step}")
        if changed:
            self.metrics_log.write_recipe_changes(self.step, changed)

    def save(self, batch: Batch | None) -> None:
        """Writes a checkpoint of this step and deletes those that are no longer needed.

        Args:
            batch: Batch that the weights are checked with first; None if they come from a checkpoint or are new.

        Raises:
            TrainingError: Training has diverged; nothing is written.
        """
        if batch is not None:
            self._check_weights(batch)
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
        best = self.metrics_log.best_steps(self.recipe.evaluation.choose_by, self.config.average_best)
        delete_checkpoints(self.run, {self.step, *self._scheduled()[-self.config.keep_checkpoints :], *best})

    def _due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.config.steps

    def _scheduled(self) -> list[int]:
        """Returns the steps whose checkpoints the recipe schedules.

        A checkpoint that was saved by a stop in between is not one of them: the average at the end must not depend on
        interruptions.
        """
        every = (self.config.checkpoint_every, self.config.evaluate_every)
        steps = checkpoint_steps(self.run)
        return [s for s in steps if s > 0 and (s == self.config.steps or any(s % n == 0 for n in every))]

    def run_steps(self, bar: ProgressBar) -> bool:
        """Trains until the end of the recipe.

        Returns:
            False if the run was asked to stop; its checkpoint is saved.
        """
        stream = self.sampler.stream(self.epoch, self.position)
        batches: list[Batch] = []
        window = Window()
        bar.begin(self.step)
        while not self._evaluate_and_check_end(window):
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
                release_memory()
            if self._due(self.config.checkpoint_every) or self._due(self.config.evaluate_every):
                self.save(batches[-1])
        return True

    def update(self, batches: list[Batch], tokens: int) -> float:
        """Makes one optimizer step.

        Args:
            batches: Batches whose gradients are accumulated.
            tokens: Number of target tokens in all batches.

        Returns:
            The label-smoothed cross entropy, the mean over the target tokens in nats.

        Raises:
            TrainingError: Training has diverged; the weights are unchanged.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.recipe.model.d_model, self.step + 1)
        total = 0.0
        for batch in batches:
            loss = self._loss(batch.to(self.device), tokens)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        max_norm = math.inf if self.config.clip_norm is None else self.config.clip_norm
        self.gradient_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm).item()
        self._check_divergence(total, self.gradient_norm, self.step + 1)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return total

    def _loss(self, batch: Batch, tokens: int) -> Tensor:
        """Computes the label-smoothed cross entropy of a batch on this device, its sum over the targets / `tokens`."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            hidden = self.model.hidden(batch.source, batch.target_input)  # [batch, target, d_model]
            output_layer = self.model.decoder.projection.weight  # [vocabulary, d_model]
            smoothing = self.config.label_smoothing
            return smoothed_cross_entropy(hidden, output_layer, batch.target_output, smoothing) / tokens  # []

    def _check_weights(self, batch: Batch) -> None:
        """Checks loss and gradient of a batch for divergence without side effects.

        NOTE: The batch runs in training mode. In evaluation mode, fused attention treats NaN scores as masked ones.
        """
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            loss = self._loss(batch.to(self.device), batch.target_tokens)
            gradients = torch.autograd.grad(loss, list(self.model.parameters()))
        self._check_divergence(loss.item(), torch.nn.utils.get_total_norm(gradients).item(), self.step)

    def _check_divergence(self, loss: float, gradient_norm: float, step: int) -> None:
        untrained = untrained_loss(self.data.target_tokenizer.get_vocab_size(), self.recipe.model.d_model)
        check_divergence(loss, gradient_norm, untrained, step, self.run, self.config)

    def _log(self, window: Window, bar: ProgressBar) -> None:
        values = {
            "epoch": self.epoch,
            "loss": window.loss / window.tokens,
            "gradient_norm": window.gradient_norm,
            "tokens_per_second": window.tokens / window.seconds(),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
        }
        self.metrics_log.write("train", self.step, values)
        seconds_left = (self.config.steps - self.step) * window.seconds() / window.steps
        bar.report(self.step, values["loss"], values["tokens_per_second"], values["learning_rate"], seconds_left)

    def _evaluate_and_check_end(self, window: Window) -> bool:
        """Evaluates on dev if this step is due, and returns whether training ends here.

        Raises:
            _Stopped: The run was asked to stop during the evaluation; the checkpoint of this step is saved.
        """
        metric = self.recipe.evaluation.choose_by
        # A run that was killed during its evaluation has the checkpoint but no record; it evaluates when it resumes.
        evaluated = self.step in self.metrics_log.dev_values("loss")
        if self.step > 0 and self._due(self.config.evaluate_every) and not evaluated and self.data.dev:
            with window.paused():
                loss, scores = self._evaluate()
            values = {"loss": loss, **{name: score.value for name, score in scores.items()}}
            self.metrics_log.write("dev", self.step, values)
            self.echo(f"step {self.step}  dev  " + "  ".join(f"{k} {v:.4g}" for k, v in values.items()))
        patience = self.config.patience
        if patience is not None and self.metrics_log.evaluations_since_best(metric) >= patience:
            self.echo(f"step {self.step}: dev {metric} has not improved for {patience} evaluations; training ends here")
            return True
        return self.step >= self.config.steps

    def _raise_if_stopped(self) -> None:
        if self.stop.is_set():
            raise _Stopped

    def _evaluate(self) -> tuple[float, dict[str, Score]]:
        """Computes loss and metrics on dev; draws no random numbers, so that it does not affect training."""
        self.model.eval()
        loss = negative_log_likelihood(
            self.model, self.data.dev, self.config.batch_tokens, before_batch=self._raise_if_stopped
        )
        scores = self._measure(self.data.dev_pairs)
        self.model.train()
        return loss, scores

    def _measure(self, pairs: list[Pair]) -> dict[str, Score]:
        tokenizers = self.data.source_tokenizer, self.data.target_tokenizer
        metrics = self.recipe.evaluation.metrics
        return measure(self.model, *tokenizers, pairs, metrics, before_batch=self._raise_if_stopped)

    def finish(self) -> dict[str, Any]:
        """Averages checkpoints, measures the average on dev and test, and writes report, curves and RUN/model.pt.

        Raises:
            _Stopped: The run was asked to stop meanwhile; a resumed run starts this over.
        """
        steps = self._scheduled()[-self.config.average_last :]
        if self.config.average_best:
            best = self.metrics_log.best_steps(self.recipe.evaluation.choose_by, self.config.average_best)
            steps = sorted(set(best) & set(checkpoint_steps(self.run)))
        weights, steps = average_checkpoints(self.run, steps, self._warn)
        self.model.load_state_dict(weights)
        self.model.eval()
        report: dict[str, Any] = {"steps_trained": self.step, "steps_averaged": steps, "decoding": "greedy"}
        for name, pairs in (("dev", self.data.dev_pairs), ("test", self.data.test_pairs)):
            if pairs:
                report[name] = self._report_scores(name, pairs)
        changes = self.metrics_log.recipe_changes()
        if changes:
            report["recipe_changes"] = changes
        draw_curves(self.metrics_log.records, self.run / CURVES_FILE)
        write_text(self.run / REPORT_FILE, json.dumps(report, indent=2) + "\n")
        # Written last: a run that has its model.pt is finished.
        save_state(self.run / MODEL_FILE, {"model": weights, "steps": steps})
        return report

    def _report_scores(self, name: str, pairs: list[Pair]) -> dict[str, Any]:
        scores = self._measure(pairs)
        self.echo(f"{name}  " + "  ".join(f"{metric} {score.value:.2f}" for metric, score in scores.items()))
        return {
            "sources": len(distinct_sources(pairs, self.data.source_tokenizer)),
            **{metric: score.value for metric, score in scores.items()},
            **{f"{metric}_signature": score.signature for metric, score in scores.items() if score.signature},
        }
