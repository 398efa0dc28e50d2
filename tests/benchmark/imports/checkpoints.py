"""Hugging Face directories of random weights, in the shapes of published models and with their tokenizers' sizes.

As in tests.support.random_model, answers vary and never end: random signs in the last norm keep a model from repeating
its input, and the end token's logit is far below the largest.
"""

import hashlib
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from sentencepiece import sentencepiece_model_pb2 as sentencepiece
from torch import Tensor
from transformers import (
    AutoTokenizer,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from tests.benchmark.random_bundle import BUILD
from tests.benchmark.workload import SEED, Workload
from tests.support.huggingface_directories import lines, write_directory

NEVER = -100.0  # logit
UNLIKELY = -1000.0  # score of a piece that no text has
MARIAN_VOCABULARY, T5_PIECES, T5_VOCABULARY = 58_101, 32_000, 32_128
TEXTS, SOURCE_TOKENS, TARGET_TOKENS = 64, (12, 20), 32


def checkpoint(name: str) -> Path:
    """Returns the directory of one of `CHECKPOINTS`, made in BUILD unless the same code has made it there already."""
    digest = hashlib.sha256(Path(__file__).read_bytes() + version("transformers").encode()).hexdigest()[:12]
    place = BUILD / f"{name}-checkpoint-{digest}"
    if not place.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        for stale in BUILD.glob(f"{name}-checkpoint-*"):
            shutil.rmtree(stale)
        with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
            layout, make = CHECKPOINTS[name]
            directory = write_directory(Path(scratch), layout)
            torch.manual_seed(SEED)
            with torch.no_grad():
                make(directory).save_pretrained(directory)
            directory.rename(place)
    return place


def sentences(directory: Path) -> Workload:
    """Returns sentences that the tokenizer of a checkpoint was trained on."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    texts = random.Random(SEED).sample(lines(), len(lines()))
    ids = {text: tokenizer(text).input_ids for text in texts}
    fewest, most = SOURCE_TOKENS
    kept = [text for text in texts if fewest <= len(ids[text]) <= most][:TEXTS]
    return Workload(
        f"sentences of {fewest} to {most} tokens, {TARGET_TOKENS} target tokens each",
        kept,
        [ids[text] for text in kept],
        [tokenizer.convert_ids_to_tokens(ids[text]) for text in kept],
        TARGET_TOKENS,
    )


def _opus_mt(directory: Path) -> PreTrainedModel:
    """The shape of Helsinki-NLP's opus-mt for one pair of languages: shared vocabulary, the padding token last."""
    path = directory / "vocab.json"
    tokens = [t for t in json.loads(path.read_text(encoding="utf-8")) if t != "<pad>" and not t.startswith(">>")]
    tokens += [f"▁{index}▁" for index in range(MARIAN_VOCABULARY - 1 - len(tokens))]
    path.write_text(json.dumps({token: index for index, token in enumerate([*tokens, "<pad>"])}), encoding="utf-8")
    pad = MARIAN_VOCABULARY - 1
    config = MarianConfig(
        vocab_size=MARIAN_VOCABULARY,
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        max_position_embeddings=512,
        activation_function="swish",
        scale_embedding=True,
        pad_token_id=pad,
        eos_token_id=0,
        decoder_start_token_id=pad,
        forced_eos_token_id=None,
        bad_words_ids=[[pad]],
    )
    model = MarianMTModel(config)
    model.final_logits_bias[0] = 0.1 * torch.randn(MARIAN_VOCABULARY)
    model.final_logits_bias[0, config.eos_token_id] = NEVER
    _draw_signs(model.model.decoder.layers[-1].final_layer_norm.weight)
    return model


def _t5_small(directory: Path) -> PreTrainedModel:
    """The shape of t5-small, with its 28 rows that no token has."""
    path = directory / "spiece.model"
    pieces = sentencepiece.ModelProto.FromString(path.read_bytes())  # type: ignore[attr-defined]
    for index in range(T5_PIECES - len(pieces.pieces)):
        pieces.pieces.add(piece=f"▁{index}▁", score=UNLIKELY)
    path.write_bytes(pieces.SerializeToString())
    config = T5Config(vocab_size=T5_VOCABULARY, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    model.shared.weight[config.eos_token_id] = 0
    _draw_signs(model.decoder.final_layer_norm.weight)
    return model


def _draw_signs(gain: Tensor) -> None:
    gain.mul_(torch.randint(0, 2, gain.shape) * 2 - 1)


CHECKPOINTS: Mapping[str, tuple[str, Callable[[Path], Any]]] = {
    "opus-mt": ("marian", _opus_mt),
    "t5-small": ("t5", _t5_small),
}
"""Layout of the tokenizer's files, and the function that completes them and returns the model, by name."""
