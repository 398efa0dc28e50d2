"""The encoder graph: a source once in, what decoding needs of it out."""

from collections.abc import Iterable
from typing import cast

from torch import Tensor, nn

from training.model import Transformer
from training.model.attention import MultiHeadAttention
from training.model.layers import DecoderLayer


class SourceEncoder(nn.Module):
    """Encodes sources and projects them for every decoder layer's cross-attention.

    Args:
        model: a folded model.
        last: also give keys and values of each row's last position, which GroupQueryAttention wants (see the decoder).
    """

    def __init__(self, model: Transformer, *, last: bool) -> None:
        super().__init__()
        self.encoder = model.encoder
        self.attentions = nn.ModuleList(
            layer.cross_attention for layer in cast(Iterable[DecoderLayer], model.decoder.layers)
        )
        self.last = last

    def forward(self, source_ids: Tensor, source_lengths: Tensor) -> list[Tensor]:
        """Encodes a padded batch.

        Args:
            source_ids: int64 [rows, source]
            source_lengths: int32 [rows], each at least 1

        Returns:
            for each decoder layer keys and values [rows, heads, source, d_head], and, if asked for, those of each row's
            last position [rows, 1, d_model].
        """
        memory, packing = self.encoder(source_ids, source_lengths)  # [tokens, d_model]
        outputs: list[Tensor] = []
        for attention in cast(Iterable[MultiHeadAttention], self.attentions):
            projected = attention.key_value(memory)  # [tokens, 2 * d_model]
            outputs += [attention.split_heads(part) for part in packing.pad(projected).chunk(2, -1)]
            if self.last:
                outputs += packing.last(projected).chunk(2, -1)
        return outputs
