"""Families of published models, as switches of our Transformer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from dragoman_export.errors import ExportError
from dragoman_training.model import ModelConfig
from dragoman_training.model.feed_forward import Activation
from dragoman_training.model.positions import FAIRSEQ_FIRST

T5_LENGTH = 512  # tokens that T5 was trained on; its relative positions have no limit
_ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
_GATED: dict[Activation, Activation] = {
    "relu": "reglu",
    "gelu": "geglu",
    "gelu_tanh": "geglu_tanh",
    "silu": "swiglu",
}


@dataclass(frozen=True)
class Family:
    """The model that a configuration describes.

    Attributes:
        names: Key of the weight names, see `weight_names`.
        config: Switches of the model.
        vocabularies: Sizes of the source and target vocabularies.
        skipped_positions: Rows of the file's position table before the first position.
        logits_bias: Whether the file may hold a bias of the logits.
    """

    names: Literal["bart", "t5"]
    config: ModelConfig
    vocabularies: tuple[int, int]
    skipped_positions: int = 0
    logits_bias: bool = True


def find_family(config: Any) -> Family:
    """Returns the family of a configuration.

    Args:
        config: The configuration as `transformers.AutoConfig` reads it.

    Raises:
        ExportError: Models of this type are not supported, or a key has an unsupported value.
    """
    kind = config.model_type
    if reason := _REFUSED.get(kind):
        raise ExportError(f"config.json: model_type {kind!r} {reason}")
    if kind not in _FAMILIES:
        known = ", ".join(sorted(_FAMILIES))
        raise ExportError(f"config.json: model_type {kind!r} is not an encoder-decoder that can be imported ({known})")
    if not config.is_encoder_decoder:
        raise ExportError("config.json: is_encoder_decoder is false; expected a model with encoder and decoder")
    try:
        return _FAMILIES[kind](config)
    except ValidationError as error:
        first = error.errors()[0]
        keys = [_KEYS["t5" if hasattr(config, "d_kv") else "bart"].get(str(part), part) for part in first["loc"]]
        problem = f"{keys[0]} is {first['input']}: {first['msg']}" if keys else first["msg"]
        raise ExportError(f"config.json: {problem.removeprefix('Value error, ')}") from None


def _bart_like(config: Any, skipped_positions: int = 0, **switches: Any) -> Family:
    """Returns a family whose classes derive from BART's, with its names for keys and weights."""
    shape = {
        "d_model": config.d_model,
        "heads": config.encoder_attention_heads,
        "decoder_heads": config.decoder_attention_heads,
        "d_ff": config.encoder_ffn_dim,
        "decoder_d_ff": config.decoder_ffn_dim,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "activation": _activation(config.activation_function),
        "embedding_scale": bool(config.scale_embedding),
        "share_embeddings": "all",
        "dropout": 0.0,
        "max_source_length": config.max_position_embeddings,
        # The decoder's start token takes one position.
        "max_target_length": config.max_position_embeddings - 1,
    }
    vocabularies = config.vocab_size, config.vocab_size
    return Family("bart", ModelConfig(**shape | switches), vocabularies, skipped_positions)


def _marian(config: Any) -> Family:
    if config.share_encoder_decoder_embeddings:
        return _bart_like(config, positions="sinusoidal_halves")
    target = config.decoder_vocab_size or config.vocab_size
    tied = "output" if config.tie_word_embeddings else "none"
    found = _bart_like(config, positions="sinusoidal_halves", share_embeddings=tied)
    return Family("bart", found.config, (config.vocab_size, target))


def _bart(config: Any) -> Family:
    return _bart_like(config, 2, positions="learned", embedding_norm="sum")


def _mbart(config: Any) -> Family:
    return _bart_like(config, 2, positions="learned", embedding_norm="sum", norm="pre")


def _m2m_100(config: Any) -> Family:
    found = _bart_like(config, positions="sinusoidal_fairseq", norm="pre")
    return Family("bart", found.config, found.vocabularies, logits_bias=False)


def _pegasus(config: Any) -> Family:
    return _bart_like(config, positions="sinusoidal_halves", norm="pre")


def _blenderbot(config: Any) -> Family:
    return _bart_like(config, positions="learned", norm="pre")


