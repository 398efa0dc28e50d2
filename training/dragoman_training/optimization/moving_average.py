"""The exponential moving average of weights (Polyak and Juditsky 1992)."""

import copy

import torch
from torch import Tensor

from dragoman_training.model import Transformer


class MovingAverage:
    """A copy of a model whose weights follow those of the model slowly.

    Args:
        model: Model that is followed.
        decay: Share of the average that a step keeps. In the first steps it is smaller, (1 + step) / (10 + step), so
            that the random weights of the start don't stay in it.
    """

    def __init__(self, model: Transformer, decay: float) -> None:
        self.decay = decay
        self.followed: list[Tensor] = list(model.parameters())
        self.model = copy.deepcopy(model).requires_grad_(False).eval()

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Moves towards the weights after a step, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.model.parameters()), self.followed, 1 - decay)
