"""The exponential moving average of weights (Polyak and Juditsky 1992)."""

import copy

import torch

from dragoman_training.model import Transformer
from dragoman_training.optimization.parallel import local


class MovingAverage:
    """A copy of a model whose weights follow those of the model slowly.

    Args:
        model: Model that is followed.
        decay: Share of the average that a step keeps. In the first steps it is smaller, (1 + step) / (10 + step), so
            that the random weights of the start don't stay in it.
    """

    def __init__(self, model: Transformer, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.follow(model)

    def follow(self, model: Transformer) -> None:
        """Follows the weights of a model; needed again when the weights of both have been sharded."""
        self.pairs = [
            (local(own), local(other)) for own, other in zip(self.model.parameters(), model.parameters(), strict=True)
        ]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Moves towards the weights after a step, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        own, followed = map(list, zip(*self.pairs, strict=True))
        torch._foreach_lerp_(own, followed, 1 - decay)
