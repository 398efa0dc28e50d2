"""Token and position embeddings ("Attention Is All You Need", sections 3.4 and 3.5)."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from training.model.dropout import Dropout

Positions = Literal["sinusoidal", "learned"]


def sinusoids(length: int, d_model: int) -> Tensor:
    """The table of section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same.

    Returns:
        [length, d_model]
    """
    position = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10_000) / d_model))
    table = torch.empty(length, d_model, dtype=torch.float64)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency[: d_model // 2])
    return table.float()


class Embedding(nn.Module):
    """Token embedding times sqrt(d_model), plus the embedding of the position.

    Args:
        tokens: the token table, which encoder, decoder and output layer may share.
        max_length: positions that exist; longer input is an error of the caller.
    """

    def __init__(self, tokens: nn.Embedding, positions: Positions, max_length: int, dropout: float) -> None:
        super().__init__()
        self.tokens = tokens
        self.scale = math.sqrt(tokens.embedding_dim)
        table = sinusoids(max_length, tokens.embedding_dim)
        self.positions: Tensor | nn.Parameter
        if positions == "learned":
            self.positions = nn.Parameter(torch.empty_like(table).normal_(std=0.02))
        else:
            self.register_buffer("positions", table, persistent=False)
        self.dropout = Dropout(dropout)

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Embeds ids at positions 0.. of each row, or at the positions given.

        Args:
            ids: [batch, length]
            positions: [batch, length]; None for 0, 1, 2, ...

        Returns:
            [batch, length, d_model]
        """
        offset = self.positions[: ids.size(1)] if positions is None else self.positions[positions]
        return self.dropout(self.tokens(ids) * self.scale + offset)  # type: ignore[no-any-return]
