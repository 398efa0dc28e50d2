"""The decoder graph: one token for a batch of rows, each at its own position, over caches that are updated in place."""

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from dragoman_export.graphs.folding import FoldedCrossAttention, FoldedModel, FusedSelfAttention
from dragoman_export.graphs.head import Choice, ShortList, choose, look
from dragoman_export.graphs.operators import attention, group_query_attention, tensor_scatter
from dragoman_server.bundle.manifest import Attention


class OrtAttention:
    """Attention of one step as GroupQueryAttention, which reads only the valid part of a cache.

    It always writes a key and a value first. For cross-attention these are those of the source's last position, put
    where they already are.

    Args:
        positions, source_lengths: int32 [rows]
        self_capacity, cross_capacity: int32 scalars
    """

    def __init__(
        self, positions: Tensor, source_lengths: Tensor, self_capacity: Tensor, cross_capacity: Tensor
    ) -> None:
        self.self_last, self.cross_last = positions, source_lengths - 1
        self.self_capacity, self.cross_capacity = self_capacity, cross_capacity
        self.written: list[Tensor] = []
        self.query: Tensor | None = None  # of the source, last asked for: [rows, d_model]

    def to_target(self, trained: FusedSelfAttention, cache: Sequence[Tensor], bias: Tensor | None, y: Tensor) -> Tensor:
        """[rows, d_model] -> the same, over the target so far; bias: [rows, heads, 1, self_capacity]."""
        packed = trained.query_key_value(y).unsqueeze(1)
        y, *written = group_query_attention(
            packed, None, None, cache[0], cache[1], self.self_last, self.self_capacity, trained.heads, bias
        )
        self.written += written
        return trained.output(y.squeeze(1))  # type: ignore[no-any-return]

    def to_source(self, trained: FoldedCrossAttention, cache: Sequence[Tensor], y: Tensor) -> Tensor:
        """[rows, d_model] -> the same, over the source."""
        keys, values, last_key, last_value = cache[2:]
        self.query = trained.query(y)
        y, *written = group_query_attention(
            self.query.unsqueeze(1),
            last_key,
            last_value,
            keys,
            values,
            self.cross_last,
            self.cross_capacity,
            trained.heads,
        )
        self.written += written
        return trained.output(y.squeeze(1))  # type: ignore[no-any-return]


class StandardAttention:
    """Attention of one step as TensorScatter and Attention of opset 24, which any ONNX runtime may run.

    Args:
        positions, source_lengths: int32 [rows]
    """

    def __init__(self, positions: Tensor, source_lengths: Tensor) -> None:
        self.index, self.source_lengths = positions.long(), source_lengths.long()
        self.lengths = self.index + 1
        self.written: list[Tensor] = []
        self.query: Tensor | None = None  # of the source, last asked for: [rows, d_model]

    def to_target(self, trained: FusedSelfAttention, cache: Sequence[Tensor], bias: Tensor | None, y: Tensor) -> Tensor:
        """[rows, d_model] -> the same, over the target so far; bias: [rows, heads, 1, capacity]."""
        query, *new = _heads(trained.query_key_value(y), 3 * trained.heads).chunk(3, 1)
        keys, values = (tensor_scatter(old, part, self.index) for old, part in zip(cache[:2], new, strict=True))
        self.written += [keys, values]
        return self._attend(trained, query, keys, values, self.lengths, bias)

    def to_source(self, trained: FoldedCrossAttention, cache: Sequence[Tensor], y: Tensor) -> Tensor:
        """[rows, d_model] -> the same, over the source."""
        self.query = trained.query(y)
        query = _heads(self.query, trained.heads)
        return self._attend(trained, query, cache[2], cache[3], self.source_lengths)

    def _attend(
        self,
        trained: FoldedCrossAttention | FusedSelfAttention,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        lengths: Tensor,
        bias: Tensor | None = None,
    ) -> Tensor:
        y, _ = attention(query, keys, values, trained.heads, lengths, bias=bias)  # [rows, heads, 1, d_head]
        return trained.output(y.flatten(1))  # type: ignore[no-any-return]


