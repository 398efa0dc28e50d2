"""The output layer and the loss in one: cross entropy that never holds all logits at once."""

from typing import Any

import torch
from torch import Tensor

from dragoman_training.model.linear import autocast_dtype, matmul, padded

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


def smoothed_cross_entropy(
    hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float, r_drop: float = 0.0
) -> Tensor:
    """Computes the label-smoothed cross entropy of the logits hidden @ weight^T (Szegedy et al. 2016).

    The result is that of F.cross_entropy, but logits and their gradient are computed a few rows at a time and
    discarded: with a large vocabulary they would take most of a step's memory. Padding is skipped. Without grad mode no
    gradient is computed.

    Args:
        hidden: Decoder outputs [batch, target, d_model], or of two passes with `r_drop`: [2 * batch, target, d_model].
        weight: Output layer [vocabulary, d_model].
        target: Token ids [batch, target], IGNORED at padding.
        smoothing: Share of the probability that is spread over all tokens.
        r_drop: Weight of the divergence between the two passes, alpha in Liang et al. 2021; 0 if there is one pass.

    Returns:
        The sum over the target tokens in nats, a float32 scalar []; with `r_drop` over both passes, plus alpha times
        the mean of their two Kullback-Leibler divergences.
    """
    kept = (target.flatten() != IGNORED).nonzero().squeeze(1)  # [tokens]
    ids, passes = target.flatten()[kept], 2 if r_drop else 1
    rows = hidden.reshape(passes, target.numel(), hidden.size(-1)).index_select(1, kept)  # [passes, tokens, d_model]
    rows, ids = rows.transpose(0, 1).flatten(0, 1), ids.repeat_interleave(passes)  # the passes of a token side by side
    if not torch.is_grad_enabled():
        return _cross_entropy(rows, weight, ids, smoothing, r_drop, None)[0]
    return _CrossEntropy.apply(rows, weight, ids, smoothing, r_drop)  # type: ignore[no-any-return,no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, target: Tensor, smoothing: float, r_drop: float) -> Tensor:
        rows_gradient = torch.empty_like(rows)  # [tokens, d_model]
        total, weight_gradient = _cross_entropy(rows, weight, target, smoothing, r_drop, rows_gradient)
        ctx.save_for_backward(rows_gradient, torch.zeros_like(weight) if weight_gradient is None else weight_gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        rows_gradient, weight_gradient = ctx.saved_tensors
        # In place: a second pass through this graph would be refused.
        return rows_gradient.mul_(gradients[0]), weight_gradient.mul_(gradients[0]), None, None, None


def _cross_entropy(
    rows: Tensor, weight: Tensor, target: Tensor, smoothing: float, r_drop: float, rows_gradient: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Computes the loss and, if asked, its gradients.

    Args:
        rows: Decoder outputs [tokens, d_model].
        weight: Output layer [vocabulary, d_model].
        target: Token ids [tokens].
        r_drop: Weight of the divergence between rows 0 and 1, 2 and 3, ...
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
            ids = target[first : first + at_a_time]
            block = padded(rows[first : first + at_a_time], dtype)
            logits = matmul(block, matrix)  # [padded rows, vocabulary]
            for some, their_ids in zip(torch.split(logits[: len(ids)], part), torch.split(ids, part), strict=True):
                total += _softmax(some, their_ids, smoothing, r_drop, differentiate=rows_gradient is not None)
            if rows_gradient is not None:
                logits[len(ids) :] = 0
                rows_gradient[first : first + at_a_time] = matmul(logits, matrix.t())[: len(ids)]
                update = matmul(logits.t(), block.t())  # [vocabulary, d_model]
                weight_gradient = update.to(weight.dtype) if weight_gradient is None else weight_gradient.add_(update)
    return total, weight_gradient


def _softmax(logits: Tensor, target: Tensor, smoothing: float, r_drop: float, *, differentiate: bool) -> Tensor:
    """Computes the loss of some rows [].

    Args:
        logits: [rows, vocabulary]; replaced by their gradient if `differentiate` is set.
        target: Token ids [rows].
    """
    vocabulary, ids = logits.size(1), target[:, None]
    logp = logits.float().log_softmax(-1)
    loss = (smoothing - 1) * logp.gather(1, ids).sum() - smoothing / vocabulary * logp.sum()
    gradient = None
    if r_drop:
        divergence, gradient = _divergence(logp.view(-1, 2, vocabulary))
        loss += r_drop / 2 * divergence
    if differentiate:  # the probabilities minus the smoothed targets
        logp.exp_().sub_(smoothing / vocabulary)
        logp.scatter_add_(1, ids, logp.new_full(ids.shape, smoothing - 1))
        if gradient is not None:
            logp.add_(gradient.view_as(logp), alpha=r_drop / 2)
        logits.copy_(logp)
    return loss


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
