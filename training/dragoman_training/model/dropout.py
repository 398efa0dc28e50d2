"""Dropout with random masks that are cheap to draw on a CPU."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Dropout(nn.Module):
    """Inverted dropout (Srivastava et al. 2014).

    PyTorch draws CPU masks one number at a time, which takes a third of a training step of a small model. Here a mask
    is made of random bytes of NumPy's SFC64, seeded from PyTorch's generator, so that PyTorch's generator state stays
    the only random state. The probability is rounded to a multiple of 1/256, and kept values are scaled accordingly.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability
        self.dropped = round(probability * 256)

    def forward(self, x: Tensor) -> Tensor:
        """Maps any shape to the same shape; the identity outside training. On a CPU the result is float32."""
        if not self.training or self.dropped == 0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.probability)
        seed = int(torch.randint(2**62, ()).item())
        draw = np.random.SFC64(seed).random_raw(-(-x.numel() // 8)).view(np.uint8)[: x.numel()]  # [elements of x]
        kept = torch.from_numpy(draw).view(x.shape) >= self.dropped
        # NOTE: Both factors are converted first; a product of different dtypes takes several times as long.
        return x.float() * kept.float().mul_(256 / (256 - self.dropped))
