"""Typed access to the parts of a Transformer, which PyTorch's containers return as plain modules."""

from typing import cast

from torch import Tensor, nn

from dragoman_training.model import Transformer
from dragoman_training.model.layers import DecoderLayer, EncoderLayer, Residual
from dragoman_training.model.positions import Embedding


def encoder_layers(model: Transformer) -> list[EncoderLayer]:
    """Returns the encoder layers in order."""
    return cast(list[EncoderLayer], list(model.encoder.layers))


def decoder_layers(model: Transformer) -> list[DecoderLayer]:
    """Returns the decoder layers in order."""
    return cast(list[DecoderLayer], list(model.decoder.layers))


def norms(layer: EncoderLayer | DecoderLayer) -> list[nn.LayerNorm]:
    """Returns the norm of each sub-layer, in order."""
    return [cast(nn.LayerNorm, residual.norm) for residual in cast(list[Residual], list(layer.residuals))]


def position_table(embedding: Embedding) -> Tensor:
    """Returns the position table [positions, d_model] of a model without relative positions."""
    assert embedding.positions is not None
    return embedding.positions


def last_norm(model: Transformer) -> nn.LayerNorm:
    """Returns the norm before the output projection: the stack's own, or with post-norm that of the last sub-layer."""
    own = model.decoder.norm
    return own if isinstance(own, nn.LayerNorm) else norms(decoder_layers(model)[-1])[-1]
