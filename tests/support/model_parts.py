"""Typed access to a Transformer's parts, which PyTorch's containers hand out as plain modules."""

from typing import cast

from torch import Tensor, nn

from dragoman_training.model import Transformer
from dragoman_training.model.layers import DecoderLayer, EncoderLayer, Residual
from dragoman_training.model.positions import Embedding


def encoder_layers(model: Transformer) -> list[EncoderLayer]:
    """In order."""
    return cast(list[EncoderLayer], list(model.encoder.layers))


def decoder_layers(model: Transformer) -> list[DecoderLayer]:
    """In order."""
    return cast(list[DecoderLayer], list(model.decoder.layers))


def norms(layer: EncoderLayer | DecoderLayer) -> list[nn.LayerNorm]:
    """One for each sub-layer, in order."""
    return [cast(nn.LayerNorm, residual.norm) for residual in cast(list[Residual], list(layer.residuals))]


def position_table(embedding: Embedding) -> Tensor:
    """Of a model whose positions are not relative: [positions, d_model]."""
    assert embedding.positions is not None
    return embedding.positions


def last_norm(model: Transformer) -> nn.LayerNorm:
    """What stands before the output projection: the stack's own norm, or with post-norm that of the last sub-layer."""
    own = model.decoder.norm
    return own if isinstance(own, nn.LayerNorm) else norms(decoder_layers(model)[-1])[-1]
