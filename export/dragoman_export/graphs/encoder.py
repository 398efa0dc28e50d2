"""The encoder graph: encodes sources and projects them to the keys and values that decoding attends to."""

from torch import Tensor, nn

from dragoman_export.graphs.folding import FoldedModel


class SourceEncoder(nn.Module):
    """Encodes sources and projects them for the cross-attention of every decoder layer.

    Args:
        model: The folded model.
        last: Whether to also return key and value of each row's last position, which GroupQueryAttention needs (see the
            decoder graph).
    """

    def __init__(self, model: FoldedModel, *, last: bool) -> None:
        super().__init__()
        self.encoder, self.memory = model.encoder, model.memory
        self.planes, self.heads = 2 * len(model.decoder_layers), model.heads
        self.last = last

    def forward(self, source_ids: Tensor, source_lengths: Tensor) -> list[Tensor]:
        """Encodes a padded batch.

        Args:
            source_ids: int64 [rows, source].
            source_lengths: int32 [rows], each at least 1.

        Returns:
            For each decoder layer keys and values [rows, heads, source, d_head], and with `last` those of each row's
            last position [rows, 1, d_model].
        """
        memory, packing = self.encoder(source_ids, source_lengths)  # [tokens, d_model]
        projected = self.memory(memory)  # [tokens, planes * d_model]
        # [rows, heads, source, d_head] each
        planes: list[Tensor] = packing.pad_heads(projected, self.planes, self.heads)
        if not self.last:
            return planes
        last = packing.last(projected).chunk(self.planes, -1)  # [rows, 1, d_model] each
        return [plane for i in range(0, self.planes, 2) for plane in (*planes[i : i + 2], *last[i : i + 2])]
