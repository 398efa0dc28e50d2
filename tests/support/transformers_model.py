"""Our Transformer as a Hugging Face `transformers` model: the same weights under other names.

mBART is the pre-norm shape with a final norm, Marian the post-norm one. mBART's extra norm after the embeddings becomes
the identity, position tables are overwritten with ours, and source and target keep separate token tables.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    PreTrainedModel,
)

from dragoman_server.bundle.manifest import SpecialTokens
from dragoman_training.model import Transformer
from dragoman_training.model.attention import MultiHeadAttention
from dragoman_training.model.layers import DecoderLayer, EncoderLayer
from dragoman_training.model.parts import decoder_layers, encoder_layers, norms, position_table

MBART_OFFSET = 2  # rows of mBART's position table before the first position


@torch.no_grad()
def convert(model: Transformer, tokens: SpecialTokens) -> PreTrainedModel:
    """Returns the model in evaluation mode, ready for `generate`, without generation options.

    Args:
        model: Any Transformer of ours without SwiGLU.
        tokens: Special tokens; the begin token becomes the decoder's start token.

    Raises:
        ValueError: There is no such shape.
    """
    config = model.config
    if config.activation == "swiglu":
        raise ValueError("no encoder-decoder model of transformers has these norms and SwiGLU")
    target_vocabulary, source_vocabulary = (
        len(model.decoder.projection.weight),
        len(model.encoder.embedding.tokens.weight),
    )
    shape: dict[str, Any] = {
        "vocab_size": target_vocabulary,
        "max_position_embeddings": max(config.max_source_length, config.max_target_length + 1),
        "d_model": config.d_model,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": config.d_ff,
        "activation_function": config.activation,
        "scale_embedding": True,
        "tie_word_embeddings": False,
        "pad_token_id": tokens.pad,
        "bos_token_id": tokens.begin,
        "eos_token_id": tokens.end,
        "decoder_start_token_id": tokens.begin,
    }
    theirs: PreTrainedModel
    if config.norm == "pre":
        theirs = MBartForConditionalGeneration(MBartConfig(**shape))
        scale: float = theirs.model.encoder.embed_tokens.embed_scale
        theirs.model.encoder.embed_tokens = type(theirs.model.encoder.embed_tokens)(
            source_vocabulary, config.d_model, tokens.pad, scale
        )
    else:
        shape |= {"vocab_size": source_vocabulary, "decoder_vocab_size": target_vocabulary}
        theirs = MarianMTModel(MarianConfig(**shape, share_encoder_decoder_embeddings=False))
    forbidden = model.decoder.logit_bias
    theirs.final_logits_bias.copy_(torch.zeros(target_vocabulary) if forbidden is None else forbidden)
    offset = MBART_OFFSET if config.norm == "pre" else 0
    for half, ours in ((theirs.model.encoder, model.encoder), (theirs.model.decoder, model.decoder)):
        half.embed_tokens.weight.copy_(ours.embedding.tokens.weight)
        positions = position_table(ours.embedding)
        half.embed_positions.weight[offset : offset + len(positions)] = positions
        if isinstance(ours.norm, nn.LayerNorm):
            half.layernorm_embedding = nn.Identity()
            half.layer_norm.load_state_dict(ours.norm.state_dict())
    for theirs_layer, layer in zip(theirs.model.encoder.layers, encoder_layers(model), strict=True):
        _layer(theirs_layer, layer)
    for theirs_layer, decoder_layer in zip(theirs.model.decoder.layers, decoder_layers(model), strict=True):
        _layer(theirs_layer, decoder_layer)
    theirs.lm_head.weight.copy_(model.decoder.projection.weight)
    theirs.generation_config = GenerationConfig(
        pad_token_id=tokens.pad,
        bos_token_id=tokens.begin,
        eos_token_id=tokens.end,
        decoder_start_token_id=tokens.begin,
    )
    return theirs.eval()


def _layer(theirs: Any, ours: EncoderLayer | DecoderLayer) -> None:
    _attention(theirs.self_attn, ours.self_attention)
    theirs_norms = [theirs.self_attn_layer_norm]
    if isinstance(ours, DecoderLayer):
        _attention(theirs.encoder_attn, ours.cross_attention)
        theirs_norms.append(theirs.encoder_attn_layer_norm)
    _copy(theirs.fc1, ours.feed_forward.expand.weight, ours.feed_forward.expand.bias)
    _copy(theirs.fc2, ours.feed_forward.contract.weight, ours.feed_forward.contract.bias)
    for theirs_norm, norm in zip([*theirs_norms, theirs.final_layer_norm], norms(ours), strict=True):
        _copy(theirs_norm, norm.weight, norm.bias)


def _attention(theirs: Any, ours: MultiHeadAttention) -> None:
    _copy(theirs.q_proj, ours.query.weight, ours.query.bias)
    for part, weight, bias in zip(
        (theirs.k_proj, theirs.v_proj), ours.key_value.weight.chunk(2), ours.key_value.bias.chunk(2), strict=True
    ):
        _copy(part, weight, bias)
    _copy(theirs.out_proj, ours.output.weight, ours.output.bias)


def _copy(module: Any, weight: Tensor, bias: Tensor) -> None:
    module.weight.copy_(weight)
    module.bias.copy_(bias)
