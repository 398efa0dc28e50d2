"""Encoder and decoder layers ("Attention Is All You Need", section 3.1, figure 1)."""

from collections.abc import Callable

from torch import Tensor, nn

from dragoman_training.model.attention import MultiHeadAttention
from dragoman_training.model.config import LayerShape, NormKind
from dragoman_training.model.dropout import Dropout
from dragoman_training.model.feed_forward import FeedForward


def build_norm(d_model: int, kind: NormKind, epsilon: float) -> nn.Module:
    """Layer norm, or root mean square norm, over the last dimension."""
    return nn.LayerNorm(d_model, eps=epsilon) if kind == "layer" else nn.RMSNorm(d_model, eps=epsilon)


class Residual(nn.Module):
    """Residual connection, dropout and layer norm around a sub-layer.

    post-norm, as in the paper: LayerNorm(x + Dropout(sublayer(x)));
    pre-norm: x + Dropout(sublayer(LayerNorm(x))), whose stack ends with one more LayerNorm (Xiong et al. 2020).
    """

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.pre = shape.norm == "pre"
        self.norm = build_norm(shape.d_model, shape.norm_kind, shape.norm_epsilon)
        self.dropout = Dropout(shape.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """[batch, length, d_model] -> [batch, length, d_model]."""
        # A sum of different types is slow on a CPU: hence the conversion.
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x))).to(x.dtype)  # type: ignore[no-any-return]
        return self.norm(x + self.dropout(sublayer(x)).to(x.dtype))  # type: ignore[no-any-return]


class EncoderLayer(nn.Module):
    """Self-attention over the source, then the feed-forward network."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.self_attention = _attention(shape)
        self.feed_forward = _feed_forward(shape)
        self.residuals = nn.ModuleList(Residual(shape) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None, bias: Tensor | None = None) -> Tensor:
        """One layer over a whole source.

        Args:
            x: [batch, source, d_model]
            mask: [batch, 1, 1, source], True where the source is not padding
            bias: of the scores of self-attention, [heads, source, source]

        Returns:
            [batch, source, d_model]
        """
        x = self.residuals[0](x, lambda y: self.self_attention(y, mask=mask, bias=bias)[0])
        return self.residuals[1](x, self.feed_forward)  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Causal self-attention, attention over the encoder's output, then the feed-forward network."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.self_attention = _attention(shape)
        self.cross_attention = _attention(shape)
        self.feed_forward = _feed_forward(shape)
        self.residuals = nn.ModuleList(Residual(shape) for _ in range(3))

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        memory_mask: Tensor | None,
        bias: Tensor | None = None,
        *,
        return_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """One layer over a whole target.

        Args:
            x: [batch, target, d_model]
            memory: [batch, source, d_model], the encoder's output
            memory_mask: [batch, 1, 1, source], True where the source is not padding
            bias: of the scores of self-attention, [heads, target, target]

        Returns:
            [batch, target, d_model], and cross-attention weights [batch, heads, target, source] or None.
        """
        weights: Tensor | None = None

        def attend(y: Tensor) -> Tensor:
            nonlocal weights
            y, weights = self.cross_attention(y, memory, memory_mask, return_weights=return_weights)
            return y

        x = self.residuals[0](x, lambda y: self.self_attention(y, bias=bias, causal=True)[0])
        x = self.residuals[1](x, attend)
        return self.residuals[2](x, self.feed_forward), weights


def _attention(shape: LayerShape) -> MultiHeadAttention:
    return MultiHeadAttention(shape.d_model, shape.heads, shape.d_head, bias=shape.bias, scaled=shape.scaled_attention)


def _feed_forward(shape: LayerShape) -> FeedForward:
    return FeedForward(shape.d_model, shape.d_ff, shape.activation, bias=shape.bias)
