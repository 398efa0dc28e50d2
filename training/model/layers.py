"""Encoder and decoder layers ("Attention Is All You Need", section 3.1, figure 1)."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from training.model.attention import MultiHeadAttention
from training.model.dropout import Dropout
from training.model.feed_forward import Activation, FeedForward

Norm = Literal["pre", "post"]


class Residual(nn.Module):
    """Residual connection, dropout and layer norm around a sub-layer.

    post-norm, as in the paper: LayerNorm(x + Dropout(sublayer(x)));
    pre-norm: x + Dropout(sublayer(LayerNorm(x))), whose stack ends with one more LayerNorm (Xiong et al. 2020).
    """

    def __init__(self, d_model: int, dropout: float, norm: Norm) -> None:
        super().__init__()
        self.pre = norm == "pre"
        self.norm = nn.LayerNorm(d_model)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """[batch, length, d_model] -> [batch, length, d_model]."""
        # A sum of different types is slow on a CPU: hence the conversion.
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x))).to(x.dtype)  # type: ignore[no-any-return]
        return self.norm(x + self.dropout(sublayer(x)).to(x.dtype))  # type: ignore[no-any-return]


class EncoderLayer(nn.Module):
    """Self-attention over the source, then the feed-forward network."""

    def __init__(self, d_model: int, heads: int, d_ff: int, activation: Activation, dropout: float, norm: Norm) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, heads)
        self.feed_forward = FeedForward(d_model, d_ff, activation)
        self.residuals = nn.ModuleList(Residual(d_model, dropout, norm) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Args: x [batch, source, d_model]; mask [batch, 1, 1, source]. Returns [batch, source, d_model]."""
        x = self.residuals[0](x, lambda y: self.self_attention(y, mask=mask)[0])
        return self.residuals[1](x, self.feed_forward)  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Causal self-attention, attention over the encoder's output, then the feed-forward network."""

    def __init__(self, d_model: int, heads: int, d_ff: int, activation: Activation, dropout: float, norm: Norm) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, heads)
        self.cross_attention = MultiHeadAttention(d_model, heads)
        self.feed_forward = FeedForward(d_model, d_ff, activation)
        self.residuals = nn.ModuleList(Residual(d_model, dropout, norm) for _ in range(3))

    def forward(
        self, x: Tensor, memory: Tensor, memory_mask: Tensor | None, *, return_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """One layer over a whole target.

        Args:
            x: [batch, target, d_model]
            memory: [batch, source, d_model], the encoder's output
            memory_mask: [batch, 1, 1, source], True where the source is not padding

        Returns:
            [batch, target, d_model], and cross-attention weights [batch, heads, target, source] or None.
        """
        weights: Tensor | None = None

        def attend(y: Tensor) -> Tensor:
            nonlocal weights
            y, weights = self.cross_attention(y, memory, memory_mask, return_weights=return_weights)
            return y

        x = self.residuals[0](x, lambda y: self.self_attention(y, causal=True)[0])
        x = self.residuals[1](x, attend)
        return self.residuals[2](x, self.feed_forward), weights
