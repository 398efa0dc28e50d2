"""Scaled dot-product and multi-head attention ("Attention Is All You Need", sections 3.2.1 and 3.2.2)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman_training.model.linear import Linear, is_cpu_training, linear


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
    """Computes softmax(Q K^T / sqrt(d_head)) V, equation 1 of the paper.

    Args:
        query: Queries [batch, heads, queries, d_head].
        key: Keys [batch, heads, keys, d_head].
        value: Values [batch, heads, keys, d_head].
        mask: Bool, broadcastable to [batch, heads, queries, keys]; True where a query attends. Not with `causal`.
        bias: Addend of the scores, broadcastable to [batch, heads, queries, keys].
        scale: Factor of the scores; None for 1 / sqrt(d_head).
        causal: Whether query i attends to keys 0..i only.
        return_weights: Whether to return the weights; the fused kernel is then not used.

    Returns:
        The output [batch, heads, queries, d_head], and the weights [batch, heads, queries, keys] or None.
    """
    if causal and (return_weights or bias is not None):
        mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()  # [queries, keys]
        causal = False
    if not return_weights:
        if bias is not None:
            mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, scale=scale)
        return attended, None  # [batch, heads, queries, d_head]
    scores = query @ key.transpose(-2, -1)  # [batch, heads, queries, keys]
    scores = scores / math.sqrt(query.size(-1)) if scale is None else scores * scale
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(-1)  # [batch, heads, queries, keys]
    return weights @ value, weights


class MultiHeadAttention(nn.Module):
    """Attention with `heads` heads, each on its own projection of the input (section 3.2.2).

    The projections are stored as the matrices that are applied together: `query`, and `key_value`, since
    encoder-decoder attention computes keys and values once, from another sequence.

    Args:
        d_head: Width of a head; None for d_model / heads.
        scaled: Whether scores are divided by sqrt(d_head).

    Raises:
        ValueError: `heads` does not divide d_model and d_head is None.
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
        """Reshapes [batch, length, heads * d_head] to [batch, heads, length, d_head]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # type: ignore[no-any-return,no-untyped-call]

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Projects the attended sequence [batch, keys, d_model] to keys and values [batch, heads, keys, d_head]."""
        key, value = self.key_value(memory).chunk(2, -1)  # [batch, keys, heads * d_head] each
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
        """Computes the self-attention of `x`, or its attention over `memory`.

        Args:
            x: Queries before projection [batch, queries, d_model].
            memory: Attended sequence [batch, keys, d_model]; None for self-attention.
            mask: Bool, broadcastable to [batch, heads, queries, keys]; True where a query attends.
            bias: Addend of the scores [heads, queries, keys].

        Returns:
            The output [batch, queries, d_model], and the weights [batch, heads, queries, keys] or None.
        """
        query, key, value = self._project(x, memory)  # [batch, heads, length, d_head] each
        # On short sequences, the backward pass of the fused kernel takes half of a training step; plain products do
        # not.
        unfused = return_weights or is_cpu_training(self, x)
        heads, weights = scaled_dot_product_attention(
            query, key, value, mask, bias=bias, scale=self.scale, causal=causal, return_weights=unfused
        )
        return self.output(heads.transpose(1, 2).flatten(-2)), weights if return_weights else None

    def attend(
        self, x: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, bias: Tensor | None = None
    ) -> Tensor:
        """Computes the attention of `x` over keys and values that `project_memory` made before.

        Args:
            x: Queries before projection [batch, queries, d_model].
            key: Keys [batch, heads, keys, d_head].
            value: Values [batch, heads, keys, d_head].
            mask: Bool, broadcastable to [batch, heads, queries, keys]; True where a query attends.
            bias: Addend of the scores [heads, queries, keys].

        Returns:
            The output [batch, queries, d_model].
        """
        query = self.split_heads(self.query(x))  # [batch, heads, queries, d_head]
        heads, _ = scaled_dot_product_attention(query, key, value, mask, bias=bias, scale=self.scale)
        return self.output(heads.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]

    def _project(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Projects to queries, keys and values [batch, heads, length, d_head]; self-attention trains with one product.

        Args:
            x: Queries before projection [batch, queries, d_model].
            memory: Attended sequence [batch, keys, d_model]; None for self-attention.
        """
        if memory is not None or not is_cpu_training(self, x):
            key, value = self.project_memory(x if memory is None else memory)
            return self.split_heads(self.query(x)), key, value
        parts = self.query, self.key_value
        bias = None if self.query.bias is None else torch.cat([part.bias for part in parts])  # [3 * width]
        packed = linear(x, torch.cat([part.weight for part in parts]), bias)  # [batch, length, 3 * width]
        query, key, value = packed.view(*packed.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4).contiguous()
        return query, key, value
