"""The encoder-decoder Transformer ("Attention Is All You Need", Vaswani et al. 2017), assembled from its parts."""

import math
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from dragoman_training.model.cache import DecoderState, LayerCache
from dragoman_training.model.config import ModelConfig
from dragoman_training.model.layers import DecoderLayer, EncoderLayer, build_norm
from dragoman_training.model.linear import Linear
from dragoman_training.model.positions import Embedding, RelativePositions


class RelativeBias(nn.ModuleList):
    """The relative positions of a stack: none, one table for all layers, or one per layer."""

    def __init__(self, config: ModelConfig, layers: int, heads: int, *, bidirectional: bool) -> None:
        tables = {"relative": 1, "relative_per_layer": layers}.get(config.positions, 0)
        super().__init__(
            RelativePositions(heads, config.relative_buckets, config.relative_max_distance, bidirectional=bidirectional)
            for _ in range(tables)
        )

    def per_layer(self, layers: int, length: int) -> list[Tensor | None]:
        """Returns the addend of each layer's self-attention scores [heads, length, length], None without tables."""
        if not len(self):
            return [None] * layers
        biases = [table(length, length) for table in self]  # [heads, length, length] each
        return biases if len(biases) == layers else biases * layers

    def last_query(self, layers: int, length: int) -> list[Tensor | None]:
        """Returns the addend of each layer's scores of the last position [heads, 1, length], None without tables."""
        if not len(self):
            return [None] * layers
        biases: list[Tensor | None] = [cast(RelativePositions, table).last_query(length) for table in self]
        return biases if len(biases) == layers else biases * layers


