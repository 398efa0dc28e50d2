"""Our Transformer as a CTranslate2 model: the same weights, laid out through CTranslate2's own specification.

Only the layout differs. CTranslate2 fuses query, key and value of self-attention into one matrix, in this order,
and key and value of encoder-decoder attention into another; it keeps the gate and the value of SwiGLU apart; it
multiplies the embedding by sqrt(d_model) and adds a position table, as we do. In its post-norm form a layer's norm
follows the residual.
"""

from pathlib import Path

import torch
from ctranslate2.specs import common_spec, transformer_spec
from tokenizers import Tokenizer
from torch import Tensor, nn

from dragoman_training.model import Transformer
from dragoman_training.model.attention import MultiHeadAttention
from dragoman_training.model.feed_forward import FeedForward
from dragoman_training.model.layers import DecoderLayer, EncoderLayer
from dragoman_training.model.parts import decoder_layers, encoder_layers, last_norm, norms, position_table
from dragoman_training.model.positions import Embedding

ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "swiglu": common_spec.Activation.SWISH,
}


def convert(model: Transformer, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, directory: Path) -> None:
    """Writes a CTranslate2 model: model.bin, config.json and the vocabularies, in float32.

    Args:
        model: Any Transformer of ours.
        source_tokenizer, target_tokenizer: Tokenizers with the model's vocabulary sizes.
        directory: Directory to write to; created if missing.

    Raises:
        ValueError: A vocabulary size differs from the model's.
    """
    config = model.config
    spec = transformer_spec.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=config.norm == "pre",
        activation=ACTIVATIONS[config.activation],
        alignment_heads=config.heads,  # CTranslate2 returns the mean over these heads of the last layer
        ffn_glu=config.activation == "swiglu",
    )
    for ours, theirs in ((model.encoder, spec.encoder), (model.decoder, spec.decoder)):
        if isinstance(ours.norm, nn.LayerNorm):
            _norm(theirs.layer_norm, ours.norm)
    _embedding(spec.encoder.embeddings[0], spec.encoder.position_encodings, model.encoder.embedding)
    _embedding(spec.decoder.embeddings, spec.decoder.position_encodings, model.decoder.embedding)
    for layer, layer_spec in zip(encoder_layers(model), spec.encoder.layer, strict=True):
        _layer(layer_spec, layer)
    for decoder_layer, layer_spec in zip(decoder_layers(model), spec.decoder.layer, strict=True):
        _layer(layer_spec, decoder_layer)
    spec.decoder.projection.weight = _array(model.decoder.projection.weight)
    if model.decoder.logit_bias is not None:
        spec.decoder.projection.bias = _array(model.decoder.logit_bias)

    spec.register_source_vocabulary(vocabulary(source_tokenizer))
    spec.register_target_vocabulary(vocabulary(target_tokenizer))
    spec.config.layer_norm_epsilon = last_norm(model).eps
    spec.validate()
    spec.optimize(quantization="float32")
    directory.mkdir(parents=True, exist_ok=True)
    spec.save(str(directory))


def vocabulary(tokenizer: Tokenizer) -> list[str]:
    """Returns the tokens in the order of their ids, including special ones."""
    ids = tokenizer.get_vocab(with_added_tokens=True)
    return sorted(ids, key=ids.__getitem__)


def _array(weight: Tensor) -> object:
    return weight.detach().float().contiguous().numpy()


def _layer(spec: object, layer: EncoderLayer | DecoderLayer) -> None:
    """Copies the sub-layers in order, each with the norm of its residual."""
    attentions = [(spec.self_attention, layer.self_attention)]  # type: ignore[attr-defined]
    if isinstance(layer, DecoderLayer):
        attentions.append((spec.attention, layer.cross_attention))  # type: ignore[attr-defined]
    for (attention_spec, attention), norm in zip(attentions, norms(layer), strict=False):
        _attention(attention_spec, attention, fuse_query=attention is layer.self_attention)
        _norm(attention_spec.layer_norm, norm)
    _feed_forward(spec.ffn, layer.feed_forward)  # type: ignore[attr-defined]
    _norm(spec.ffn.layer_norm, norms(layer)[-1])  # type: ignore[attr-defined]


def _attention(spec: object, attention: MultiHeadAttention, *, fuse_query: bool) -> None:
    inputs = [attention.query, attention.key_value]
    linears = spec.linear  # type: ignore[attr-defined]
    if fuse_query:
        _linear(linears[0], *inputs)
    else:
        _linear(linears[0], inputs[0])
        _linear(linears[1], inputs[1])
    _linear(linears[-1], attention.output)


def _feed_forward(spec: object, feed_forward: FeedForward) -> None:
    expand = feed_forward.expand
    if feed_forward.activation == "swiglu":
        for part, half in zip((spec.linear_0, spec.linear_0_noact), (0, 1), strict=True):  # type: ignore[attr-defined]
            part.weight = _array(expand.weight.chunk(2)[half])
            part.bias = _array(expand.bias.chunk(2)[half])
    else:
        _linear(spec.linear_0, expand)  # type: ignore[attr-defined]
    _linear(spec.linear_1, feed_forward.contract)  # type: ignore[attr-defined]


def _linear(spec: common_spec.LinearSpec, *linears: nn.Linear) -> None:
    """Copies one linear layer, or concatenates several with the same input."""
    spec.weight = _array(torch.cat([linear.weight for linear in linears]))
    if linears[0].bias is not None:
        spec.bias = _array(torch.cat([linear.bias for linear in linears]))


def _norm(spec: common_spec.LayerNormSpec, norm: nn.LayerNorm) -> None:
    spec.gamma = _array(norm.weight)
    spec.beta = _array(norm.bias)


def _embedding(
    spec: common_spec.EmbeddingsSpec, positions: transformer_spec.PositionEncoderSpec, embedding: Embedding
) -> None:
    spec.weight = _array(embedding.tokens.weight)
    positions.encodings = _array(position_table(embedding))
