"""Directories of random models of every Hugging Face family, with the tokenizers of `huggingface_directories`."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import torch
from transformers import AutoTokenizer
from transformers.models.auto import AutoConfig, AutoModelForSeq2SeqLM

from tests.support.huggingface_directories import MODEL_TYPES, SIZE, write_directory

LONGEST = 64  # positions of a table
BART: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": LONGEST,
    "init_std": 0.3,
}
T5: dict[str, Any] = {
    "d_model": 32,
    "d_kv": 8,
    "num_heads": 4,
    "d_ff": 48,
    "num_layers": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}
# Layouts of tokenizers, and what their models add to the configuration.
MODELS: dict[str, dict[str, Any]] = {
    "marian": {"activation_function": "swish"},
    "marian-split": {"share_encoder_decoder_embeddings": False},
    "m2m_100": {},
    "nllb": {},
    "mbart": {},
    "mbart50": {},
    "plbart": {},
    "t5": {},
    "t5-bytes": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "mt5": {},
    "umt5": {},
    "madlad": {"feed_forward_proj": "gated-gelu"},
    "byt5": {"feed_forward_proj": "gated-gelu"},
    "pegasus": {},
    "bart": {},
    "blenderbot": {},
    "blenderbot-small": {},
}
FORCED_END = ("bart", "blenderbot", "blenderbot-small", "marian", "pegasus")
SHARPENED = tuple(f"{name}.weight" for name in ("out_proj", ".o", "wo", "q_proj", ".q"))
WEAK = 0.3
END_FACTOR = 2.5
END_BONUS = 0.5  # logits; so that answers end


@torch.no_grad()
def write_model(
    folder: Path,
    layout: str,
    sharpness: float = 6,
    config_keys: Mapping[str, Any] = MappingProxyType({}),
    *,
    filled: bool = True,
    varied: int | None = None,
) -> Path:
    """Writes a random model and its tokenizer to folder / layout, with hardly any generation settings except token ids.

    Parameters are spread wide enough that mistakes show.

    Args:
        folder: An existing directory.
        layout: A key of `MODELS`.
        sharpness: A factor of the weights of attention. With a large one, answers change from token to token, and
            rounding to integers or bf16 spoils them.
        config_keys: Keys of the configuration beside those of `MODELS`.
        filled: Whether an odd vocabulary gets one more row.
        varied: Seed of parameters with which answers hardly repeat themselves: attention gives less, and the last
            norm has random signs, so that the last token alone does not decide on the next one.
    """
    directory = folder / layout
    with TemporaryDirectory(dir=folder) as place:
        write_directory(Path(place), "mt5" if layout == "umt5" else layout).rename(directory)
    kind = MODEL_TYPES.get(layout, layout)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sacremoses, which Marian's class never calls
        tokenizer: Any = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    torch.manual_seed(1 if varied is None else varied)
    config = AutoConfig.for_model(kind, **{**_shape(layout, kind, tokenizer, filled=filled), **config_keys})
    model: Any = AutoModelForSeq2SeqLM.from_config(config)
    for name, parameter in model.named_parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
        if name.endswith(SHARPENED):  # else the last token alone decides on the next one
            parameter.mul_(sharpness if varied is None or "q" in name.split(".")[-2] else WEAK)
        if parameter.size(0) > SIZE // 4:  # a table; its end token has logits of a wider range
            parameter[config.eos_token_id] *= END_FACTOR
    if varied is not None:
        stack = model.get_decoder()
        last = getattr(stack, "final_layer_norm", None) or getattr(stack, "layer_norm", None)
        gain = (last or stack.layers[-1].final_layer_norm).weight
        gain.mul_(torch.randint(0, 2, gain.shape) * 2 - 1)
        if kind == "marian":  # whose first decoder input is nothing, as published
            model.get_decoder().embed_tokens.weight[config.decoder_start_token_id] = 0
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_(std=0.3)
        model.final_logits_bias[0, config.eos_token_id] += END_BONUS
    model.generation_config.update(max_length=LONGEST)
    model.save_pretrained(directory)
    if layout == "umt5":  # which has no class of its own
        tokenizer.backend_tokenizer.save(str(directory / "tokenizer.json"))
        special = {f"{role}_token": getattr(tokenizer, f"{role}_token") for role in ("pad", "unk", "eos")}
        document = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
        (directory / "tokenizer_config.json").write_text(json.dumps(document))
    return directory


def _shape(layout: str, kind: str, tokenizer: Any, *, filled: bool) -> dict[str, Any]:
    """Returns keys of the configuration."""
    languages = getattr(tokenizer, "lang_token_to_id", {})  # which the vocabulary of M2M-100 leaves out
    size = max([*tokenizer.get_vocab().values(), *languages.values()]) + 1
    keys: dict[str, Any] = {**(T5 if "t5" in kind else BART), "vocab_size": size + size % 2 * filled, **MODELS[layout]}
    for role in ("pad", "eos", "bos"):
        keys[f"{role}_token_id"] = getattr(tokenizer, f"{role}_token_id")
    start = {"blenderbot": tokenizer.bos_token_id, "blenderbot-small": tokenizer.bos_token_id}
    start |= dict.fromkeys(("marian", "pegasus"), tokenizer.pad_token_id) | dict.fromkeys(("t5", "mt5", "umt5"), 0)
    keys["decoder_start_token_id"] = start.get(kind, tokenizer.eos_token_id)
    if kind in FORCED_END:
        keys["forced_eos_token_id"] = tokenizer.eos_token_id
    if layout == "mbart":
        keys["decoder_start_token_id"] = tokenizer.convert_tokens_to_ids("de_DE")
    if layout == "marian-split":
        keys |= {"decoder_vocab_size": size, "decoder_start_token_id": tokenizer.target_encoder["<pad>"]}
    return keys
