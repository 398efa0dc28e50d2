"""The encoder-decoder Transformer ("Attention Is All You Need", Vaswani et al. 2017), assembled from its parts."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dragoman_training.model.config import ModelConfig
from dragoman_training.model.layers import DecoderLayer, EncoderLayer, build_norm
from dragoman_training.model.positions import Embedding, RelativePositions


class RelativeBias(nn.ModuleList):
    """The relative positions of a stack: none, one table for all layers, or one for each layer."""

    def __init__(self, config: ModelConfig, layers: int, heads: int, *, both_ways: bool) -> None:
        tables = {"relative": 1, "relative_per_layer": layers}.get(config.positions, 0)
        super().__init__(
            RelativePositions(heads, config.relative_buckets, config.relative_max_distance, both_ways=both_ways)
            for _ in range(tables)
        )

    def of_layers(self, layers: int, length: int) -> list[Tensor | None]:
        """What each layer adds to the scores of its self-attention, [heads, length, length]."""
        if not len(self):
            return [None] * layers
        found = [each(length, length) for each in self]
        return found if len(found) == layers else found * layers


class Encoder(nn.Module):
    """A stack of encoder layers over the embedded source."""

    def __init__(self, config: ModelConfig, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(EncoderLayer(config.encoder_layer) for _ in range(config.encoder_layers))
        self.relative = RelativeBias(config, config.encoder_layers, config.heads, both_ways=True)
        self.norm = _last_norm(config)

    def forward(self, source: Tensor, mask: Tensor | None) -> Tensor:
        """Args: source ids [batch, source]; mask [batch, 1, 1, source]. Returns [batch, source, d_model]."""
        x = self.embedding(source)
        for layer, bias in zip(self.layers, self.relative.of_layers(len(self.layers), source.size(1)), strict=True):
            x = layer(x, mask, bias)
        return self.norm(x)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """A stack of decoder layers over the embedded target, and the projection to the vocabulary."""

    def __init__(self, config: ModelConfig, embedding: Embedding, vocabulary: int) -> None:
        super().__init__()
        self.embedding = embedding
        shape = config.decoder_layer
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(config.decoder_layers))
        self.relative = RelativeBias(config, config.decoder_layers, shape.heads, both_ways=False)
        self.norm = _last_norm(config)
        self.output_scale = config.d_model**-0.5 if config.output_scale else 1.0
        self.projection = nn.Linear(config.d_model, vocabulary, bias=False)
        self.logit_bias: Tensor | None
        self.register_buffer("logit_bias", None, persistent=False)

    def forbid(self, ids: Sequence[int]) -> None:
        """Gives these tokens no probability from now on, since no target has them; for a model that is trained."""
        if self.logit_bias is None:
            self.logit_bias = torch.zeros_like(self.projection.weight[:, 0])
        self.logit_bias[list(ids)] = -torch.inf

    def forward(
        self, target: Tensor, memory: Tensor, memory_mask: Tensor | None, *, return_weights: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Teacher-forced pass.

        Args:
            target: decoder input ids [batch, target], starting with the begin token
            memory: [batch, source, d_model]
            memory_mask: [batch, 1, 1, source]

        Returns:
            logits [batch, target, vocabulary], and each layer's cross-attention weights
            [batch, heads, target, source] (an empty list unless asked for).
        """
        x, weights = self.hidden(target, memory, memory_mask, return_weights=return_weights)
        logits = self.projection(x)
        return logits if self.logit_bias is None else logits + self.logit_bias, weights

    def hidden(
        self, target: Tensor, memory: Tensor, memory_mask: Tensor | None, *, return_weights: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """As `forward`, with what the projection makes logits of, [batch, target, d_model]."""
        x = self.embedding(target)
        weights = []
        for layer, bias in zip(self.layers, self.relative.of_layers(len(self.layers), target.size(1)), strict=True):
            x, layer_weights = layer(x, memory, memory_mask, bias, return_weights=return_weights)
            if layer_weights is not None:
                weights.append(layer_weights)
        x = self.norm(x)
        return x if self.output_scale == 1 else x * self.output_scale, weights


class Transformer(nn.Module):
    """Encoder and decoder with their embeddings.

    Args:
        config: the shape.
        source_vocabulary, target_vocabulary: sizes; equal where the vocabulary is joint (`share_embeddings`).
        pad: id of the padding token in the source.

    Raises:
        ValueError: embeddings are to be shared by vocabularies of different size.
    """

    def __init__(self, config: ModelConfig, source_vocabulary: int, target_vocabulary: int, pad: int) -> None:
        super().__init__()
        joint = config.share_embeddings in ("inputs", "all")
        if joint and source_vocabulary != target_vocabulary:
            raise ValueError(
                f"share_embeddings: {config.share_embeddings} needs one joint vocabulary, "
                f"but source has {source_vocabulary} tokens and target {target_vocabulary}"
            )
        self.config = config
        self.pad = pad
        source_tokens = nn.Embedding(source_vocabulary, config.d_model)
        target_tokens = source_tokens if joint else nn.Embedding(target_vocabulary, config.d_model)
        self.encoder = Encoder(config, _embedding(config, source_tokens, config.max_source_length))
        # One more position than target tokens: the decoder's input starts with the begin token.
        embedding = _embedding(config, target_tokens, config.max_target_length + 1, decoder=True)
        self.decoder = Decoder(config, embedding, target_vocabulary)
        if config.share_embeddings in ("output", "all"):
            self.decoder.projection.weight = target_tokens.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier uniform for matrices; embeddings N(0, 1/d_model), so that they have unit variance after scaling."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.d_model**-0.5)

    def source_mask(self, source: Tensor) -> Tensor:
        """[batch, source] -> bool [batch, 1, 1, source], True where the source is not padding."""
        return (source != self.pad)[:, None, None, :]

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Args: source ids [batch, source]. Returns memory [batch, source, d_model] and its mask."""
        mask = self.source_mask(source)
        return self.encoder(source, mask), mask

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Source ids [batch, source], decoder input ids [batch, target] -> logits [batch, target, vocabulary]."""
        memory, mask = self.encode(source)
        return self.decoder(target, memory, mask)[0]  # type: ignore[no-any-return]

    def hidden(self, source: Tensor, target: Tensor) -> Tensor:
        """As `forward`, with what the projection makes logits of, [batch, target, d_model]."""
        mask = self.source_mask(source)
        needed = None if mask.all() else mask
        return self.decoder.hidden(target, self.encoder(source, needed), needed)[0]

    @torch.no_grad()
    def attention(self, source: Tensor, target: Tensor) -> list[Tensor]:
        """Cross-attention weights of each decoder layer, [batch, heads, target, source]."""
        memory, mask = self.encode(source)
        return self.decoder(target, memory, mask, return_weights=True)[1]  # type: ignore[no-any-return]


def _last_norm(config: ModelConfig) -> nn.Module:
    """The norm behind a stack; with `post` the last layer has ended with one already."""
    return build_norm(config.d_model, config.norm_kind, config.norm_epsilon) if config.norm == "pre" else nn.Identity()


def _embedding(config: ModelConfig, tokens: nn.Embedding, max_length: int, *, decoder: bool = False) -> Embedding:
    own = config.decoder_embedding_norm if decoder else None
    return Embedding(
        tokens,
        config.positions,
        max_length,
        config.dropout,
        scale=math.sqrt(config.d_model) if config.embedding_scale else 1.0,
        norm=own or config.embedding_norm,
        norm_epsilon=config.norm_epsilon,
    )
