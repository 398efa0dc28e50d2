"""The encoder graph: a source once in, what decoding needs of it out."""

from torch import Tensor, nn

from dragoman_export.graphs.folding import FoldedModel


class SourceEncoder(nn.Module):
    """Encodes sources and projects them for every decoder layer's cross-attention.

    Args:
        model: a folded model.
        last: also give keys and values of each row's last position, which GroupQueryAttention wants (see the decoder).
    """

    def __init__(self, model: FoldedModel, *, last: bool) -> None:
        super().__init__()
        self.encoder, self.memory = model.encoder, model.memory
        self.planes, self.heads = 2 * len(model.decoder_layers), model.heads
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
        projected = self.memory(memory)  # [tokens, planes * d_model]
        heads = packing.pad(projected).unflatten(-1, (self.planes * self.heads, -1)).transpose(1, 2)
        planes = heads.chunk(self.planes, 1)  # [rows, heads, source, d_head] each
        if not self.last:
            return list(planes)
        last = packing.last(projected).chunk(self.planes, -1)  # [rows, 1, d_model] each
        return [each for i in range(0, self.planes, 2) for each in (*planes[i : i + 2], *last[i : i + 2])]
