"""Word-level distillation: distributions of teachers as targets (Kim and Rush 2016), a few rows at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dragoman_training.model.linear import matmul, padded


@dataclass(frozen=True)
class Teaching:
    """What teachers say of the targets of a batch.

    Attributes:
        share: What the mean of their distributions gets of a target that they know, in (0, 1].
        places: Row of the decoder outputs for each target, -1 where the teachers know none [batch, target].
        factors: Decoder outputs [rows, width] and output layer [vocabulary, width] of each teacher.
    """

    share: float
    places: Tensor
    factors: Sequence[tuple[Tensor, Tensor]]

    def rows(self, kept: Tensor, passes: int) -> "Teaching":
        """Returns the same for some of the targets, each as often as there are passes: `places` [targets * passes]."""
        return replace(self, places=self.places.flatten()[kept].repeat_interleave(passes))

    def block(self, rows: slice, dtype: torch.dtype) -> "SoftTargets":
        """Computes the teachers' logits of some rows, in a precision."""
        places = self.places[rows]
        known = places.clamp(min=0)
        hidden = (padded(outputs.index_select(0, known), dtype) for outputs, _ in self.factors)
        logits = [matmul(x, weight.to(dtype)) for x, (_, weight) in zip(hidden, self.factors, strict=True)]
        return SoftTargets(logits, (places >= 0).float()[:, None] * self.share)


@dataclass(frozen=True)
class SoftTargets:
    """Teachers' part of the targets of some rows.

    Attributes:
        logits: Logits of each teacher [at least rows, vocabulary]; any where it knows no target.
        shares: Their share of each target [rows, 1].
    """

    logits: Sequence[Tensor]
    shares: Tensor

    def part(self, rows: slice) -> Tensor:
        """Returns the mean of the distributions, times the share, for some of the rows [rows, vocabulary]."""
        total, *others = (logits[rows].float().softmax(-1) for logits in self.logits)
        for distribution in others:
            total += distribution
        return total.mul_(self.shares[rows] / len(self.logits))
