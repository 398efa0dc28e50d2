"""Encoder and decoder layers ("Attention Is All You Need", section 3.1, figure 1)."""

from collections.abc import Callable

from torch import Tensor, nn

from dragoman_training.model.attention import MultiHeadAttention
from dragoman_training.model.cache import LayerCache
from dragoman_training.model.config import LayerConfig, NormKind
from dragoman_training.model.dropout import Dropout
from dragoman_training.model.feed_forward import FeedForward


def build_norm(d_model: int, kind: NormKind, epsilon: float) -> nn.Module:
    """Builds a layer norm or an RMS norm over the last dimension."""
    return nn.LayerNorm(d_model, eps=epsilon) if kind == "layer" else nn.RMSNorm(d_model, eps=epsilon)


class Residual(nn.Module):
    """Residual connection, dropout and norm around a sub-layer.

    - post-norm, as in the paper: Norm(x + Dropout(sublayer(x))).
    - pre-norm: x + Dropout(sublayer(Norm(x))), with one more norm after the stack (Xiong et al. 2020).
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm = build_norm(config.d_model, config.norm_kind, config.norm_epsilon)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Maps [batch, length, d_model] to [batch, length, d_model]."""
        # Converted first, since a sum of different dtypes is slow on a CPU.
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x))).to(x.dtype)  # type: ignore[no-any-return]
        return self.norm(x + self.dropout(sublayer(x)).to(x.dtype))  # type: ignore[no-any-return]


class EncoderLayer(nn.Module):
    """Self-attention over the source, then a feed-forward network."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.feed_forward = _feed_forward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None, bias: Tensor | None = None) -> Tensor:
        """Runs the layer over all source positions.

        Args:
            x: Output of the layer below [batch, source, d_model].
            mask: Bool [batch, 1, 1, source], False at padding.
            bias: Addend of the self-attention scores [heads, source, source].

        Returns:
            The layer's output [batch, source, d_model].
        """
        x = self.residuals[0](x, lambda y: self.self_attention(y, mask=mask, bias=bias)[0])
        return self.residuals[1](x, self.feed_forward)  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Causal self-attention, attention over the encoder's output, then a feed-forward network."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.cross_attention = _attention(config)
        self.feed_forward = _feed_forward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(3))

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        memory_mask: Tensor | None,
        bias: Tensor | None = None,
        *,
        return_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Runs the layer over all target positions.

        Args:
            x: Output of the layer below [batch, target, d_model].
            memory: Encoder output [batch, source, d_model].
            memory_mask: Bool [batch, 1, 1, source], False at source padding.
            bias: Addend of the self-attention scores [heads, target, target].

        Returns:
            The layer's output [batch, target, d_model], and cross-attention weights [batch, heads, target, source] or
            None.
        """
        weights: Tensor | None = None

        def cross_attend(y: Tensor) -> Tensor:
            nonlocal weights
            y, weights = self.cross_attention(y, memory, memory_mask, return_weights=return_weights)
            return y  # [batch, target, d_model]

        x = self.residuals[0](x, lambda y: self.self_attention(y, bias=bias, causal=True)[0])
        x = self.residuals[1](x, cross_attend)
        return self.residuals[2](x, self.feed_forward), weights

    def step(
        self,
        x: Tensor,
        cache: LayerCache,
        filled: int,
        masks: tuple[Tensor | None, Tensor | None],
        bias: Tensor | None,
    ) -> Tensor:
        """Runs the layer for one position of each row.

        Args:
            x: Output of the layer below [rows, 1, d_model].
            cache: Keys and values of the positions before, and of the memory.
            filled: Keys of each source in the cache.
            masks: Which keys in the cache the rows of a source attend to [sources, 1, width, filled + width], and which
                of the memory [sources, 1, 1, source]; None for all.
            bias: Addend of the self-attention scores [heads, 1, filled + width], or one for each source.

        Returns:
            The layer's output [rows, 1, d_model].
        """

        past, memory_mask = masks

        # The rows of a source are its queries.
        def attend_back(y: Tensor) -> Tensor:
            keys, values = cache.append(*self.self_attention.project_memory(y), filled)
            queries = y.view(len(keys), -1, y.size(-1))
            return self.self_attention.attend(queries, keys, values, past, bias=bias).view_as(y)

        def attend_source(y: Tensor) -> Tensor:
            keys, values = cache.memory
            queries = y.view(len(keys), -1, y.size(-1))
            return self.cross_attention.attend(queries, keys, values, memory_mask).view_as(y)

        x = self.residuals[0](x, attend_back)
        x = self.residuals[1](x, attend_source)
        return self.residuals[2](x, self.feed_forward)  # type: ignore[no-any-return]


def _attention(config: LayerConfig) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.d_model, config.heads, config.d_head, bias=config.bias, scaled=config.scaled_attention
    )


def _feed_forward(config: LayerConfig) -> FeedForward:
    return FeedForward(config.d_model, config.d_ff, config.activation, bias=config.bias)