def _blenderbot_small(config: Any) -> Family:
    return _bart_like(config, positions="learned", embedding_norm="sum", decoder_embedding_norm="tokens")


def _fsmt(config: Any) -> Family:
    tied = "all" if config.tie_word_embeddings else "none"
    if tied == "all" and config.src_vocab_size != config.tgt_vocab_size:
        raise ExportError("config.json: tie_word_embeddings needs src_vocab_size and tgt_vocab_size to be equal")
    found = _bart_like(config, positions="sinusoidal_fairseq", share_embeddings=tied)
    vocabularies = config.src_vocab_size, config.tgt_vocab_size
    return Family("bart", found.config, vocabularies, FAIRSEQ_FIRST, logits_bias=False)


def _t5(config: Any) -> Family:
    gated, _, name = config.feed_forward_proj.rpartition("-")
    # T5's own code means the approximation by tanh with "gated-gelu".
    activation = "gelu_tanh" if config.feed_forward_proj == "gated-gelu" else _activation(name)
    per_layer = config.model_type == "umt5"
    shape = {
        "d_model": config.d_model,
        "d_head": config.d_kv,
        "heads": config.num_heads,
        "d_ff": config.d_ff,
        "encoder_layers": config.num_layers,
        "decoder_layers": config.num_decoder_layers or config.num_layers,
        "activation": _GATED[activation] if gated else activation,
        "bias": False,
        "scaled_attention": False,
        "norm": "pre",
        "norm_kind": "rms",
        "norm_epsilon": config.layer_norm_epsilon,
        "positions": "relative_per_layer" if per_layer else "relative",
        "relative_buckets": config.relative_attention_num_buckets,
        "relative_max_distance": config.relative_attention_max_distance,
        "embedding_scale": False,
        "share_embeddings": "all",  # or "inputs" if the file has an output projection
        "output_scale": bool(getattr(config, "scale_decoder_outputs", False)),
        "dropout": 0.0,
        "max_source_length": T5_LENGTH,
        "max_target_length": T5_LENGTH,
    }
    vocabularies = config.vocab_size, config.vocab_size
    return Family("t5", ModelConfig(**shape), vocabularies, logits_bias=False)


def _activation(name: str) -> Activation:
    if name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise ExportError(f"config.json: activation {name!r} is not supported; expected one of {known}")
    return _ACTIVATIONS[name]


_FAMILIES: Mapping[str, Callable[[Any], Family]] = {
    "bart": _bart,
    "blenderbot": _blenderbot,
    "blenderbot-small": _blenderbot_small,
    "fsmt": _fsmt,
    "m2m_100": _m2m_100,
    "marian": _marian,
    "mbart": _mbart,
    "mt5": _t5,
    "pegasus": _pegasus,
    "plbart": _bart,
    "t5": _t5,
    "umt5": _t5,
}
_KEYS: Mapping[str, Mapping[str, str]] = {  # of configurations, by our names where they differ
    "bart": {
        "heads": "encoder_attention_heads",
        "decoder_heads": "decoder_attention_heads",
        "d_ff": "encoder_ffn_dim",
        "decoder_d_ff": "decoder_ffn_dim",
        "max_source_length": "max_position_embeddings",
        "max_target_length": "max_position_embeddings",
    },
    "t5": {
        "heads": "num_heads",
        "d_head": "d_kv",
        "encoder_layers": "num_layers",
        "decoder_layers": "num_decoder_layers",
        "norm_epsilon": "layer_norm_epsilon",
        "relative_buckets": "relative_attention_num_buckets",
        "relative_max_distance": "relative_attention_max_distance",
    },
}
_REFUSED: Mapping[str, str] = {
    "bigbird_pegasus": "attends to blocks of the source, which is not supported",
    "encoder-decoder": "joins two models of other shapes (BERT and the like), which is not supported",
    "led": "attends to a window of the source, which is not supported",
    "longt5": "attends to a window of the source, which is not supported",
    "nllb-moe": "is a mixture of experts, which is not supported; the dense NLLB models (m2m_100) are",
    "pegasus_x": "attends to blocks of the source, which is not supported",
    "prophetnet": "predicts several tokens at a time, which is not supported",
    "switch_transformers": "is a mixture of experts, which is not supported; the dense T5 models are",
    "whisper": "reads speech, not text",
}
