"""Rewrites the trained model for export: multiplications move to other places, and the result stays the same."""

import copy
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman_export.graphs.operators import attention
from dragoman_export.graphs.packing import PackedEncoder, Packing, Unpacked
from dragoman_training.model import Transformer
from dragoman_training.model.attention import MultiHeadAttention
from dragoman_training.model.layers import DecoderLayer, EncoderLayer, Residual
from dragoman_training.model.positions import Embedding, RelativePositions, combine_embeddings


class FusedSelfAttention(nn.Module):
    """A trained self-attention whose query, key and value projections are one matrix: one product, not two.

    The query projection includes the attention's scale.
    """

    def __init__(self, trained: MultiHeadAttention) -> None:
        super().__init__()
        self.heads, self.d_head = trained.heads, trained.d_head
        self.query_key_value = concatenate([_scaled_query(trained), trained.key_value])
        self.output = trained.output

    def forward(
        self, x: Tensor, mask: Packing | Unpacked, *, bias: Tensor | None = None, causal: bool = False
    ) -> tuple[Tensor, None]:
        """Replaces the trained module's `forward` in the layers that call it.

        Args:
            x: [tokens, d_model].
            mask: Not a mask but the packing of the tokens.
            bias: Added to the scores [1, heads, length, length].
            causal: Whether each query attends to its own position and those before it only.

        Returns:
            A tensor of the shape of x, and no attention weights.
        """
        # Only attention needs rows: its input is padded, and its output packed again.
        query, key, value = mask.pad_parts(self.query_key_value(x), 3)
        attended, _ = attention(query, key, value, self.heads, mask.lengths, bias=bias, causal=causal)
        return self.output(mask.pack(attended)), None


class FoldedCrossAttention(nn.Module):
    """A trained cross-attention without the projections of the source; the query projection includes the scale."""

    def __init__(self, trained: MultiHeadAttention) -> None:
        super().__init__()
        self.heads = trained.heads
        self.query, self.output = _scaled_query(trained), trained.output


class FoldedEmbedding(nn.Module):
    """A trained embedding whose token table includes the scale, and whose positions are one Gather."""

    def __init__(self, trained: Embedding) -> None:
        super().__init__()
        self.tokens, self.norm, self.norm_input = trained.tokens, trained.norm, trained.norm_input
        self.positions = None if trained.positions is None else table(trained.positions)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Replaces the trained module's `forward`: ids and positions [..., n] -> [..., n, d_model]."""
        offset = None if self.positions is None else self.positions(positions)
        return combine_embeddings(self.tokens(ids), offset, self.norm, self.norm_input)


