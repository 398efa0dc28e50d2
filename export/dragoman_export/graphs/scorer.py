"""The scorer graph: teacher-forced log-probabilities and cross-attention of given targets."""

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman_export.graphs.folding import FoldedCrossAttention, FoldedModel, FusedSelfAttention
from dragoman_export.graphs.operators import attention
from dragoman_export.graphs.packing import Packing, Unpacked


class Scorer(nn.Module):
    """Teacher-forced pass over sources and targets.

    Args:
        model: The folded model.
        end: Id of the end token.
    """

    def __init__(self, model: FoldedModel, end: int) -> None:
        super().__init__()
        self.encoder, self.memory, self.decoder = model.encoder, model.memory, model.decoder
        self.layers = model.decoder_layers
        self.end = end

    def forward(
        self, source_ids: Tensor, source_lengths: Tensor, target_ids: Tensor, target_lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Scores a padded batch.

        Args:
            source_ids: int64 [rows, source].
            source_lengths: int32 [rows].
            target_ids: int64 [rows, target], with the begin token and without the end token.
            target_lengths: int32 [rows], the begin token included.

        Returns:
            Log-probabilities float32 [rows, target]: entry j is that of token j + 1 after those up to j, and entry
            length - 1 that of the end token; 0 beyond.
            Cross-attention weights float32 [rows, layers, heads, target, source].
        """
        memory, sources = self.encoder(source_ids, source_lengths)
        planes = sources.pad_parts(self.memory(memory), 2 * len(self.layers))  # [rows, source, d_model] each
        targets, places = Unpacked(target_lengths.long()), torch.arange(target_ids.shape[1])
        x = targets.pack(self.decoder.embedding(target_ids, places))  # [rows * target, d_model]
        biases = [relative(places[None], places) for relative in self.decoder.relative]  # [1, heads, target, target]
        attention_scores: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            own = cast(FusedSelfAttention, layer.self_attention)
            cross = cast(FoldedCrossAttention, layer.cross_attention)
            cache = planes[2 * i : 2 * i + 2]
            bias = biases[i % len(biases)] if biases else None
            x = layer.residuals[0](x, partial(_to_target, own, targets, bias))
            x = layer.residuals[1](x, partial(_to_source, cross, targets, cache, sources, attention_scores))
            x = layer.residuals[2](x, layer.feed_forward)
        logits = functional.linear(self.decoder.norm(x), self.decoder.projection.weight, self.decoder.logit_bias)
        last = targets.lengths[:, None] - 1
        labels = torch.where(places == last, self.end, functional.pad(target_ids[:, 1:], (0, 1)))
        scores = targets.pad(logits.float().log_softmax(-1)).gather(2, labels[..., None])[..., 0]
        # All positions are selected. Without this, ONNX infers 0 for the last dimension, and ONNX Runtime warns on
        # every run.
        positions = torch.arange(source_ids.shape[1])
        stacked = torch.stack(attention_scores, 1).index_select(-1, positions).float()
        weights = stacked.masked_fill(positions >= sources.lengths.reshape(-1, 1, 1, 1, 1), -torch.inf).softmax(-1)
        return scores.masked_fill(places > last, 0.0), weights


def _to_target(trained: FusedSelfAttention, targets: Unpacked, bias: Tensor | None, y: Tensor) -> Tensor:
    """Attends to the target so far: [rows * target, d_model] -> the same."""
    return trained(y, targets, bias=bias, causal=True)[0]  # type: ignore[no-any-return]


def _to_source(
    trained: FoldedCrossAttention,
    targets: Unpacked,
    cache: Sequence[Tensor],
    sources: Packing,
    attention_scores: list[Tensor],
    y: Tensor,
) -> Tensor:
    """Attends to the source: [rows * target, d_model] -> the same.

    Appends the scores [rows, heads, target, source] to `attention_scores`.
    """
    query = targets.pad(trained.query(y))
    keys, values = cache
    attended, scores = attention(query, keys, values, trained.heads, sources.lengths)
    attention_scores.append(scores)
    return trained.output(targets.pack(attended))  # type: ignore[no-any-return]
