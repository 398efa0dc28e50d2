"""Token and position embeddings ("Attention Is All You Need", sections 3.4 and 3.5), and relative positions (T5)."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from dragoman_training.model.dropout import Dropout

Sinusoids = Literal["sinusoidal", "sinusoidal_halves", "sinusoidal_fairseq"]
Positions = Literal[
    "sinusoidal", "sinusoidal_halves", "sinusoidal_fairseq", "learned", "relative", "relative_per_layer"
]
EmbeddingNorm = Literal["none", "sum", "tokens"]

FAIRSEQ_FIRST = 2  # the first position in fairseq: the padding token's id plus one


def sinusoids(length: int, d_model: int, form: Sinusoids = "sinusoidal") -> Tensor:
    """Computes sinusoidal position embeddings.

    - `sinusoidal`, section 3.5 of the paper: PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of it.
    - `sinusoidal_halves` (Marian): the same numbers, all sines first, then all cosines.
    - `sinusoidal_fairseq` (M2M-100, NLLB): in halves too, with exponents i / (d_model/2 - 1), starting at position 2.

    Returns:
        The table [length, d_model].
    """
    fairseq = form == "sinusoidal_fairseq"
    position = torch.arange(length, dtype=torch.float64)[:, None] + (FAIRSEQ_FIRST if fairseq else 0)  # [length, 1]
    last = d_model - 2 if fairseq else d_model
    even = torch.arange(0, d_model, 2, dtype=torch.float64)  # [d_model / 2]
    frequency = torch.exp(even * (-math.log(10_000) / last))  # [d_model / 2]
    angle = position * frequency  # [length, d_model / 2]
    parts = [angle.sin(), angle.cos()]
    table = torch.stack(parts, -1).flatten(1) if form == "sinusoidal" else torch.cat(parts, -1)  # [length, d_model]
    return table.float()


class Embedding(nn.Module):
    """Token embedding times `scale`, plus the position embedding.

    Args:
        tokens: Token table [vocabulary, d_model], which encoder, decoder and output layer may share.
        positions: Kind of position embedding; relative positions have no part in the embedding.
        max_length: Number of positions; longer input is an error of the caller.
        scale: Factor of the token embedding.
        norm: What a layer norm is applied to: the `sum` of token and position, the `tokens` alone, or `none`.
    """

    def __init__(
        self,
        tokens: nn.Embedding,
        positions: Positions,
        max_length: int,
        dropout: float,
        *,
        scale: float,
        norm: EmbeddingNorm,
        norm_epsilon: float,
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.scale = scale
        self.positions: Tensor | None  # [max_length, d_model]
        if positions == "learned":
            self.positions = nn.Parameter(torch.empty(max_length, tokens.embedding_dim).normal_(std=0.02))
        elif positions == "relative" or positions == "relative_per_layer":
            self.positions = None
        else:
            self.register_buffer("positions", sinusoids(max_length, tokens.embedding_dim, positions), persistent=False)
        self.norm_input = norm
        self.norm = nn.Identity() if norm == "none" else nn.LayerNorm(tokens.embedding_dim, eps=norm_epsilon)
        self.dropout = Dropout(dropout)

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Embeds token ids.

        Args:
            ids: Token ids [batch, length].
            positions: Position of each token [batch, length]; None for 0, 1, 2, ...

        Returns:
            The embeddings [batch, length, d_model].
        """
        offset = None
        if self.positions is not None:  # [length, d_model] or [batch, length, d_model]
            offset = self.positions[: ids.size(1)] if positions is None else self.positions[positions]
        tokens = self.tokens(ids) if self.scale == 1 else self.tokens(ids) * self.scale  # [batch, length, d_model]
        return self.dropout(combine_embeddings(tokens, offset, self.norm, self.norm_input))  # type: ignore[no-any-return]


def combine_embeddings(tokens: Tensor, offset: Tensor | None, norm: nn.Module, norm_input: EmbeddingNorm) -> Tensor:
    """Adds scaled token embeddings and position embeddings, normalized as `norm_input` says.

    Args:
        tokens: Scaled token embeddings [..., d_model].
        offset: Position embeddings, broadcastable to [..., d_model]; None with relative positions.

    Returns:
        The input of the first layer [..., d_model].
    """
    if norm_input == "tokens":
        tokens = norm(tokens)
    x = tokens if offset is None else tokens + offset
    return norm(x) if norm_input == "sum" else x


class RelativePositions(nn.Module):
    """Biases of the self-attention scores by the distance between query and key (T5: Raffel et al. 2020, section 2.1).

    Small distances have a bucket each; larger ones share buckets that widen logarithmically; all distances from
    `max_distance` on share the last one. The decoder looks back only; in the encoder, half of the buckets are for keys
    to the right of the query.

    Args:
        heads: Attention heads, each with its own biases.
        bidirectional: Whether keys to the right of a query have buckets of their own.
    """

    def __init__(self, heads: int, buckets: int, max_distance: int, *, bidirectional: bool) -> None:
        super().__init__()
        self.buckets, self.max_distance, self.bidirectional = buckets, max_distance, bidirectional
        self.table = nn.Embedding(buckets, heads)

    def bucket(self, distance: Tensor) -> Tensor:
        """Maps distances, key position minus query position, to buckets: int64 of any shape to the same shape."""
        buckets = self.buckets // 2 if self.bidirectional else self.buckets
        first = torch.where(distance > 0, buckets, 0) if self.bidirectional else torch.zeros_like(distance)
        away = distance.abs() if self.bidirectional else (-distance).clamp(min=0)
        exact = buckets // 2
        share = (away.clamp(min=1).double() / exact).log() / math.log(self.max_distance / exact)
        far = (exact + (share * (buckets - exact)).long()).clamp(max=buckets - 1)
        return first + torch.where(away < exact, away, far)

    def forward(self, queries: int, keys: int) -> Tensor:
        """Returns the addend of the scores [heads, queries, keys]."""
        device = self.table.weight.device
        distance = torch.arange(keys, device=device)[None, :] - torch.arange(queries, device=device)[:, None]
        return self.table(self.bucket(distance)).permute(2, 0, 1)  # type: ignore[no-any-return]

    def last_query(self, keys: int) -> Tensor:
        """Returns the addend of the scores of a query at the position of the last key [heads, 1, keys]."""
        distance = torch.arange(1 - keys, 1, device=self.table.weight.device)[None]  # [1, keys]
        return self.table(self.bucket(distance)).permute(2, 0, 1)  # type: ignore[no-any-return]
