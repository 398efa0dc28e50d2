"""PyTorch's own nn.Transformer, with what it leaves to its users: embeddings, positions, an output layer."""

import math

import torch
from torch import Tensor, nn

from dragoman_training.model import ModelConfig
from dragoman_training.model.positions import sinusoids


class TorchTransformer(nn.Module):
    """An nn.Transformer of a given shape, its output layer tied to the target embedding.

    nn.Transformer applies more dropout than the paper: to attention weights and the feed-forward's hidden layer. It is
    disabled there, so that all trainers do the same work.
    """

    def __init__(self, config: ModelConfig, source_vocabulary: int, target_vocabulary: int) -> None:
        super().__init__()
        self.scale = math.sqrt(config.d_model)
        self.source = nn.Embedding(source_vocabulary, config.d_model)
        self.target = nn.Embedding(target_vocabulary, config.d_model)
        for embedding in (self.source, self.target):
            nn.init.normal_(embedding.weight, std=config.d_model**-0.5)
        self.positions: Tensor
        longest = max(config.max_source_length, config.max_target_length + 1)
        self.register_buffer("positions", sinusoids(longest, config.d_model), persistent=False)
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = nn.Transformer(
            config.d_model,
            config.heads,
            config.encoder_layers,
            config.decoder_layers,
            config.d_ff,
            config.dropout,
            config.activation,
            batch_first=True,
            norm_first=config.norm == "pre",
        )
        for module in self.transformer.modules():
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout = nn.Dropout(0)
            elif isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        self.projection = nn.Linear(config.d_model, target_vocabulary, bias=False)
        self.projection.weight = self.target.weight

    def forward(self, source: Tensor, target: Tensor, padding: Tensor) -> Tensor:
        """Source [batch, source], target [batch, target], padding bool [batch, source] -> logits."""
        causal = torch.ones(target.size(1), target.size(1), dtype=torch.bool).triu(1)
        hidden = self.transformer(
            self._embed(self.source, source),
            self._embed(self.target, target),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return self.projection(hidden)  # type: ignore[no-any-return]

    def _embed(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        return self.dropout(table(ids) * self.scale + self.positions[: ids.size(1)])  # type: ignore[no-any-return]