class FoldedRelative(nn.Module):
    """Trained relative positions as a table with a row for each distance, so that a step only looks them up.

    Args:
        trained: The relative positions of a stack or layer.
        longest: Longest sequence. The table reaches from longest - 1 positions back to, in the encoder, as many ahead.
    """

    def __init__(self, trained: RelativePositions, longest: int) -> None:
        super().__init__()
        self.back = longest - 1
        distances = torch.arange(-self.back, longest if trained.bidirectional else 1)
        self.table = table(trained.table(trained.bucket(distances)))  # [distances, heads]

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Returns the bias of the attention scores.

        Args:
            queries: Positions of the queries, int64 [rows, queries].
            keys: Positions of the keys, int64 [keys]. In the decoder the values for keys ahead are meaningless, as
                nothing attends to them.

        Returns:
            [rows, heads, queries, keys].
        """
        index = (keys - queries[..., None] + self.back).clamp(max=self.table.num_embeddings - 1)
        return self.table(index).permute(0, 3, 1, 2)  # type: ignore[no-any-return]


class FoldedModel(nn.Module):
    """A model in the form that its graphs compute.

    Args:
        model: The model whose parts were replaced, see `fold_model`.
        memory: Projection of the encoder's output to the keys and values of all decoder layers:
            [n, d_model] -> [n, layers * 2 * d_model], keys of layer 0, values of layer 0, keys of layer 1, ...
    """

    def __init__(self, model: Transformer, memory: nn.Linear) -> None:
        super().__init__()
        self.encoder, self.decoder, self.memory = PackedEncoder(model.encoder), model.decoder, memory
        self.decoder_layers = cast(Sequence[DecoderLayer], model.decoder.layers)
        self.heads = model.config.decoder_layer.heads


@torch.no_grad()
def fold_model(trained: Transformer) -> FoldedModel:
    """Returns a copy of the model for export: fewer and larger products, no separate factors, no padding. What stays as
    it is shares the memory of the model.

    The factor sqrt(d_model) moves into the token tables, 1 / sqrt(d_head) into the query projections, and the scale of
    the decoder's output into its last norm. Where a table is also the output projection, that norm takes the inverse of
    the table's factor too, so that the table is still stored once.
    """
    model = _copy_to_fold(trained)
    decoder_layers = cast(Sequence[DecoderLayer], model.decoder.layers)
    memory = concatenate([layer.cross_attention.key_value for layer in decoder_layers])
    for layer in cast(Iterable[EncoderLayer | DecoderLayer], chain(model.encoder.layers, decoder_layers)):
        layer.self_attention = FusedSelfAttention(layer.self_attention)  # type: ignore[assignment]  # same interface
    for layer in decoder_layers:
        layer.cross_attention = FoldedCrossAttention(layer.cross_attention)  # type: ignore[assignment]  # likewise
    source, target = model.encoder.embedding, model.decoder.embedding
    tied = model.decoder.projection.weight is target.tokens.weight
    for parameter in _last_norm(model).parameters():
        parameter.mul_(model.decoder.output_scale / (target.scale if tied else 1))
    if source.scale != 1:
        for weight in {id(e.tokens.weight): e.tokens.weight for e in (source, target)}.values():
            weight.mul_(source.scale)
    lengths = model.config.max_source_length, model.config.max_target_length + 1
    for stack, embedding, longest in zip((model.encoder, model.decoder), (source, target), lengths, strict=True):
        stack.embedding = FoldedEmbedding(embedding)
        relative = cast(Iterable[RelativePositions], stack.relative)
        stack.relative = nn.ModuleList(FoldedRelative(positions, longest) for positions in relative)
    return FoldedModel(model, memory)


@torch.no_grad()
def pad_vocabulary(model: FoldedModel, size: int) -> None:
    """Adds target tokens that are never chosen until there are `size`, also to the tables tied to the projection."""
    decoder, projection = model.decoder, model.decoder.projection
    more = size - projection.out_features
    if not more:
        return
    tied = [e.tokens for e in (model.encoder.embedding, decoder.embedding) if e.tokens.weight is projection.weight]
    bias = projection.weight.new_zeros(len(projection.weight)) if decoder.logit_bias is None else decoder.logit_bias
    decoder.logit_bias = functional.pad(bias, (0, more), value=-torch.inf)
    weight = nn.Parameter(functional.pad(projection.weight, (0, 0, 0, more)), requires_grad=False)
    for module in (projection, *tied):
        module.weight = weight
    projection.out_features = size


def concatenate(linears: Iterable[nn.Linear]) -> nn.Linear:
    """Returns one linear map with the outputs of several, one after the other."""
    parts = list(linears)
    joint = nn.Linear(parts[0].in_features, sum(part.out_features for part in parts), bias=parts[0].bias is not None)
    with torch.no_grad():
        for name, parameter in joint.named_parameters():
            parameter.copy_(torch.cat([getattr(part, name) for part in parts]))
    return joint


def table(rows: Tensor) -> nn.Embedding:
    """Returns a lookup table of rows."""
    embedding = nn.Embedding(*rows.shape)
    embedding.weight = nn.Parameter(rows.detach(), requires_grad=False)
    return embedding


def _copy_to_fold(trained: Transformer) -> Transformer:
    """Returns a copy in evaluation mode that shares the memory of all parameters that folding does not change."""
    changed = {id(parameter) for parameter in _last_norm(trained).parameters()}
    for embedding in (trained.encoder.embedding, trained.decoder.embedding):
        if embedding.scale != 1:
            changed.add(id(embedding.tokens.weight))
    # New parameters on the same memory: a conversion to half precision replaces that of a parameter.
    shared = {
        id(parameter): nn.Parameter(parameter.data, requires_grad=False)
        for parameter in trained.parameters()
        if id(parameter) not in changed
    }
    return copy.deepcopy(trained, cast(dict[int, object], shared)).eval()


def _scaled_query(attention: MultiHeadAttention) -> nn.Linear:
    """Returns the query projection multiplied by the attention's scale, so that the scores need none."""
    query = copy.deepcopy(attention.query)
    for parameter in query.parameters():
        parameter.mul_(attention.scale)
    return query


def _last_norm(model: Transformer) -> nn.Module:
    if model.config.norm == "pre":
        return model.decoder.norm
    layers = cast(Sequence[DecoderLayer], model.decoder.layers)
    return cast(Residual, layers[-1].residuals[-1]).norm
