"""ModelConfig, the architecture switches. A published model is a set of values, not a case in the code."""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dragoman_training.model.feed_forward import Activation
from dragoman_training.model.positions import EmbeddingNorm, Positions

Norm = Literal["pre", "post"]
NormKind = Literal["layer", "rms"]
SharedEmbeddings = Literal["none", "output", "inputs", "all"]
LARGEST = 2**20  # width or length; more is a typing mistake


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """The configuration of one layer; the fields are those of ModelConfig."""

    d_model: int
    heads: int
    d_head: int
    d_ff: int
    activation: Activation
    bias: bool
    scaled_attention: bool
    norm: Norm
    norm_kind: NormKind
    norm_epsilon: float
    dropout: float


class ModelConfig(BaseModel):
    """The architecture; together with the two vocabulary sizes it determines the shape of every parameter.

    "The paper" is "Attention Is All You Need" (Vaswani et al. 2017). T5 is Raffel et al. 2020.

    Attributes:
        heads, d_ff: Heads and feed-forward width (the paper, 3.2.2 and 3.3) of the encoder, and of the decoder unless
            `decoder_heads` and `decoder_d_ff` are set.
        d_head: Width of a head in both stacks; None for d_model / heads. (T5 sets it on its own.)
        encoder_layers, decoder_layers: Layers of each stack. Fewer decoder than encoder layers decode faster at nearly
            the same quality (Kasai et al. 2021).
        activation: Activation of the feed-forward networks, see FeedForward (Hendrycks and Gimpel 2016; Shazeer 2020).
        bias: Whether linear layers have a bias. (T5: no.)
        scaled_attention: Whether scores are divided by sqrt(d_head) (the paper, 3.2.1). (T5: no, its initialization
            makes up for it.)
        norm: Position of the norm, see Residual: `post` (the paper, 3.1) or `pre` (Xiong et al. 2020), with which each
            stack ends with one more norm.
        norm_kind: `layer` (Ba et al. 2016), or `rms` (Zhang and Sennrich 2019), which has neither mean nor bias.
        norm_epsilon: Addend of the variance under the root.
        positions: Position encoding: absolute, see Embedding and `sinusoids` (the paper, 3.5), or relative, see
            RelativePositions (T5, 2.1).
        relative_buckets, relative_max_distance: Buckets of relative positions, see RelativePositions (T5, 2.1).
        embedding_scale: Whether token embeddings are multiplied by sqrt(d_model) (the paper, 3.4).
        embedding_norm: Norm of the embeddings (BART, Lewis et al. 2020), see Embedding; of the decoder unless
            `decoder_embedding_norm` is set.
        share_embeddings: Tables that are one matrix (Press and Wolf 2017): `none`; `output`: target embedding and
            output layer; `inputs`: source and target embedding; `all` three (the paper, 3.4). The last two need a joint
            vocabulary.
        output_scale: Whether the decoder's output is divided by sqrt(d_model) before the output layer. (T5 with shared
            tables.)
        output_bias: Whether the output layer has a bias. (Marian.)
        dropout: Dropout of the embeddings and of every sub-layer's output (the paper, 5.4; Srivastava et al. 2014).
        max_source_length: Longest source in tokens, including the end token.
        max_target_length: Longest target in tokens, without the end token.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    d_model: int = Field(ge=8, le=LARGEST)
    heads: int = Field(ge=1, le=LARGEST)
    d_head: int | None = Field(default=None, ge=1, le=LARGEST)
    d_ff: int = Field(ge=1, le=LARGEST)
    encoder_layers: int = Field(ge=1, le=1000)
    decoder_layers: int = Field(ge=1, le=1000)
    decoder_heads: int | None = Field(default=None, ge=1, le=LARGEST)
    decoder_d_ff: int | None = Field(default=None, ge=1, le=LARGEST)
    activation: Activation = "relu"
    bias: bool = True
    scaled_attention: bool = True
    norm: Norm = "post"
    norm_kind: NormKind = "layer"
    norm_epsilon: float = Field(default=1e-5, gt=0, lt=1)
    positions: Positions = "sinusoidal"
    relative_buckets: int = Field(default=32, ge=4)
    relative_max_distance: int = Field(default=128, ge=2)
    embedding_scale: bool = True
    embedding_norm: EmbeddingNorm = "none"
    decoder_embedding_norm: EmbeddingNorm | None = None
    share_embeddings: SharedEmbeddings = "output"
    output_scale: bool = False
    output_bias: bool = False
    dropout: float = Field(default=0.1, ge=0, lt=1)
    max_source_length: int = Field(ge=1, le=LARGEST)
    max_target_length: int = Field(ge=1, le=LARGEST)

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "ModelConfig":
        heads = {"heads": self.heads, "decoder_heads": self.decoder_heads or self.heads}
        for name, count in heads.items():
            if self.d_head is None and self.d_model % count:
                raise ValueError(f"d_model ({self.d_model}) must be divisible by {name} ({count})")
        if self.d_model % 2:
            raise ValueError(f"d_model ({self.d_model}) must be even")
        return self

    @model_validator(mode="after")
    def _relative_positions_fit(self) -> "ModelConfig":
        if self.relative_buckets % 4:
            raise ValueError(f"relative_buckets ({self.relative_buckets}) must be a multiple of 4")
        if self.relative_max_distance <= self.relative_buckets // 2:
            minimum = self.relative_buckets // 2 + 1
            raise ValueError(f"relative_max_distance ({self.relative_max_distance}) must be at least {minimum}")
        return self

    @property
    def encoder_layer(self) -> LayerConfig:
        """The configuration of an encoder layer."""
        return self._layer(self.heads, self.d_ff)

    @property
    def decoder_layer(self) -> LayerConfig:
        """The configuration of a decoder layer."""
        return self._layer(self.decoder_heads or self.heads, self.decoder_d_ff or self.d_ff)

    def _layer(self, heads: int, d_ff: int) -> LayerConfig:
        return LayerConfig(
            d_model=self.d_model,
            heads=heads,
            d_head=self.d_head or self.d_model // heads,
            d_ff=d_ff,
            activation=self.activation,
            bias=self.bias,
            scaled_attention=self.scaled_attention,
            norm=self.norm,
            norm_kind=self.norm_kind,
            norm_epsilon=self.norm_epsilon,
            dropout=self.dropout,
        )
