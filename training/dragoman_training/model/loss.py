"""The output layer and the loss in one: cross entropy that never holds all logits at once."""

from typing import Any

import torch
from torch import Tensor

from dragoman_training.model.linear import autocast_dtype, matmul

IGNORED = -100  # target id of padding, the default ignore_index of F.cross_entropy
_LOGITS = 2**24  # at a time: 64 MiB
_LOGITS_CPU = 2**22  # more of them leave the caches
_LEAST_ROWS = 256  # fewer of them make the products of a large output layer slower
_GRADIENTS = 2**25  # of logits, kept to add to the gradient of the output layer at once: 64 MiB in bfloat16


def rows_at_a_time(vocabulary: int, device: torch.device) -> int:
    """Returns for how many rows logits are computed at a time."""
    return max(_LEAST_ROWS, (_LOGITS_CPU if device.type == "cpu" else _LOGITS) // vocabulary)


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
    rows = hidden.reshape(passes, target.numel(), -1).index_select(1, kept)  # [passes, tokens, d_model]
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
        return rows_gradient * gradients[0], weight_gradient * gradients[0], None, None, None


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
    chunk = rows_at_a_time(vocabulary, rows.device)
    chunk += chunk % 2 if r_drop else 0  # never half a pair
    group = chunk * max(1, _GRADIENTS // (chunk * vocabulary))
    with torch.autocast(rows.device.type, enabled=False):
        for first in range(0, len(rows), group):
            block, ids = rows[first : first + group].to(dtype), target[first : first + group, None]
            gradient = None if rows_gradient is None else block.new_empty(len(block), vocabulary)
            for start in range(0, len(block), chunk):
                part = slice(start, start + chunk)
                logp = matmul(block[part], matrix).float().log_softmax(-1)  # [chunk, vocabulary]
                total -= (1 - smoothing) * logp.gather(1, ids[part]).sum() + smoothing * logp.mean(-1).sum()
                divergence = None
                if r_drop:
                    loss, divergence = _divergence(logp.view(-1, 2, vocabulary))
                    total += r_drop / 2 * loss
                if gradient is not None:  # the probabilities minus the smoothed targets
                    logp.exp_().sub_(smoothing / vocabulary)
                    if divergence is not None:
                        logp.add_(divergence.flatten(0, 1), alpha=r_drop / 2)
                    logp.scatter_add_(1, ids[part], logp.new_full(ids[part].shape, smoothing - 1))
                    gradient[part] = logp
            if rows_gradient is None or gradient is None:
                continue
            rows_gradient[first : first + group] = matmul(gradient, matrix.t())
            update = matmul(gradient.t(), block.t())  # [vocabulary, d_model]
            weight_gradient = update.to(weight.dtype) if weight_gradient is None else weight_gradient.add_(update)
    return total, weight_gradient


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
