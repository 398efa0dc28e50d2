"""The switches of a model. Which published model has which is a row of such switches, not a case in the code."""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dragoman_training.model.feed_forward import Activation
from dragoman_training.model.positions import EmbeddingNorm, Positions

Norm = Literal["pre", "post"]
NormKind = Literal["layer", "rms"]
SharedEmbeddings = Literal["none", "output", "inputs", "all"]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What a layer is built from; see ModelConfig."""

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
    """The shape of a model; with the two vocabulary sizes it determines every parameter's shape.

    Attributes:
        heads, d_ff: of the encoder, and of the decoder unless `decoder_heads`, `decoder_d_ff` say otherwise.
        d_head: width of a head; None for d_model / heads, in both stacks.
        activation: see FeedForward.
        bias: whether linear maps have one. (T5 has none.)
        scaled_attention: scores are divided by sqrt(d_head). (T5 leaves that to the initialisation.)
        norm: where it stands, see Residual; with `pre` each stack ends with one more.
        norm_kind: `layer` (Ba et al. 2016) or `rms` (Zhang and Sennrich 2019), without mean and bias.
        norm_epsilon: added to the variance.
        positions: see Embedding; `relative` and `relative_per_layer`: see RelativePositions.
        relative_buckets, relative_max_distance: see RelativePositions.
        embedding_scale: token embeddings are multiplied by sqrt(d_model).
        embedding_norm: see Embedding; of the decoder unless `decoder_embedding_norm` says otherwise.
        share_embeddings: which tables are one: `none`; `output`: the target's and the output projection; `inputs`: the
            source's and the target's; `all` three. The last two need a joint vocabulary.
        output_scale: the decoder's output is divided by sqrt(d_model) before the projection. (T5, where tables are
            shared.)
        max_source_length: in tokens, the end token counted.
        max_target_length: in tokens, the end token not counted.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    d_model: int = Field(ge=8)
    heads: int = Field(ge=1)
    d_head: int | None = Field(default=None, ge=1)
    d_ff: int = Field(ge=1)
    encoder_layers: int = Field(ge=1)
    decoder_layers: int = Field(ge=1)
    decoder_heads: int | None = Field(default=None, ge=1)
    decoder_d_ff: int | None = Field(default=None, ge=1)
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
    dropout: float = Field(default=0.1, ge=0, lt=1)
    max_source_length: int = Field(ge=1)
    max_target_length: int = Field(ge=1)

    @model_validator(mode="after")
    def _widths_agree(self) -> "ModelConfig":
        heads = {"heads": self.heads, "decoder_heads": self.decoder_heads or self.heads}
        for name, count in heads.items():
            if self.d_head is None and self.d_model % count:
                raise ValueError(f"d_model ({self.d_model}) must be divisible by {name} ({count})")
        if self.d_model % 2:
            raise ValueError(f"d_model ({self.d_model}) must be even")
        return self

    @model_validator(mode="after")
    def _buckets_reach(self) -> "ModelConfig":
        if self.relative_buckets % 4:
            raise ValueError(f"relative_buckets ({self.relative_buckets}) must be a multiple of 4")
        if self.relative_max_distance <= self.relative_buckets // 2:
            least = self.relative_buckets // 2 + 1
            raise ValueError(f"relative_max_distance ({self.relative_max_distance}) must be at least {least}")
        return self

    @property
    def encoder_layer(self) -> LayerShape:
        return self._layer(self.heads, self.d_ff)

    @property
    def decoder_layer(self) -> LayerShape:
        return self._layer(self.decoder_heads or self.heads, self.decoder_d_ff or self.d_ff)

    def _layer(self, heads: int, d_ff: int) -> LayerShape:
        return LayerShape(
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