class Encoder(nn.Module):
    """The embedding of the source and a stack of encoder layers."""

    def __init__(self, config: ModelConfig, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(EncoderLayer(config.encoder_layer) for _ in range(config.encoder_layers))
        self.relative = RelativeBias(config, config.encoder_layers, config.heads, bidirectional=True)
        self.norm = _final_norm(config)

    def forward(self, source: Tensor, mask: Tensor | None) -> Tensor:
        """Encodes sources.

        Args:
            source: Token ids [batch, source].
            mask: Bool [batch, 1, 1, source], False at padding; None if there is no padding.

        Returns:
            The memory [batch, source, d_model].
        """
        x = self.embedding(source)  # [batch, source, d_model]
        for layer, bias in zip(self.layers, self.relative.per_layer(len(self.layers), source.size(1)), strict=True):
            x = layer(x, mask, bias)
        return self.norm(x)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """The embedding of the target, a stack of decoder layers, and the output layer."""

    def __init__(self, config: ModelConfig, embedding: Embedding, vocabulary: int) -> None:
        super().__init__()
        self.embedding = embedding
        layer = config.decoder_layer
        self.layers = nn.ModuleList(DecoderLayer(layer) for _ in range(config.decoder_layers))
        self.relative = RelativeBias(config, config.decoder_layers, layer.heads, bidirectional=False)
        self.norm = _final_norm(config)
        self.output_scale = config.d_model**-0.5 if config.output_scale else 1.0
        self.projection = Linear(config.d_model, vocabulary, bias=False)
        self.output_bias = nn.Parameter(torch.zeros(vocabulary)) if config.output_bias else None
        # Of a model that is no longer trained: the output layer's, if any, and minus infinity for forbidden tokens.
        self.logit_bias: Tensor | None  # [vocabulary]
        self.register_buffer("logit_bias", None, persistent=False)

    def forbid(self, ids: Sequence[int]) -> None:
        """Sets the probability of these tokens to zero from now on; for a trained model whose targets lack them."""
        if self.logit_bias is None:
            bias = self.projection.weight[:, 0] * 0 if self.output_bias is None else self.output_bias
            self.logit_bias = bias.detach().clone()
        self.logit_bias[list(ids)] = -torch.inf

    def forward(
        self, target: Tensor, memory: Tensor, memory_mask: Tensor | None, *, return_weights: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Computes the logits of given targets (teacher forcing).

        Args:
            target: Decoder input ids [batch, target], starting with the begin token.
            memory: Encoder output [batch, source, d_model].
            memory_mask: Bool [batch, 1, 1, source], False at source padding.

        Returns:
            The logits [batch, target, vocabulary], and each layer's cross-attention weights
            [batch, heads, target, source] (an empty list without `return_weights`).
        """
        x, weights = self.hidden(target, memory, memory_mask, return_weights=return_weights)
        return self.logits(x), weights  # [batch, target, vocabulary]

    def hidden(
        self, target: Tensor, memory: Tensor, memory_mask: Tensor | None, *, return_weights: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Computes the input of the output layer [batch, target, d_model]; arguments and weights as in `forward`."""
        x = self.embedding(target)  # [batch, target, d_model]
        weights = []
        for layer, bias in zip(self.layers, self.relative.per_layer(len(self.layers), target.size(1)), strict=True):
            x, layer_weights = layer(x, memory, memory_mask, bias, return_weights=return_weights)
            if layer_weights is not None:
                weights.append(layer_weights)  # [batch, heads, target, source]
        return self._scaled(self.norm(x)), weights  # [batch, target, d_model]

    def begin(self, memory: Tensor, memory_mask: Tensor | None, rows_per_source: int = 1) -> DecoderState:
        """Computes the keys and values of the memory, for decoding step by step.

        Args:
            memory: Encoder output [sources, source, d_model].
            memory_mask: Bool [sources, 1, 1, source], False at source padding; None if there is no padding.
            rows_per_source: Number of targets that are decoded for each source.

        Returns:
            The state before the first step.
        """
        layers = cast(Iterable[DecoderLayer], self.layers)
        projected = (layer.cross_attention.project_memory(memory) for layer in layers)
        return DecoderState((LayerCache(pair, rows_per_source) for pair in projected), memory_mask)

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Computes the input of the output layer for the next position of each row, as `hidden` does for all of them.

        Args:
            tokens: Decoder input ids at this position [rows]: the begin token first, then what was chosen.
            state: State after the position before; it advances.

        Returns:
            The last row of `hidden` [rows, d_model].
        """
        position = state.position
        positions = tokens.new_tensor([[position]])  # [1, 1], the same for all rows
        x = self.embedding(tokens[:, None], positions)  # [rows, 1, d_model]
        biases = self.relative.last_query(len(self.layers), position + 1)
        past, places = state.past()
        if places is not None:
            biases = [None if bias is None else bias[..., places].permute(2, 0, 1, 3) for bias in biases]
        for layer, cache, bias in zip(self.layers, state.layers, biases, strict=True):
            x = cast(DecoderLayer, layer).step(x, cache, state.filled, (past, state.memory_mask), bias)
        state.advance(past, places)
        return self._scaled(self.norm(x)).squeeze(1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Maps the input of the output layer [..., d_model] to logits [..., vocabulary]."""
        logits: Tensor = self.projection(hidden)
        bias = self.output_bias if self.logit_bias is None else self.logit_bias
        return logits if bias is None else logits + bias

    def output_layer(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the factors of the logits in training, hidden [..., width] and weight [vocabulary, width].

        They are those of `logits`, without forbidden tokens; a bias is one more column of the weight.
        """
        if self.output_bias is None:
            return hidden, self.projection.weight
        ones = hidden.new_ones(*hidden.shape[:-1], 1)
        return torch.cat([hidden, ones], -1), torch.cat([self.projection.weight, self.output_bias[:, None]], -1)

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.output_scale == 1 else x * self.output_scale


class Transformer(nn.Module):
    """Encoder and decoder with their embeddings.

    Args:
        config: Architecture.
        source_vocabulary, target_vocabulary: Vocabulary sizes; equal if the vocabulary is joint (`share_embeddings`).
        pad: Id of the padding token in the source.

    Raises:
        ValueError: The config shares embeddings, but the vocabularies differ in size.
    """

    def __init__(self, config: ModelConfig, source_vocabulary: int, target_vocabulary: int, pad: int) -> None:
        super().__init__()
        joint = config.share_embeddings in ("inputs", "all")
        if joint and source_vocabulary != target_vocabulary:
            raise ValueError(
                f"share_embeddings: {config.share_embeddings} needs one joint vocabulary, "
                f"but the source has {source_vocabulary} tokens and the target {target_vocabulary}"
            )
        self.config = config
        self.pad = pad
        source_tokens = nn.Embedding(source_vocabulary, config.d_model)
        target_tokens = source_tokens if joint else nn.Embedding(target_vocabulary, config.d_model)
        self.encoder = Encoder(config, _embedding(config, source_tokens, config.max_source_length))
        # One more position than target tokens: the decoder input starts with the begin token.
        embedding = _embedding(config, target_tokens, config.max_target_length + 1, decoder=True)
        self.decoder = Decoder(config, embedding, target_vocabulary)
        if config.share_embeddings in ("output", "all"):
            self.decoder.projection.weight = target_tokens.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialises matrices with Xavier uniform and embeddings with N(0, 1/d_model), of variance 1 after scaling."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.d_model**-0.5)

    def source_mask(self, source: Tensor) -> Tensor:
        """Maps source ids [batch, source] to a bool mask [batch, 1, 1, source], False at padding."""
        return (source != self.pad)[:, None, None, :]

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Maps source ids [batch, source] to the memory [batch, source, d_model] and its mask [batch, 1, 1, source]."""
        mask = self.source_mask(source)
        return self.encoder(source, mask), mask

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Maps source ids [batch, source], decoder input ids [batch, target] to logits [batch, target, vocabulary]."""
        memory, mask = self.encode(source)
        return self.decoder(target, memory, mask)[0]  # type: ignore[no-any-return]

    def hidden(self, source: Tensor, target: Tensor) -> Tensor:
        """Computes the input of the output layer [batch, target, d_model]; arguments as in `forward`."""
        mask = self.source_mask(source)
        needed = None if mask.all() else mask
        return self.decoder.hidden(target, self.encoder(source, needed), needed)[0]

    @torch.no_grad()
    def attention(self, source: Tensor, target: Tensor) -> list[Tensor]:
        """Returns the cross-attention weights of each decoder layer [batch, heads, target, source]; see `forward`."""
        memory, mask = self.encode(source)
        return self.decoder(target, memory, mask, return_weights=True)[1]  # type: ignore[no-any-return]


def _final_norm(config: ModelConfig) -> nn.Module:
    """Returns the norm after a stack; with post-norm there is none, since the last layer ends with one."""
    return build_norm(config.d_model, config.norm_kind, config.norm_epsilon) if config.norm == "pre" else nn.Identity()


def _embedding(config: ModelConfig, tokens: nn.Embedding, max_length: int, *, decoder: bool = False) -> Embedding:
    decoder_norm = config.decoder_embedding_norm if decoder else None
    return Embedding(
        tokens,
        config.positions,
        max_length,
        config.dropout,
        scale=math.sqrt(config.d_model) if config.embedding_scale else 1.0,
        norm=decoder_norm or config.embedding_norm,
        norm_epsilon=config.norm_epsilon,
    )
