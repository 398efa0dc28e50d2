"""What learns: weights and optimizer, one step at a time."""

import math
import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman_training.data.batches import Batch
from dragoman_training.data.tokenizers import PAD_ID
from dragoman_training.errors import TrainingError
from dragoman_training.model import Transformer
from dragoman_training.model.loss import smoothed_cross_entropy
from dragoman_training.optimization.divergence import check_divergence, untrained_loss
from dragoman_training.optimization.freeze import freeze
from dragoman_training.optimization.moving_average import MovingAverage
from dragoman_training.optimization.optimizer import build_optimizer, learning_rate
from dragoman_training.optimization.precision import resolve_precision
from dragoman_training.recipe import Recipe


class Learner:
    """A model in training with its optimizer, at first untrained.

    Args:
        recipe: Recipe of the run; its seed determines the first weights.
        vocabularies: Vocabulary sizes of source and target.
        device: Device to train on.
        run: Run directory, for the remedy in errors.

    Attributes:
        step: Optimizer steps made.
        gradient_norm: Norm of the whole model's gradient in the last step, before clipping.
        precision: Precision of matrix products on this device.
        lock: Held while weights and optimizer change; who holds it finds those of one step.

    Raises:
        TrainingError: Every part of the model is frozen.
    """

    def __init__(self, recipe: Recipe, vocabularies: tuple[int, int], device: torch.device, run: Path) -> None:
        self.config = recipe.training
        self.device = device
        self.run = run
        torch.manual_seed(recipe.seed)
        self.model = Transformer(recipe.model, *vocabularies, PAD_ID).to(device)
        freeze(self.model, self.config.freeze)
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if not self.trained:
            raise TrainingError(f"training.freeze: [{', '.join(self.config.freeze)}] leaves nothing to train")
        self.optimizer = build_optimizer(self.model, self.config)
        self.average = None if self.config.ema_decay is None else MovingAverage(self.model, self.config.ema_decay)
        self.precision = resolve_precision(self.config.precision, device)
        self.lock = threading.RLock()
        self.step = 0
        self.gradient_norm = 0.0
        self.untrained_loss = untrained_loss(vocabularies[1], recipe.model.d_model)

    @property
    def evaluated(self) -> Transformer:
        """The model whose quality counts: the moving average of the weights if the recipe has one."""
        return self.model if self.average is None else self.average.model

    def start_from(self, weights: dict[str, Tensor]) -> None:
        """Replaces the untrained weights."""
        for model in {self.model, self.evaluated}:
            model.load_state_dict(weights)

    def state(self) -> dict[str, Any]:
        """Returns all that the next step depends on, apart from its batches."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "precision": self.precision.name,
            **self.random_state(),
        }
        if self.average is not None:
            state["ema"] = self.average.model.state_dict()
        return state

    def random_state(self) -> dict[str, Tensor]:
        """Returns the part of the state that random numbers depend on."""
        state = {"rng": torch.get_rng_state()}
        if self.device.type == "cuda":
            state["cuda_rng"] = torch.cuda.get_rng_state()
        return state

    def is_finite(self) -> bool:
        """Returns whether all weights are numbers."""
        return all(bool(parameter.isfinite().all()) for parameter in self.model.parameters())

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from what `state` returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.model.load_state_dict(state["ema"])
        self.step = state["step"]
        torch.set_rng_state(state["rng"])
        if self.device.type == "cuda" and "cuda_rng" in state:
            torch.cuda.set_rng_state(state["cuda_rng"])

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
            group["lr"] = learning_rate(self.config, self.model.config.d_model, self.step + 1)
        total = 0.0
        for batch in batches:
            loss = self._loss(batch.to(self.device), tokens)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        max_norm = math.inf if self.config.clip_norm is None else self.config.clip_norm
        self.gradient_norm = torch.nn.utils.clip_grad_norm_(self.trained, max_norm).item()
        self._check_divergence(total, self.gradient_norm, self.step + 1)
        with self.lock:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.step += 1
            if self.average is not None:
                self.average.update(self.step)
        return total

    def check_weights(self, batch: Batch) -> None:
        """Checks loss and gradient of a batch for divergence without side effects.

        NOTE: The batch runs in training mode. In evaluation mode, fused attention treats NaN scores as masked ones.

        Raises:
            TrainingError: Training has diverged.
        """
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            loss = self._loss(batch.to(self.device), batch.target_tokens)
            gradients = torch.autograd.grad(loss, self.trained)
        self._check_divergence(loss.item(), torch.nn.utils.get_total_norm(gradients).item(), self.step)

    def _loss(self, batch: Batch, tokens: int) -> Tensor:
        """Computes the label-smoothed cross entropy of a batch on this device, its sum over the targets / `tokens`."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision.name == "bf16"):
            hidden = self.model.hidden(batch.source, batch.target_input)  # [batch, target, d_model]
            hidden, output_layer = self.model.decoder.output_layer(hidden)
            smoothing = self.config.label_smoothing
            return smoothed_cross_entropy(hidden, output_layer, batch.target_output, smoothing) / tokens  # []

    def _check_divergence(self, loss: float, gradient_norm: float, step: int) -> None:
        check_divergence(loss, gradient_norm, self.untrained_loss, step, self.run, self.config)
