"""AdamW and the learning rate schedules."""

import inspect
import math

import torch
from torch import nn
from torch.optim import Optimizer

from dragoman_training.recipe import TrainingConfig


def learning_rate(config: TrainingConfig, d_model: int, step: int) -> float:
    """Returns the learning rate of a step, counted from 1.

    - cosine: linear warm-up to `learning_rate`, then half a cosine down to zero at the last step
      (Loshchilov and Hutter 2017).
    - warmup_stable_decay: linear warm-up to `learning_rate`, which stays until it falls linearly to zero over the last
      steps (Hägele et al. 2024).
    - inverse_square_root: linear warm-up to `learning_rate`, then falling with 1/sqrt(step).
    - noam: "Attention Is All You Need", section 5.3, times `learning_rate` (1 in the paper).
    """
    warmup = config.warmup_steps
    if config.schedule == "noam":
        return config.learning_rate / math.sqrt(d_model) * min(1 / math.sqrt(step), step / (warmup * math.sqrt(warmup)))
    if step < warmup:
        return config.learning_rate * (step / warmup)
    if config.schedule == "cosine":
        progress = (step - warmup) / (config.steps - warmup)
        return config.learning_rate * (0.5 * (1 + math.cos(math.pi * progress)))
    if config.schedule == "warmup_stable_decay":
        return config.learning_rate * min(1.0, (config.steps - step) / (config.steps - config.decay_start))
    return config.learning_rate * math.sqrt(max(warmup, 1) / step)


def warmup_warning(config: TrainingConfig) -> str | None:
    """Returns a warning if the warm-up is longer than the run."""
    if config.warmup_steps <= config.steps:
        return None
    share = config.steps / config.warmup_steps
    return (
        f"the warm-up (training.warmup_steps {config.warmup_steps}) is longer than the run (training.steps "
        f"{config.steps}): the learning rate rises until the end and only reaches {share:.0%} of its peak"
    )


class AdamW(torch.optim.AdamW):
    """PyTorch's AdamW, without what it does at each call to keep torch.compile from tracing it.

    For that, PyTorch imports all of torch.compile, which takes a second. Here, only layers are compiled.
    """

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


def build_optimizer(model: nn.Module, config: TrainingConfig) -> AdamW:
    """Builds AdamW (Loshchilov and Hutter 2019) for what is not frozen.

    Weight decay applies to matrices, not to biases and norms.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.dim() > 1]
    vectors = [p for p in trained if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)
