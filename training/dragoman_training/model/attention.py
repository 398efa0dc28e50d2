"""Scaled dot-product and multi-head attention ("Attention Is All You Need", sections 3.2.1 and 3.2.2)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman_training.model.linear import Linear, linear, trains


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    return_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """softmax(Q K^T / sqrt(d_head)) V, equation 1 of the paper.

    Args:
        query: [batch, heads, queries, d_head]
        key: [batch, heads, keys, d_head]
        value: [batch, heads, keys, d_head]
        mask: bool, broadcastable to [batch, heads, queries, keys]; True where a query may look. Not with `causal`.
        bias: added to the scores, broadcastable to their shape.
        scale: of the scores; None for 1 / sqrt(d_head).
        causal: query i sees keys 0..i only.
        return_weights: also return the weights; they are then computed by hand instead of by the fused kernel.

    Returns:
        output [batch, heads, queries, d_head], and the weights [batch, heads, queries, keys] or None.
    """
    if causal and (return_weights or bias is not None):
        mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()
        causal = False
    if not return_weights:
        if bias is not None:
            mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, scale=scale)
        return attended, None
    scores = query @ key.transpose(-2, -1)  # [batch, heads, queries, keys]
    scores = scores / math.sqrt(query.size(-1)) if scale is None else scores * scale
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(-1)
    return weights @ value, weights


class MultiHeadAttention(nn.Module):
    """Attention of `heads` heads side by side, each on its own projection of the input (section 3.2.2).

    The projections of queries, keys and values stand in one matrix each for what is computed together: `query` alone,
    and `key_value`, since in encoder-decoder attention keys and values come from another sequence, once.

    Args:
        d_head: width of a head; None for d_model / heads.
        scaled: whether scores are divided by sqrt(d_head).

    Raises:
        ValueError: heads do not divide d_model, and no d_head is given.
    """

    def __init__(
        self, d_model: int, heads: int, d_head: int | None = None, *, bias: bool = True, scaled: bool = True
    ) -> None:
        super().__init__()
        if d_head is None and d_model % heads:
            raise ValueError(f"d_model ({d_model}) must be divisible by heads ({heads})")
        self.heads, self.d_head = heads, d_head or d_model // heads
        self.scale = self.d_head**-0.5 if scaled else 1.0
        width = self.heads * self.d_head
        self.query = Linear(d_model, width, bias=bias)
        self.key_value = Linear(d_model, 2 * width, bias=bias)
        self.output = Linear(width, d_model, bias=bias)

    def split_heads(self, x: Tensor) -> Tensor:
        """[batch, length, heads * d_head] -> [batch, heads, length, d_head]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # type: ignore[no-any-return,no-untyped-call]

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of what is attended to.

        Args:
            memory: [batch, keys, d_model]

        Returns:
            keys and values, each [batch, heads, keys, d_head].
        """
        key, value = self.key_value(memory).chunk(2, -1)
        return self.split_heads(key), self.split_heads(value)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        causal: bool = False,
        return_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Self-attention of `x`, or encoder-decoder attention of `x` over `memory`.

        Args:
            x: [batch, queries, d_model]
            memory: [batch, keys, d_model]; None for self-attention.
            mask: bool, broadcastable to [batch, heads, queries, keys]; True where a query may look.
            bias: added to the scores, [heads, queries, keys].

        Returns:
            [batch, queries, d_model], and the weights [batch, heads, queries, keys] or None.
        """
        query, key, value = self._project(x, memory)
        # The fused kernel's backward takes half of a training step on short sequences; products by hand do not.
        by_hand = return_weights or trains(self, x)
        heads, weights = scaled_dot_product_attention(
            query, key, value, mask, bias=bias, scale=self.scale, causal=causal, return_weights=by_hand
        )
        return self.output(heads.transpose(1, 2).flatten(-2)), weights if return_weights else None

    def _project(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [batch, heads, length, d_head]; by one product where one input is for all."""
        if memory is not None or not trains(self, x):
            key, value = self.project_memory(x if memory is None else memory)
            return self.split_heads(self.query(x)), key, value
        both = self.query, self.key_value
        bias = None if self.query.bias is None else torch.cat([part.bias for part in both])
        packed = linear(x, torch.cat([part.weight for part in both]), bias)  # [batch, length, 3 * width]
        query, key, value = packed.view(*packed.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4).contiguous()
        return query, key, value
