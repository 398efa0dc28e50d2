"""The scorer graph: how likely given targets are, and where each token looks in the source."""

import torch
from torch import Tensor, nn

from training.model import Transformer


class Scorer(nn.Module):
    """Teacher-forced pass over sources and targets.

    Args:
        model: a folded model.
        end: id of the token that closes a target.
    """

    def __init__(self, model: Transformer, end: int) -> None:
        super().__init__()
        self.encoder, self.decoder = model.encoder, model.decoder
        self.end = end

    def forward(
        self, source_ids: Tensor, source_lengths: Tensor, target_ids: Tensor, target_lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Scores a padded batch.

        Args:
            source_ids: int64 [rows, source]
            source_lengths: int32 [rows]
            target_ids: int64 [rows, target], starting with the begin token, without the end token
            target_lengths: int32 [rows], the begin token counted

        Returns:
            log-probabilities float32 [rows, target]: entry j is of the token at j + 1 given those up to j, and entry
            length - 1 of the end token; 0 beyond.
            cross-attention weights float32 [rows, layers, heads, target, source].
        """
        lengths = source_lengths.long()
        packed, packing = self.encoder(source_ids, source_lengths)
        memory = packing.pad(packed)  # [rows, source, d_model]
        places = torch.arange(source_ids.shape[1])
        mask = (places < lengths[:, None])[:, None, None, :]  # [rows, 1, 1, source]
        logits, weights = self.decoder(target_ids, memory, mask, return_weights=True)
        places = torch.arange(target_ids.shape[1])
        last = target_lengths.long()[:, None] - 1
        following = nn.functional.pad(target_ids[:, 1:], (0, 1))
        labels = torch.where(places == last, self.end, following)
        scores = logits.float().log_softmax(-1).gather(-1, labels[..., None])[..., 0]
        return scores.masked_fill(places > last, 0.0), torch.stack(weights, 1).float()
