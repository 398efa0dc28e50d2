"""The encoder-decoder Transformer ("Attention Is All You Need", Vaswani et al. 2017), assembled from its parts."""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from training.model.feed_forward import Activation
from training.model.layers import DecoderLayer, EncoderLayer, Norm
from training.model.positions import Embedding, Positions

SharedEmbeddings = Literal["none", "output", "all"]


class ModelConfig(BaseModel):
    """The shape of a model; with the two vocabulary sizes it determines every parameter's shape."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    d_model: int = Field(ge=8)
    heads: int = Field(ge=1)
    d_ff: int = Field(ge=1)
    encoder_layers: int = Field(ge=1)
    decoder_layers: int = Field(ge=1)
    activation: Activation = "relu"
    norm: Norm = "post"
    positions: Positions = "sinusoidal"
    share_embeddings: SharedEmbeddings = "output"
    dropout: float = Field(default=0.1, ge=0, lt=1)
    max_source_length: int = Field(ge=1)
    max_target_length: int = Field(ge=1)

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "ModelConfig":
        if self.d_model % self.heads:
            raise ValueError(f"d_model ({self.d_model}) must be divisible by heads ({self.heads})")
        if self.d_model % 2:
            raise ValueError(f"d_model ({self.d_model}) must be even")
        return self


class Encoder(nn.Module):
    """A stack of encoder layers over the embedded source."""

    def __init__(self, config: ModelConfig, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(
            EncoderLayer(config.d_model, config.heads, config.d_ff, config.activation, config.dropout, config.norm)
            for _ in range(config.encoder_layers)
        )
        self.norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()

    def forward(self, source: Tensor, mask: Tensor | None) -> Tensor:
        """Args: source ids [batch, source]; mask [batch, 1, 1, source]. Returns [batch, source, d_model]."""
        x = self.embedding(source)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """A stack of decoder layers over the embedded target, and the projection to the vocabulary."""

    def __init__(self, config: ModelConfig, embedding: Embedding, vocabulary: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(
            DecoderLayer(config.d_model, config.heads, config.d_ff, config.activation, config.dropout, config.norm)
            for _ in range(config.decoder_layers)
        )
        self.norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()
        self.projection = nn.Linear(config.d_model, vocabulary, bias=False)
        self.forbidden: Tensor | None
        self.register_buffer("forbidden", None, persistent=False)

    def forbid(self, ids: Sequence[int]) -> None:
        """Gives these tokens no probability from now on, since no target has them; for a model that is trained."""
        self.forbidden = torch.zeros_like(self.projection.weight[:, 0])
        self.forbidden[list(ids)] = -torch.inf

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
        return logits if self.forbidden is None else logits + self.forbidden, weights

    def hidden(
        self, target: Tensor, memory: Tensor, memory_mask: Tensor | None, *, return_weights: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """As `forward`, with what the projection makes logits of, [batch, target, d_model]."""
        x = self.embedding(target)
        weights = []
        for layer in self.layers:
            x, layer_weights = layer(x, memory, memory_mask, return_weights=return_weights)
            if layer_weights is not None:
                weights.append(layer_weights)
        return self.norm(x), weights


class Transformer(nn.Module):
    """Encoder and decoder with their embeddings.

    Args:
        config: the shape.
        source_vocabulary, target_vocabulary: sizes; equal where `share_embeddings` is "all" (a joint vocabulary).
        pad: id of the padding token in the source.

    Raises:
        ValueError: embeddings are to be shared by vocabularies of different size.
    """

    def __init__(self, config: ModelConfig, source_vocabulary: int, target_vocabulary: int, pad: int) -> None:
        super().__init__()
        if config.share_embeddings == "all" and source_vocabulary != target_vocabulary:
            raise ValueError(
                "share_embeddings: all needs one joint vocabulary, "
                f"but source has {source_vocabulary} tokens and target {target_vocabulary}"
            )
        self.config = config
        self.pad = pad
        source_tokens = nn.Embedding(source_vocabulary, config.d_model)
        shared = config.share_embeddings == "all"
        target_tokens = source_tokens if shared else nn.Embedding(target_vocabulary, config.d_model)
        self.encoder = Encoder(
            config, Embedding(source_tokens, config.positions, config.max_source_length, config.dropout)
        )
        # One more position than target tokens: the decoder's input starts with the begin token.
        self.decoder = Decoder(
            config,
            Embedding(target_tokens, config.positions, config.max_target_length + 1, config.dropout),
            target_vocabulary,
        )
        if config.share_embeddings != "none":
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
