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

from training.checkpoint import (
    average_checkpoints,
    checkpoint_path,
    checkpoint_steps,
    drop_checkpoints,
    latest_checkpoint,
    save_state,
)
from training.curves import draw_curves
from training.data.batches import Batch, BatchSampler
from training.data.corpus import Pair, distinct_sources
from training.data.prepare import BAD_LINES, DATA, SOURCE_TOKENIZER, TARGET_TOKENIZER, TrainingData, prepare
from training.data.tokenizers import PAD_ID
from training.errors import TrainingError
from training.evaluation.evaluate import measure, negative_log_likelihood
from training.evaluation.metrics import Score
from training.files import write_text
from training.journal import METRICS, Journal
from training.loss import smoothed_cross_entropy
from training.memory import give_back, keep_freed
from training.model import Transformer
from training.optimization import build_optimizer, learning_rate
from training.progress import ProgressBar, Window
from training.recipe import Recipe, load_recipe, save_recipe


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
        resume: go on where the run's last checkpoint is (from the start, where there is none).
        device: auto takes CUDA where PyTorch finds it.
        threads: of PyTorch on the CPU; None leaves its choice.
        stop: once set, the run saves a checkpoint after the step it is in, and returns.
        console: where progress goes; None for standard error.

    Raises:
        TrainingError: the directory holds another run, data is bad, or the loss is no longer finite.
    """
    console = console or Console(stderr=True)
    report: dict[str, Any] | None = None
    place = _device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    _claim(recipe, run, resume)
    if (run / "model.pt").exists() and (run / "report.json").exists():
        report = json.loads((run / "report.json").read_text())
        return Outcome(report["steps_trained"], report)
    with ProgressBar(recipe.training.steps, console) as bar:
        data = prepare(recipe, run, bar.say)
        trainer = Trainer(recipe, run, data, place, stop or threading.Event(), bar.say)
        try:
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


def _claim(recipe: Recipe, run: Path, resume: bool) -> None:
    """Makes the directory this recipe's own.

    Raises:
        TrainingError: it holds a run and this is not to resume it, or that run has another recipe.
    """
    saved = run / "recipe.yaml"
    if checkpoint_steps(run) or (run / "model.pt").exists():
        if not resume:
            raise TrainingError(f"{run} already holds a run; give --resume to go on with it, or another directory")
        before, now = (_flat(r.model_dump(mode="json")) for r in (load_recipe(saved), recipe))
        changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        if changed:
            raise TrainingError(f"{run} was started with another recipe, {saved}: {', '.join(changed)} changed")
        return
    if resume and saved.exists() and load_recipe(saved) == recipe:
        return  # killed before its first checkpoint; its tokenizers stay, since to train unigram again gives others
    # What an attempt that came to no checkpoint left behind (its data were refused, say) binds nobody.
    run.mkdir(parents=True, exist_ok=True)
    for name in (SOURCE_TOKENIZER, TARGET_TOKENIZER, DATA, METRICS, BAD_LINES):
        (run / name).unlink(missing_ok=True)
    save_recipe(recipe, saved)


def _flat(document: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys, without the data's paths: data may move, and its content is checked by fingerprint."""
    data = {k: v for k, v in document.pop("data").items() if k not in ("train", "dev", "test")}
    sections = {"data": data, **{k: v for k, v in document.items() if isinstance(v, dict)}}
    flat = {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}
    return {**flat, **{k: v for k, v in document.items() if not isinstance(v, dict)}}


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
        self._restore()
        self.journal = Journal(run, self.step)
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

    def save(self) -> None:
        """Writes a checkpoint of this step, and drops those that nothing needs any more."""
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
        window = Window()
        bar.begin(self.step)
        while not self._ended(window):
            if self.stop.is_set():
                self.save()
                return False
            batches: list[Batch] = []
            for _ in range(self.config.accumulate):
                self.epoch, self.position, batch = next(stream)
                batches.append(batch)
            tokens = sum(batch.target_tokens for batch in batches)
            window.add(self.update(batches, tokens), tokens)
            bar.advance(self.step)
            if self._due(self.config.log_every):
                self._log(window, bar)
                window = Window()
                give_back()
            if self._due(self.config.checkpoint_every) or self._due(self.config.evaluate_every):
                self.save()
        return True

    def update(self, batches: list[Batch], tokens: int) -> float:
        """One optimizer step.

        Args:
            batches: their gradients are accumulated.
            tokens: target tokens in all of them.

        Returns:
            the loss: label-smoothed cross entropy, mean over the target tokens, in nats.

        Raises:
            TrainingError: the loss is not finite; the weights are left as they were.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.recipe.model.d_model, self.step + 1)
        total = 0.0
        for batch in batches:
            batch = batch.to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
                hidden = self.model.hidden(batch.source, batch.target_input)  # [batch, target, d_model]
                projection, smoothing = self.model.decoder.projection.weight, self.config.label_smoothing
                loss = smoothed_cross_entropy(hidden, projection, batch.target_output, smoothing) / tokens
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        if not math.isfinite(total):
            raise TrainingError(
                f"the loss is {total} at step {self.step + 1}; try a lower training.learning_rate or a longer warm-up"
            )
        if self.config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return total

    def _log(self, window: Window, bar: ProgressBar) -> None:
        values = {
            "epoch": self.epoch,
            "loss": window.loss / window.tokens,
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
        draw_curves(self.journal.records, self.run / "curves.png")
        write_text(self.run / "report.json", json.dumps(report, indent=2) + "\n")
        # Last: a run that has its model.pt is finished.
        save_state(self.run / "model.pt", {"model": weights, "steps": steps})
        return report
