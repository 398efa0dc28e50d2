"""Rewrites of the trained model that change where a multiplication stands, never what is computed."""

import copy
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import cast

import torch
from torch import Tensor, nn

from export.graphs.operators import attention
from export.graphs.packing import PackedEncoder, Packing
from training.model import Transformer
from training.model.attention import MultiHeadAttention
from training.model.layers import DecoderLayer, EncoderLayer, Residual
from training.model.positions import Embedding


class FusedSelfAttention(nn.Module):
    """A trained self-attention with the projections of queries, keys and values in one matrix: one product, not two."""

    def __init__(self, trained: MultiHeadAttention) -> None:
        super().__init__()
        self.heads = trained.heads
        d_model = trained.query.in_features
        self.query_key_value = nn.Linear(d_model, 3 * d_model, bias=trained.query.bias is not None)
        with torch.no_grad():
            for name, parameter in self.query_key_value.named_parameters():
                parts = [getattr(linear, name) for linear in (trained.query, trained.key_value)]
                parameter.copy_(torch.cat(parts))
        self.output = trained.output

    def forward(self, x: Tensor, mask: Packing | None = None, *, causal: bool = False) -> tuple[Tensor, Tensor | None]:
        """Stands in for the trained module's `forward` in the layers that call it.

        Args:
            x: [rows, length, d_model], or packed [tokens, d_model]
            mask: not a mask but how x is packed; None where it is not.

        Returns:
            the shape of x, and no weights.
        """
        projected = self.query_key_value(x)
        # Of all an encoder does, only attention needs rows: padded for it, packed again for the rest.
        query, key, value = (projected if mask is None else mask.pad(projected)).chunk(3, -1)
        lengths = None if mask is None else mask.lengths
        attended = attention(query, key, value, self.heads, lengths, causal=causal)
        return self.output(attended if mask is None else mask.pack(attended)), None


class FoldedEmbedding(nn.Module):
    """A trained embedding whose token table holds the scale already, and that looks positions up by one Gather."""

    def __init__(self, trained: Embedding) -> None:
        super().__init__()
        self.tokens = trained.tokens
        self.positions = nn.Embedding(*trained.positions.shape)
        self.positions.weight = nn.Parameter(trained.positions.detach(), requires_grad=False)

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Stands in for the trained module's `forward`; ids and positions may also be [n], for [n, d_model]."""
        offset = self.positions.weight[: ids.shape[1]] if positions is None else self.positions(positions)
        return self.tokens(ids) + offset  # type: ignore[no-any-return]


@torch.no_grad()
def folded(model: Transformer) -> Transformer:
    """A copy of the model to export: one matrix in each self-attention, no scale after the embeddings, no padding.

    The factor sqrt(d_model) moves into the token tables. Where a table is the output projection too, the layer norm
    before that projection takes the inverse, so that the table is still stored once.
    """
    model = copy.deepcopy(model).eval()
    layers = chain(model.encoder.layers, model.decoder.layers)
    for layer in cast(Iterable[EncoderLayer | DecoderLayer], layers):
        fused = FusedSelfAttention(layer.self_attention)
        layer.self_attention = fused  # type: ignore[assignment]  # stands in for it
    source, target = model.encoder.embedding, model.decoder.embedding
    if model.decoder.projection.weight is target.tokens.weight:
        for parameter in _last_norm(model).parameters():
            parameter.div_(target.scale)
    for table in {id(e.tokens.weight): e.tokens.weight for e in (source, target)}.values():
        table.mul_(source.scale)
    for stack, embedding in ((model.encoder, source), (model.decoder, target)):
        stack.embedding = FoldedEmbedding(embedding)  # type: ignore[assignment]  # stands in for it
    model.encoder = PackedEncoder(model.encoder)  # type: ignore[assignment]  # stands in for it
    return model


def _last_norm(model: Transformer) -> nn.Module:
    if model.config.norm == "pre":
        return model.decoder.norm
    layers = cast(Sequence[DecoderLayer], model.decoder.layers)
    return cast(Residual, layers[-1].residuals[-1]).norm
