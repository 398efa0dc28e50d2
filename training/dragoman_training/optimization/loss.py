"""The loss, and the output layer with it: cross entropy without ever holding all logits."""

from typing import Any

import torch
from torch import Tensor

from dragoman_training.data.batches import IGNORED
from dragoman_training.model.linear import autocast_type, product

CHUNK = 2**24  # logits at once: 64 MiB


def smoothed_cross_entropy(hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """Label-smoothed cross entropy of logits hidden @ weight^T (Szegedy et al. 2016), summed over the target, in nats.

    As F.cross_entropy computes it, but logits are made, used and forgotten a few rows after the other, with their
    gradient at once: with a large vocabulary they are most of a step's memory. Padding costs nothing.

    Args:
        hidden: [batch, target, d_model]
        weight: [vocabulary, d_model]
        target: token ids [batch, target], IGNORED where there is none.
        smoothing: share of the probability that is spread over all tokens.

    Returns:
        a number, in 32-bit floats.
    """
    kept = (target.flatten() != IGNORED).nonzero().squeeze(1)
    rows = hidden.flatten(0, 1).index_select(0, kept)  # [tokens, d_model]
    return _Loss.apply(rows, weight, target.flatten()[kept], smoothing)  # type: ignore[no-any-return,no-untyped-call]


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, target: Tensor, smoothing: float) -> Tensor:
        low = autocast_type(rows)
        vocabulary = weight.size(0)
        matrix, total = weight.to(low), rows.new_zeros((), dtype=torch.float32)
        to_rows, to_weight = torch.empty_like(rows), None
        chunk = max(1, CHUNK // vocabulary)
        with torch.autocast(rows.device.type, enabled=False):
            for start in range(0, len(rows), chunk):
                part, ids = rows[start : start + chunk].to(low), target[start : start + chunk, None]
                logp = product(part, matrix).float().log_softmax(-1)  # [chunk, vocabulary]
                total -= (1 - smoothing) * logp.gather(1, ids).sum() + smoothing * logp.mean(-1).sum()
                # The gradient: probabilities less what was wanted of them.
                gradient = logp.exp_().sub_(smoothing / vocabulary)
                gradient.scatter_add_(1, ids, gradient.new_full(ids.shape, smoothing - 1))
                gradient = gradient.to(low)
                to_rows[start : start + chunk] = product(gradient, matrix.t())
                here = product(gradient.t(), part.t())
                to_weight = here.to(weight.dtype) if to_weight is None else to_weight.add_(here)
        ctx.save_for_backward(to_rows, torch.zeros_like(weight) if to_weight is None else to_weight)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        to_rows, to_weight = ctx.saved_tensors
        return to_rows * gradients[0], to_weight * gradients[0], None, None
