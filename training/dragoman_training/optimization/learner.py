"""What learns: weights and optimizer, one step at a time, alone or in several processes."""

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dragoman_training.data.batches import Batch
from dragoman_training.errors import TrainingError
from dragoman_training.model import Transformer
from dragoman_training.optimization.compilation import (
    CPU_WARNING,
    compile_layers,
    finding_compilers,
    without_compiling,
)
from dragoman_training.optimization.divergence import check_divergence, untrained_loss
from dragoman_training.optimization.freeze import freeze
from dragoman_training.optimization.moving_average import MovingAverage
from dragoman_training.optimization.optimizer import build_optimizer, learning_rate
from dragoman_training.optimization.parallel import (
    Objective,
    State,
    accumulating,
    copied,
    shard,
    sharded_like,
    share_state,
    whole,
    whole_state,
    whole_weights,
)
from dragoman_training.optimization.precision import resolve_precision
from dragoman_training.processes import ALONE, Processes, finding_losses
from dragoman_training.recipe import Recipe


class Learner:
    """A model in training with its optimizer, at first untrained.

    Every process has one. They make the same steps: gradients are summed over the batches of all processes.

    Args:
        recipe: Recipe of the run; its seed determines the first weights.
        vocabularies: Vocabulary sizes of source and target.
        pad: Id of the padding token.
        device: Device to train on.
        run: Run directory, for the remedy in errors.
        processes: The processes that train the model.
        teachers: Models whose distributions it learns, see `load_teachers`.

    Attributes:
        step: Optimizer steps made.
        gradient_norm: Norm of the whole model's gradient in the last step, before clipping.
        precision: Precision of matrix products on this device.
        lock: Held while weights and optimizer change; who holds it finds those of one step.
        sharded: Whether each process has a part of the weights only.

    Raises:
        TrainingError: Every part of the model is frozen.
    """

    def __init__(
        self,
        recipe: Recipe,
        vocabularies: tuple[int, int],
        pad: int,
        device: torch.device,
        run: Path,
        processes: Processes = ALONE,
        teachers: Sequence[Transformer] = (),
    ) -> None:
        self.config = recipe.training
        self.device = device
        self.run = run
        self.processes = processes
        self.seed = recipe.seed
        self.sharded = self.config.sharding == "full" and processes.count > 1
        torch.manual_seed(recipe.seed)
        self.model = Transformer(recipe.model, *vocabularies, pad)
        self._vocabularies = vocabularies
        freeze(self.model, self.config.freeze)
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise TrainingError(f"training.freeze: [{', '.join(self.config.freeze)}] leaves nothing to train")
        if not self.sharded:
            self.model.to(device)
        self.average = None if self.config.ema_decay is None else MovingAverage(self.model, self.config.ema_decay)
        self.objective = self._distributed(Objective(self.model, self.config, teachers))
        if self.config.compile:
            compile_layers(self.model)
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = build_optimizer(self.model, self.config)
        self.precision = processes.share(resolve_precision(self.config.precision, device))
        self.lock = threading.RLock()
        self.step = 0
        self.gradient_norm = 0.0
        self.untrained_loss = untrained_loss(vocabularies[1], recipe.model.d_model)
        self._final: Transformer | None = None

    def _distributed(self, objective: Objective) -> nn.Module:
        if self.processes.count == 1:
            return objective
        if not self.sharded:
            return copied(objective, self.device)
        shard(objective, self.model, self.device, self.processes)
        if self.average is not None:
            shard(self.average.model, self.average.model, self.device, self.processes)
            self.average.follow(self.model)
        return objective

    @property
    def notices(self) -> list[str]:
        """What the user should know about how this machine trains."""
        lines = [self.precision.line]
        if self.config.compile and self.device.type == "cpu":
            lines.append(CPU_WARNING)
        return [line for line in lines if line]

    @property
    def _measured(self) -> Transformer:
        """The model whose quality counts: the moving average of the weights if the recipe has one."""
        return self.model if self.average is None else self.average.model

    @contextmanager
    def evaluated(self) -> Iterator[Transformer]:
        """Gives the model whose quality counts inside the context, whole and in eval mode.

        A sharded model is gathered on every device for this, without gradients and optimizer.
        """
        if self._final is not None:
            model = self._final
        elif self.sharded:
            model = self._whole_model(whole_weights(self._measured, keep=True))
        else:
            model = self._measured
        model.eval()
        try:
            with without_compiling() if self.config.compile else nullcontext():
                yield model
        finally:
            self.model.train()

    def conclude(self, weights: State | None) -> None:
        """Makes other weights those that are evaluated from now on, at the end of a run.

        Args:
            weights: Weights in process 0; ignored in the others.
        """
        shared = share_state(self.processes, weights, lambda _, tensor: tensor)
        assert shared is not None
        if self.sharded:
            self._final = self._whole_model(shared)
        else:
            self._measured.load_state_dict(shared)

    def _whole_model(self, weights: State) -> Transformer:
        model = Transformer(self.model.config, *self._vocabularies, self.model.pad)
        model.load_state_dict(weights)
        return model.to(self.device).requires_grad_(False)

    def start_from(self, weights: State | None) -> None:
        """Replaces the untrained weights by those that process 0 has."""
        shared = share_state(self.processes, weights, lambda path, tensor: self._place(("model", *path), tensor))
        assert shared is not None
        for model in {self.model, self._measured}:
            model.load_state_dict(shared)

    def state(self) -> State:
        """Returns all that the next step depends on, apart from its batches; of a sharded model only in process 0."""
        model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
        average = None if self.average is None else self.average.model.state_dict()
        if self.sharded:
            keep = self.processes.is_first
            model, optimizer = whole_weights(self.model, keep), whole_state(optimizer, keep)
            average = None if self.average is None else whole_weights(self.average.model, keep)
        state = {"model": model, "optimizer": optimizer, "step": self.step, "precision": self.precision.name}
        return state if average is None else {**state, "ema": average}

    def is_finite(self) -> bool:
        """Returns whether all weights are numbers."""
        return all(bool(parameter.isfinite().all()) for parameter in self.model.parameters())

    def restore(self, state: State | None) -> State | None:
        """Continues from what `state` returned; process 0 has loaded it, and the others get it from there.

        Returns:
            The state without weights and optimizer; None if process 0 has none.
        """
        shared = share_state(self.processes, state, self._place)
        if shared is None:
            return None
        self.model.load_state_dict(shared.pop("model"))
        self.optimizer.load_state_dict(shared.pop("optimizer"))
        if self.average is not None:
            self.average.model.load_state_dict(shared.pop("ema"))
        self.step = shared["step"]
        return shared

    def _place(self, path: tuple[str | int, ...], tensor: Tensor) -> Tensor:
        """Returns what this process keeps of a tensor of the state."""
        if not self.sharded:
            return tensor
        if path[0] in ("model", "ema"):
            return sharded_like(tensor, self.model.get_parameter(str(path[1])))
        if path[:2] == ("optimizer", "state"):
            parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
            return sharded_like(tensor, parameters[int(path[2])])
        return tensor

    def update(self, batches: list[Batch], tokens: int) -> float:
        """Makes one optimizer step.

        Args:
            batches: Batches of this process, as many in each process; their gradients are accumulated.
            tokens: Number of target tokens in the batches of all processes.

        Returns:
            The loss, see `Objective`: its mean over the target tokens of all processes in nats.

        Raises:
            TrainingError: Training has diverged; the weights are unchanged.
            LostProcess: Another process has ended; the weights are unchanged.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.model.config.d_model, self.step + 1)
        loss = self._accumulate_gradients(batches, tokens)
        max_norm = math.inf if self.config.clip_norm is None else self.config.clip_norm
        with finding_losses():
            norm = torch.nn.utils.clip_grad_norm_(self.trained, max_norm)
        self.gradient_norm = whole(norm).item()
        self._check_divergence(loss, self.gradient_norm, self.step + 1)
        with self.lock:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.step += 1
            if self.average is not None:
                self.average.update(self.step)
        return loss

    def check_weights(self, batch: Batch) -> None:
        """Checks loss and gradient of a batch of each process for divergence without side effects.

        NOTE: The batch runs in training mode. In evaluation mode, fused attention treats NaN scores as masked ones.

        Raises:
            TrainingError: Training has diverged.
        """
        loss = self._accumulate_gradients([batch], int(self.processes.sum(batch.target_tokens)[0]))
        gradients = [parameter.grad for parameter in self.trained if parameter.grad is not None]
        norm = whole(torch.nn.utils.get_total_norm(gradients)).item()
        self.optimizer.zero_grad(set_to_none=True)
        self._check_divergence(loss, norm, self.step)

    def _accumulate_gradients(self, batches: list[Batch], tokens: int) -> float:
        """Adds up the gradients of the mean loss over the tokens of all processes, and returns that loss."""
        total = 0.0
        for i, batch in enumerate(batches):
            self._seed(batch.number)
            compilers = finding_compilers() if self.config.compile else nullcontext()
            with accumulating(self.objective, last=i == len(batches) - 1), finding_losses(), compilers:
                loss = self._loss(batch.to(self.device)) / tokens
                # The mean over the processes becomes a sum.
                (loss * self.processes.count).backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        return self.processes.sum(total)[0]

    def _seed(self, number: int) -> None:
        """Makes the random numbers of a batch a function of its place in the run, whatever process it is in."""
        torch.manual_seed(int(np.random.SeedSequence((self.seed, self.step, number)).generate_state(1, np.uint64)[0]))

    def _loss(self, batch: Batch) -> Tensor:
        """Computes the loss of a batch on this device, its sum over the targets []; see `Objective`."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision.name == "bf16"):
            loss: Tensor = self.objective(batch)
        return loss

    def _check_divergence(self, loss: float, gradient_norm: float, step: int) -> None:
        check_divergence(loss, gradient_norm, self.untrained_loss, step, self.run, self.config)
