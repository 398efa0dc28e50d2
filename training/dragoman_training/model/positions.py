"""Token and position embeddings ("Attention Is All You Need", sections 3.4 and 3.5), and relative positions."""

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

FAIRSEQ_FIRST = 2  # the position of the first token there: one behind the padding token's id


def sinusoids(length: int, d_model: int, form: Sinusoids = "sinusoidal") -> Tensor:
    """Sines and cosines of positions, in one of the forms that are in use.

    - `sinusoidal`, section 3.5 of the paper: PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of it.
    - `sinusoidal_halves`: the same numbers, first all sines, then all cosines.
    - `sinusoidal_fairseq`: in halves as well, with exponents i / (d_model/2 - 1), and the first position is 2.

    Returns:
        [length, d_model]
    """
    fairseq = form == "sinusoidal_fairseq"
    position = torch.arange(length, dtype=torch.float64)[:, None] + (FAIRSEQ_FIRST if fairseq else 0)
    last = d_model - 2 if fairseq else d_model
    frequency = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10_000) / last))
    angle = position * frequency  # [length, d_model / 2]
    parts = [angle.sin(), angle.cos()]
    table = torch.stack(parts, -1).flatten(1) if form == "sinusoidal" else torch.cat(parts, -1)
    return table.float()


class Embedding(nn.Module):
    """Token embedding, usually times sqrt(d_model), plus the embedding of the position.

    Args:
        tokens: the token table, which encoder, decoder and output layer may share.
        positions: those that are relative have no part in the embedding.
        max_length: positions that exist; longer input is an error of the caller.
        scale: what the token embedding is multiplied by.
        norm: a layer norm of the `sum` of token and position, of the `tokens` alone, or none.
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
        self.positions: Tensor | None
        if positions == "learned":
            self.positions = nn.Parameter(torch.empty(max_length, tokens.embedding_dim).normal_(std=0.02))
        elif positions == "relative" or positions == "relative_per_layer":
            self.positions = None
        else:
            self.register_buffer("positions", sinusoids(max_length, tokens.embedding_dim, positions), persistent=False)
        self.norm_of = norm
        self.norm = nn.Identity() if norm == "none" else nn.LayerNorm(tokens.embedding_dim, eps=norm_epsilon)
        self.dropout = Dropout(dropout)

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Embeds ids at positions 0.. of each row, or at the positions given.

        Args:
            ids: [batch, length]
            positions: [batch, length]; None for 0, 1, 2, ...

        Returns:
            [batch, length, d_model]
        """
        offset = None
        if self.positions is not None:
            offset = self.positions[: ids.size(1)] if positions is None else self.positions[positions]
        tokens = self.tokens(ids) if self.scale == 1 else self.tokens(ids) * self.scale
        return self.dropout(combine_embeddings(tokens, offset, self.norm, self.norm_of))  # type: ignore[no-any-return]


def combine_embeddings(tokens: Tensor, offset: Tensor | None, norm: nn.Module, norm_of: EmbeddingNorm) -> Tensor:
    """Scaled token embeddings and embeddings of positions, [..., d_model] each, to what the first layer reads."""
    if norm_of == "tokens":
        tokens = norm(tokens)
    x = tokens if offset is None else tokens + offset
    return norm(x) if norm_of == "sum" else x


class RelativePositions(nn.Module):
    """What is added to the scores of self-attention by how far apart query and key are (Raffel et al. 2020, 2.1).

    Small distances have a bucket each; larger ones share buckets whose width grows with the logarithm of the distance;
    from `max_distance` on all share one. The decoder looks back alone; in the encoder half of the buckets are for keys
    behind the query's place.

    Args:
        heads: each has numbers of its own.
        both_ways: whether keys to the right of a query are looked at.
    """

    def __init__(self, heads: int, buckets: int, max_distance: int, *, both_ways: bool) -> None:
        super().__init__()
        self.buckets, self.max_distance, self.both_ways = buckets, max_distance, both_ways
        self.table = nn.Embedding(buckets, heads)

    def bucket(self, distance: Tensor) -> Tensor:
        """Buckets of distances, key's place less query's: int64, any shape, same shape back."""
        buckets = self.buckets // 2 if self.both_ways else self.buckets
        first = torch.where(distance > 0, buckets, 0) if self.both_ways else torch.zeros_like(distance)
        away = distance.abs() if self.both_ways else (-distance).clamp(min=0)
        exact = buckets // 2
        share = (away.clamp(min=1).double() / exact).log() / math.log(self.max_distance / exact)
        far = (exact + (share * (buckets - exact)).long()).clamp(max=buckets - 1)
        return first + torch.where(away < exact, away, far)

    def forward(self, queries: int, keys: int) -> Tensor:
        """Returns: what is added to the scores of each head, [heads, queries, keys]."""
        device = self.table.weight.device
        distance = torch.arange(keys, device=device)[None, :] - torch.arange(queries, device=device)[:, None]
        return self.table(self.bucket(distance)).permute(2, 0, 1)  # type: ignore[no-any-return]
