"""Dropout whose random numbers are cheap on a CPU."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Dropout(nn.Module):
    """Inverted dropout (Srivastava et al. 2014).

    PyTorch draws its CPU masks one number after the other, which costs a third of a training step of a small model.
    Here a mask comes from random bytes of NumPy's SFC64, seeded from PyTorch's generator, whose state so stays the only
    one there is. The probability is rounded to a multiple of 1/256, and kept values are scaled by what was really
    dropped.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability
        self.dropped = round(probability * 256)

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, same shape back; the identity outside training. On a CPU 32-bit floats come back."""
        if not self.training or self.dropped == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.probability)
        seed = int(torch.randint(2**62, ()).item())
        draw = np.random.SFC64(seed).random_raw(-(-x.numel() // 8)).view(np.uint8)[: x.numel()]
        kept = torch.from_numpy(draw).view(x.shape) >= self.dropped
        # NOTE: types are converted by themselves, since a product of different ones takes several times as long.
        return x.float() * kept.float().mul_(256 / (256 - self.dropped))