def _heads(x: Tensor, heads: int) -> Tensor:
    """[rows, heads * d_head] -> [rows, heads, 1, d_head]."""
    return x.reshape(x.shape[0], heads, 1, -1)


class DecoderStep(nn.Module):
    """One step of the decoder.

    The hidden state is [rows, d_model] throughout, so that every projection is one Gemm with its bias.

    Args:
        model: a folded model.
        form: of the attentions.
    """

    def __init__(self, model: FoldedModel, form: Attention) -> None:
        super().__init__()
        self.decoder, self.layers = model.decoder, model.decoder_layers
        self.attention = OrtAttention if form == "ort" else StandardAttention

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        source_lengths: Tensor,
        rows: Tensor,
        scales: Tensor,
        k: Tensor,
        edit_ids: Tensor,
        edit_penalties: Tensor,
        edit_offsets: Tensor,
        short_list: Tensor,
        short_columns: Tensor,
        short_mask: Tensor,
        short_rows: Tensor,
        short_scales: Tensor,
        short_k: Tensor,
        short_edit_ids: Tensor,
        short_edit_penalties: Tensor,
        short_edit_offsets: Tensor,
        attention_rows: Tensor,
        *state: Tensor,
    ) -> list[Tensor]:
        """Decodes one token of each row.

        Args:
            token_ids: int64 [rows, 1]
            positions: int32 [rows], tokens already in the row's cache
            source_lengths: int32 [rows]
            rows, scales, k, edit_ids, edit_penalties, edit_offsets: of the rows that choose from the whole vocabulary,
                see Choice
            short_list, short_columns, short_mask: see ShortList
            short_rows, ...: of the rows that choose from a short list
            attention_rows: int64 [attended], rows of which to tell where they look in the source
            state: for GQA first the lengths of the self and cross caches, int32 scalars; then of each layer self keys,
                self values, cross keys, cross values, [rows, heads, capacity, d_head], and for GQA also last key and
                last value of the source [rows, 1, d_model].

        Returns:
            what `choose` gives for the whole vocabulary and for the short list, what `look` gives, then the caches that
            were written, in the order of the inputs.
        """
        capacities, caches = (state[:2], state[2:]) if self.attention is OrtAttention else ((), state)
        step = self.attention(positions, source_lengths, *capacities)
        x = self.decoder.embedding(token_ids.squeeze(1), positions)  # [rows, d_model]
        width = len(caches) // len(self.layers)
        # Of a row at a place of its own. Columns beyond it are never looked at.
        places = positions.long()[:, None], torch.arange(caches[0].shape[2])
        biases = [each(*places) for each in self.decoder.relative]  # [rows, heads, 1, self_capacity] each
        for i, layer in enumerate(self.layers):
            cache = caches[i * width : (i + 1) * width]
            fused = cast(FusedSelfAttention, layer.self_attention)
            bias = biases[i % len(biases)] if biases else None
            x = layer.residuals[0](x, partial(step.to_target, fused, cache, bias))
            crossed = cast(FoldedCrossAttention, layer.cross_attention)
            x = layer.residuals[1](x, partial(step.to_source, crossed, cache))
            x = layer.residuals[2](x, layer.feed_forward)
        x = self.decoder.norm(x)
        assert step.query is not None
        projection, bias = self.decoder.projection.weight, self.decoder.logit_bias
        whole = Choice(rows, scales, k, edit_ids, edit_penalties, edit_offsets)
        short = Choice(short_rows, short_scales, short_k, short_edit_ids, short_edit_penalties, short_edit_offsets)
        return [
            *choose(x, projection, bias, whole),
            *choose(x, projection, bias, short, ShortList(short_list, short_columns, short_mask)),
            look(step.query, cache[2], source_lengths, attention_rows),
            *step.written,
        ]
