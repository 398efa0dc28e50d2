"""The decoder graph: one token for each row of a batch, each at its own position, over caches updated in place."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from dragoman_export.graphs.folding import FoldedCrossAttention, FoldedModel, FusedSelfAttention
from dragoman_export.graphs.head import HeadInputs, KeptWeights, Shortlist, mean_attention, top_tokens
from dragoman_export.graphs.operators import attention, group_query_attention, tensor_scatter
from dragoman_server.bundle.manifest import Attention


class StepInputs(NamedTuple):
    """The inputs of the decoder graph, grouped. `graphs.interface.decoder_interface` lists them in the same order.

    Attributes:
        token_ids: Last token of each row, int64 [rows, 1].
        positions: Number of tokens already in each row's cache, int32 [rows].
        source_lengths: int32 [rows].
        whole: Requests of the rows that choose from the whole vocabulary.
        shortlist: Tokens of the rows with a shortlist.
        short: Requests of the rows with a shortlist.
        kept: Weights of the shortlist's tokens; None if steps keep none.
        attention_rows: Rows whose attention to the source is an output, int64 [attended].
        capacities: Lengths of the self and cross caches, int32 scalars; empty in the standard form.
        layers: For each layer self keys, self values, cross keys, cross values [rows, heads, capacity, d_head]. With
            GroupQueryAttention also the key and value of the last source position [rows, 1, d_model].
    """

    token_ids: Tensor
    positions: Tensor
    source_lengths: Tensor
    whole: HeadInputs
    shortlist: Shortlist
    short: HeadInputs
    kept: KeptWeights | None
    attention_rows: Tensor
    capacities: tuple[Tensor, ...]
    layers: list[tuple[Tensor, ...]]

    @classmethod
    def group(cls, inputs: Sequence[Tensor], layers: int, form: Attention, *, keeps: bool) -> "StepInputs":
        """Groups the flat inputs that torch.export passes.

        Args:
            inputs: The inputs in order.
            layers: Number of decoder layers.
            form: Form of the attention operators.
            keeps: Whether steps keep the weights of shortlists.
        """
        rest = iter(inputs)

        def take(count: int) -> tuple[Tensor, ...]:
            return tuple(next(rest) for _ in range(count))

        token_ids, positions, source_lengths = take(3)
        whole, shortlist, short = HeadInputs(*take(6)), Shortlist(*take(3)), HeadInputs(*take(6))
        kept = KeptWeights(*take(3)) if keeps else None
        [attention_rows] = take(1)
        capacities, width = (take(2), 6) if form == "ort" else ((), 4)
        caches = [take(width) for _ in range(layers)]
        assert next(rest, None) is None
        return cls(
            token_ids, positions, source_lengths, whole, shortlist, short, kept, attention_rows, capacities, caches
        )


class OrtAttention:
    """Attention of one step as GroupQueryAttention, which reads only the valid part of a cache.

    The operator always writes a key and a value first. For cross-attention these are the ones of the last source
    position, written to where they already are.
    """

    def __init__(self, inputs: StepInputs) -> None:
        self.self_last, self.cross_last = inputs.positions, inputs.source_lengths - 1
        self.self_capacity, self.cross_capacity = inputs.capacities
        self.written: list[Tensor] = []
        self.query: Tensor | None = None  # the last layer's query of the source [rows, d_model]

    def to_target(self, trained: FusedSelfAttention, cache: Sequence[Tensor], bias: Tensor | None, y: Tensor) -> Tensor:
        """Attends to the target so far: [rows, d_model] -> the same; bias [rows, heads, 1, self_capacity]."""
        packed = trained.query_key_value(y).unsqueeze(1)
        y, *written = group_query_attention(
            packed, None, None, cache[0], cache[1], self.self_last, self.self_capacity, trained.heads, bias
        )
        self.written += written
        return trained.output(y.squeeze(1))  # type: ignore[no-any-return]

    def to_source(self, trained: FoldedCrossAttention, cache: Sequence[Tensor], y: Tensor) -> Tensor:
        """Attends to the source: [rows, d_model] -> the same."""
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
    """Attention of one step as TensorScatter and Attention of opset 24, which any ONNX runtime may run."""

    def __init__(self, inputs: StepInputs) -> None:
        self.index, self.source_lengths = inputs.positions.long(), inputs.source_lengths.long()
        self.lengths = self.index + 1
        self.written: list[Tensor] = []
        self.query: Tensor | None = None  # the last layer's query of the source [rows, d_model]

    def to_target(self, trained: FusedSelfAttention, cache: Sequence[Tensor], bias: Tensor | None, y: Tensor) -> Tensor:
        """Attends to the target so far: [rows, d_model] -> the same; bias [rows, heads, 1, capacity]."""
        query, *new = _heads(trained.query_key_value(y), 3 * trained.heads).chunk(3, 1)
        keys, values = (tensor_scatter(old, part, self.index) for old, part in zip(cache[:2], new, strict=True))
        self.written += [keys, values]
        return self._attend(trained, query, keys, values, self.lengths, bias)

    def to_source(self, trained: FoldedCrossAttention, cache: Sequence[Tensor], y: Tensor) -> Tensor:
        """Attends to the source: [rows, d_model] -> the same."""
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

    The hidden state is [rows, d_model] throughout, so every projection is one Gemm with its bias.

    Args:
        model: The folded model.
        form: Form of the attention operators.
        keeps: Whether steps keep the weights of shortlists.
    """

    def __init__(self, model: FoldedModel, form: Attention, *, keeps: bool = True) -> None:
        super().__init__()
        self.keeps = keeps
        self.decoder, self.layers = model.decoder, model.decoder_layers
        self.form = form
        bias = self.decoder.logit_bias
        self.graded_bias = bias is not None and bool((bias.isfinite() & (bias != 0)).any())

    def forward(self, *flat_inputs: Tensor) -> list[Tensor]:
        """Decodes one token of each row.

        Args:
            flat_inputs: The inputs of `decoder_interface`, see `StepInputs`.

        Returns:
            The outputs of `top_tokens` for the whole vocabulary and for shortlists, the attention to the source, then
            the updated caches in the order of the inputs.
        """
        inputs = StepInputs.group(flat_inputs, len(self.layers), self.form, keeps=self.keeps)
        step = OrtAttention(inputs) if self.form == "ort" else StandardAttention(inputs)
        x = self.decoder.embedding(inputs.token_ids.squeeze(1), inputs.positions)  # [rows, d_model]
        # Each row has its own position. Nothing attends to columns beyond it.
        places = inputs.positions.long()[:, None], torch.arange(inputs.layers[0][0].shape[2])
        biases = [relative(*places) for relative in self.decoder.relative]  # [rows, heads, 1, self_capacity] each
        for i, (layer, cache) in enumerate(zip(self.layers, inputs.layers, strict=True)):
            self_attention = cast(FusedSelfAttention, layer.self_attention)
            cross_attention = cast(FoldedCrossAttention, layer.cross_attention)
            bias = biases[i % len(biases)] if biases else None
            x = layer.residuals[0](x, partial(step.to_target, self_attention, cache, bias))
            x = layer.residuals[1](x, partial(step.to_source, cross_attention, cache))
            x = layer.residuals[2](x, layer.feed_forward)
        x = self.decoder.norm(x)
        assert step.query is not None
        projection, logit_bias = self.decoder.projection.weight, self.decoder.logit_bias
        cross_keys = inputs.layers[-1][2]
        return [
            *top_tokens(x, projection, logit_bias, inputs.whole, graded=self.graded_bias),
            *top_tokens(
                x, projection, logit_bias, inputs.short, inputs.shortlist, inputs.kept, graded=self.graded_bias
            ),
            mean_attention(step.query, cross_keys, inputs.source_lengths, inputs.attention_rows),
            *step.written,
        ]
