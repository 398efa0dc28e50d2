"""The output layer and the loss in one: cross entropy that never holds all logits at once."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dragoman_training.model.linear import autocast_dtype, matmul, padded
from dragoman_training.model.teaching import SoftTargets, Teaching

IGNORED = -100  # target id of padding, the default ignore_index of F.cross_entropy
# Logits computed at a time, whose gradient then takes their place: 64 MiB in bfloat16. With fewer rows the products of
# a large output layer are slower.
_LOGITS, _LEAST_ROWS = 2**25, 256
# Of them, as many go through the softmax at a time as a core's cache holds; a GPU needs more to be busy.
_SOFTMAX_CPU, _SOFTMAX = 2**19, 2**24
_SEARCH_LOGITS_CPU = 2**22  # of a search, at a time


def rows_at_a_time(vocabulary: int, device: torch.device) -> int:
    """Returns for how many rows a search computes logits at a time."""
    return max(_LEAST_ROWS, (_SEARCH_LOGITS_CPU if device.type == "cpu" else _SOFTMAX) // vocabulary)


@dataclass(frozen=True)
class Loss:
    """What the loss consists of.

    Attributes:
        smoothing: Share of the probability that is spread over all tokens (Szegedy et al. 2016).
        r_drop: Weight of the divergence between two passes, alpha in Liang et al. 2021; 0 if there is one pass.
        teaching: What teachers say of the targets; None without teachers.
    """

    smoothing: float = 0.0
    r_drop: float = 0.0
    teaching: Teaching | None = None


def cross_entropy(hidden: Tensor, weight: Tensor, target: Tensor, loss: Loss) -> Tensor:
    """Computes the label-smoothed cross entropy of the logits hidden @ weight^T.

    The result is that of F.cross_entropy, but logits and their gradient are computed a few rows at a time and
    discarded: with a large vocabulary they would take most of a step's memory. Padding is skipped. Without grad mode no
    gradient is computed.

    Args:
        hidden: Decoder outputs [batch, target, d_model], or of two passes with R-Drop: [2 * batch, target, d_model].
        weight: Output layer [vocabulary, d_model].
        target: Token ids [batch, target], IGNORED at padding.
        loss: What it consists of.

    Returns:
        The sum over the target tokens in nats, a float32 scalar []; with R-Drop over both passes, plus alpha times
        the mean of their two Kullback-Leibler divergences.
    """
    kept = (target.flatten() != IGNORED).nonzero().squeeze(1)  # [tokens]
    ids, passes = target.flatten()[kept], 2 if loss.r_drop else 1
    rows = hidden.reshape(passes, target.numel(), hidden.size(-1)).index_select(1, kept)  # [passes, tokens, d_model]
    rows, ids = rows.transpose(0, 1).flatten(0, 1), ids.repeat_interleave(passes)  # the passes of a token side by side
    if loss.teaching is not None:
        loss = replace(loss, teaching=loss.teaching.rows(kept, passes))
    if not torch.is_grad_enabled():
        return _cross_entropy(rows, weight, ids, loss, None)[0]
    return _CrossEntropy.apply(rows, weight, ids, loss)  # type: ignore[no-any-return,no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, target: Tensor, loss: Loss) -> Tensor:
        rows_gradient = torch.empty_like(rows)  # [tokens, d_model]
        total, weight_gradient = _cross_entropy(rows, weight, target, loss, rows_gradient)
        ctx.save_for_backward(rows_gradient, torch.zeros_like(weight) if weight_gradient is None else weight_gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        rows_gradient, weight_gradient = ctx.saved_tensors
        # In place: a second pass through this graph would be refused.
        return rows_gradient.mul_(gradients[0]), weight_gradient.mul_(gradients[0]), None, None


def _cross_entropy(
    rows: Tensor, weight: Tensor, target: Tensor, loss: Loss, rows_gradient: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Computes the loss and, if asked, its gradients.

    Args:
        rows: Decoder outputs [tokens, d_model]; with R-Drop, rows 0 and 1, 2 and 3, ... are of one token.
        weight: Output layer [vocabulary, d_model].
        target: Token ids [tokens].
        rows_gradient: Filled with the gradient of `rows`, in its shape; None for the loss alone.

    Returns:
        The loss [] and the gradient of `weight` in its shape; None without tokens or for the loss alone.
    """
    dtype = autocast_dtype(rows)
    vocabulary, weight_gradient = weight.size(0), None
    matrix, total = weight.to(dtype), rows.new_zeros((), dtype=torch.float32)  # [vocabulary, d_model], []
    at_a_time = max(_LEAST_ROWS, _even(_LOGITS // vocabulary))
    part = _even((_SOFTMAX_CPU if rows.device.type == "cpu" else _SOFTMAX) // vocabulary)
    with torch.autocast(rows.device.type, enabled=False):
        for first in range(0, len(rows), at_a_time):
            here = slice(first, first + at_a_time)
            ids, block = target[here], padded(rows[here], dtype)
            logits = matmul(block, matrix)  # [padded rows, vocabulary]
            soft = None if loss.teaching is None else loss.teaching.block(here, dtype)
            for start in range(0, len(ids), part):
                some = slice(start, min(start + part, len(ids)))
                total += _softmax(logits[some], ids[some], loss, soft, some, differentiate=rows_gradient is not None)
            if rows_gradient is not None:
                logits[len(ids) :] = 0
                rows_gradient[here] = matmul(logits, matrix.t())[: len(ids)]
                update = matmul(logits.t(), block.t())  # [vocabulary, d_model]
                weight_gradient = update.to(weight.dtype) if weight_gradient is None else weight_gradient.add_(update)
    return total, weight_gradient


def _softmax(
    logits: Tensor, target: Tensor, loss: Loss, soft: SoftTargets | None, place: slice, *, differentiate: bool
) -> Tensor:
    """Computes the loss of some rows [].

    Args:
        logits: [rows, vocabulary]; replaced by their gradient if `differentiate` is set.
        target: Token ids [rows].
        soft: What teachers say; None without them.
        place: The rows in `soft`.
    """
    vocabulary, ids = logits.size(1), target[:, None]
    logp = logits.float().log_softmax(-1)
    own = logp.new_ones(len(ids), 1) if soft is None else 1 - soft.shares[place]  # share of the targets themselves
    hard, spread = own * (loss.smoothing - 1), own * (-loss.smoothing / vocabulary)  # negative targets [rows, 1]
    total = (hard * logp.gather(1, ids)).sum() + (spread * logp.sum(-1, keepdim=True)).sum()
    taught = gradient = None
    if soft is not None:
        taught = soft.part(place)  # [rows, vocabulary]
        total -= (taught * logp).sum()
    if loss.r_drop:
        divergence, gradient = _divergence(logp.view(-1, 2, vocabulary))
        total += loss.r_drop / 2 * divergence
    if differentiate:  # the probabilities minus the targets
        logp.exp_().add_(spread).scatter_add_(1, ids, hard)
        if taught is not None:
            logp.sub_(taught)
        if gradient is not None:
            logp.add_(gradient.view_as(logp), alpha=loss.r_drop / 2)
        logits.copy_(logp)
    return total


def _even(rows: int) -> int:
    """Returns the largest even number up to `rows`, at least 2: no half pairs."""
    return max(2, rows - rows % 2)


def _divergence(logp: Tensor) -> tuple[Tensor, Tensor]:
    """Computes KL(p, q) + KL(q, p) for pairs of distributions.

    Args:
        logp: Log-probabilities [pairs, 2, vocabulary].

    Returns:
        The sum over the pairs [], and its gradient with respect to the logits, in the shape of `logp`.
    """
    p = logp.exp()
    gap = logp - logp.flip(1)
    weighted = p * gap
    divergences = weighted.sum(-1, keepdim=True)  # [pairs, 2, 1]: of the one from the other, and the reverse
    return divergences.sum(), weighted.sub_(p * divergences).add_(p).sub_(p.flip(1))
