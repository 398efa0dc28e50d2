"""Reads a model.npz of Marian into our Transformer.

The architecture is Marian's own (src/models/transformer.h), with which the model was trained, also where converters of
other programs differ: sinusoids have exponents i / (d_model/2 - 1), and layer norms an epsilon of 1e-6. Weights of
linear maps are [inputs, outputs], vectors [1, n].
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

import numpy as np
import torch
import yaml
from pydantic import ValidationError
from torch import Tensor, nn

from dragoman_export.errors import ExportError
from dragoman_training.model import ModelConfig, Transformer
from dragoman_training.model.attention import MultiHeadAttention
from dragoman_training.model.config import Norm, SharedEmbeddings
from dragoman_training.model.feed_forward import Activation
from dragoman_training.model.layers import DecoderLayer, EncoderLayer, Residual

CONFIG = "special:model.yml"
EPSILON = 1e-6
POSITIONS = 512  # Marian has no limit
_ACTIVATIONS: Mapping[str, Activation] = {"relu": "relu", "swish": "silu"}
# Supported values of options, where the first one is the default; and what other values mean.
_SUPPORTED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "type": (("transformer",), "recurrent networks and multi-source models can't be imported"),
    "transformer-decoder-autoreg": (("self-attention",), "recurrent (SSRU) and averaging decoders can't be imported"),
    "transformer-no-projection": ((False,), "attention without an output projection can't be imported"),
    "transformer-ffn-depth": ((2,), "feed-forward networks of another depth can't be imported"),
    "transformer-decoder-ffn-depth": ((0, 2), "feed-forward networks of another depth can't be imported"),
    "transformer-pool": ((False,), "pooling in place of attention can't be imported"),
    "transformer-tied-layers": (([],), "decoder layers that share weights can't be imported"),
    "transformer-train-positions": ((False,), "trained positions can't be imported"),
    "transformer-train-position-embeddings": ((False,), "trained positions can't be imported"),
    "lemma-dim-emb": ((0,), "factored vocabularies can't be imported"),
    "ulr": ((False,), "universal language representations can't be imported"),
    "right-left": ((False,), "targets from right to left can't be imported"),
}
# Operations of Marian before and after a sub-layer and after a stack, without dropout.
_NORMS: Mapping[tuple[str, str, str], Norm] = {("", "an", ""): "post", ("n", "a", "n"): "pre"}


@dataclass(frozen=True)
class MarianModel:
    """A model in which all tables have the same rows: the tokens, rows to fill up the smaller one, and `start`.

    Attributes:
        source_tokens, target_tokens: Numbers of tokens.
        start: Id of the first decoder input, whose embedding is zero. It is never written.
    """

    model: Transformer
    source_tokens: int
    target_tokens: int

    @property
    def start(self) -> int:
        return max(self.source_tokens, self.target_tokens)


@torch.no_grad()
def read_marian(path: Path) -> MarianModel:
    """Reads a model, in 32-bit floats.

    Raises:
        ExportError: The file is missing, damaged or not a .npz, or the architecture is not supported.
    """
    weights = _Weights(path)
    options = weights.options()
    for key, (values, problem) in _SUPPORTED.items():
        if (found := options.get(key, values[0])) not in values:
            raise ExportError(f"{path}: {key} is {found!r}; {problem}")
    try:
        config = _config(options, weights)
    except ValidationError as error:
        raise ExportError(f"{path}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
    source, target = (len(weights.peek(_table(stack, config.share_embeddings))) for stack in ("encoder", "decoder"))
    if config.share_embeddings in ("inputs", "all") and weights.has("decoder_Wemb"):
        raise ExportError(f"{path}: holds decoder_Wemb, but its options say that there is one table, Wemb")
    start = max(source, target)
    model = Transformer(config, start + 1, start + 1, pad=start)
    _Filler(weights, model, {"encoder": source, "decoder": target}).fill()
    if unused := weights.unused():
        raise ExportError(f"{path}: holds tensors that such a model does not have: {', '.join(unused[:5])}")
    return MarianModel(model.eval(), source, target)


class _Weights:
    """The arrays of a file by name.

    Raises:
        ExportError: The file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.suffix == ".bin":
            raise ExportError(f"{path}: Marian's .bin files, which may hold integers, can't be imported; take the .npz")
        try:
            self._arrays: Any = np.load(path, allow_pickle=False)
            self._names = set(self._arrays.files)
        except OSError as error:
            raise ExportError(f"{path}: {error.strerror or error}") from None
        except (ValueError, AttributeError, BadZipFile, EOFError) as error:
            raise ExportError(f"{path}: damaged, or not a model.npz of Marian ({_first_line(error)})") from None
        self._taken = {CONFIG}

    def options(self) -> dict[str, Any]:
        """Returns the options that the model was trained with."""
        if CONFIG not in self._names:
            raise ExportError(f"{self.path}: not a model.npz of Marian; {CONFIG} is missing")
        try:
            text = np.asarray(self._arrays[CONFIG]).tobytes().rstrip(b"\0").decode()
            options = yaml.safe_load(text)
        except (ValueError, yaml.YAMLError, BadZipFile) as error:
            raise ExportError(f"{self.path}: {CONFIG} cannot be read ({_first_line(error)})") from None
        if not isinstance(options, dict):
            raise ExportError(f"{self.path}: {CONFIG} holds no options")
        return options

    def has(self, name: str) -> bool:
        return name in self._names

    def peek(self, name: str) -> Tensor:
        """Returns an array as a tensor of 32-bit floats."""
        if name not in self._names:
            raise ExportError(f"{self.path}: {name} is missing")
        try:
            found = self._arrays[name]
        except (ValueError, BadZipFile, EOFError, OSError) as error:
            raise ExportError(f"{self.path}: {name} is damaged ({_first_line(error)})") from None
        if found.dtype not in (np.float32, np.float16):
            raise ExportError(f"{self.path}: {name} is of type {found.dtype}; only float32 and float16 can be imported")
        tensor = torch.from_numpy(found).float()
        if not tensor.isfinite().all():
            raise ExportError(f"{self.path}: {name} holds numbers that are not finite; the file is damaged")
        return tensor

    def copy(self, parameter: Tensor, name: str, *, transposed: bool = False) -> None:
        """Copies an array into a parameter; vectors are [1, n] in the file."""
        found = self.peek(name)
        self._taken.add(name)
        value = found.T if transposed else found
        if value.squeeze().shape != parameter.squeeze().shape:
            shapes = f"{list(found.shape)}; expected {list((parameter.T if transposed else parameter).shape)}"
            raise ExportError(f"{self.path}: {name} has the shape {shapes}")
        parameter.copy_(value.reshape(parameter.shape))

    def unused(self) -> list[str]:
        return sorted(self._names - self._taken)


def _config(options: Mapping[str, Any], weights: _Weights) -> ModelConfig:
    def number(key: str) -> int:
        value = options.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ExportError(f"{weights.path}: {key} is {value!r}; expected a number")
        return value

    activation = options.get("transformer-ffn-activation", "swish")
    if activation not in _ACTIVATIONS:
        raise ExportError(
            f"{weights.path}: transformer-ffn-activation is {activation!r}; expected one of {', '.join(_ACTIVATIONS)} "
            "(Marian's gelu is an approximation that is not supported)"
        )
    keys = ("transformer-preprocess", "transformer-postprocess", "transformer-postprocess-top")
    operations = tuple(str(options.get(key, "")).replace("d", "") for key in keys)
    embedding = str(options.get("transformer-postprocess-emb", "")).replace("d", "")
    norm = _NORMS.get(cast(tuple[str, str, str], operations))
    if norm is None or embedding not in ("", "n"):
        values = ", ".join(f"{key} {options.get(key, '')!r}" for key in (*keys, "transformer-postprocess-emb"))
        raise ExportError(
            f"{weights.path}: {values} can't be imported; expected post-norm ('', 'dan', '') or pre-norm "
            "('n', 'da', 'n'), with or without a norm of the embeddings ('n')"
        )
    return ModelConfig(
        d_model=number("dim-emb"),
        heads=number("transformer-heads"),
        d_ff=number("transformer-dim-ffn"),
        decoder_d_ff=options.get("transformer-decoder-dim-ffn") or None,
        encoder_layers=number("enc-depth"),
        decoder_layers=number("dec-depth"),
        activation=_ACTIVATIONS[activation],
        norm=norm,
        norm_epsilon=EPSILON,
        positions="learned",  # a table with Marian's own sinusoids
        embedding_norm="sum" if embedding else "none",
        share_embeddings=_shared(options),
        dropout=0.0,
        max_source_length=POSITIONS,
        max_target_length=POSITIONS - 1,
    )


def _shared(options: Mapping[str, Any]) -> SharedEmbeddings:
    every = bool(options.get("tied-embeddings-all"))
    inputs, output = (every or bool(options.get(key)) for key in ("tied-embeddings-src", "tied-embeddings"))
    if inputs:
        return "all" if output else "inputs"
    return "output" if output else "none"


def _table(stack: str, shared: SharedEmbeddings) -> str:
    return "Wemb" if shared in ("inputs", "all") else f"{stack}_Wemb"


def sinusoids(length: int, width: int) -> Tensor:
    """Returns Marian's positions [length, width]: first all sines, then all cosines, of exponents i / (width/2 - 1)."""
    half = width // 2
    frequency = torch.exp(torch.arange(half, dtype=torch.float64) * (-math.log(10_000) / (half - 1)))  # [half]
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency  # [length, half]
    return torch.cat([angle.sin(), angle.cos()], -1).float()


class _Filler:
    """Copies the weights into a model.

    Args:
        tokens: Number of tokens by stack.
    """

    def __init__(self, weights: _Weights, model: Transformer, tokens: Mapping[str, int]) -> None:
        self._weights, self._model, self._tokens = weights, model, tokens

    def fill(self) -> None:
        model, weights = self._model, self._weights
        shared = model.config.share_embeddings
        for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
            embedding = stack.embedding
            self._rows(embedding.tokens.weight, name, _table(name, shared))
            positions = cast(nn.Parameter, embedding.positions)
            positions.copy_(sinusoids(*positions.shape))
            if embedding.norm_input != "none":
                self._norm(embedding.norm, f"{name}_emb", "_pre")
            for number, layer in enumerate(cast(Any, stack.layers), 1):
                self._layer(layer, f"{name}_l{number}")
            if model.config.norm == "pre":
                self._norm(stack.norm, f"{name}_top")
        head = "decoder_ff_logit_out"
        projection = model.decoder.projection.weight
        if shared in ("none", "inputs"):
            transposed = weights.has(f"{head}_W")
            self._rows(projection, "decoder", f"{head}_{'W' if transposed else 'Wt'}", transposed=transposed)
        bias = torch.zeros(len(projection))
        if weights.has(f"{head}_b"):  # else --output-omit-bias
            weights.copy(bias[: self._tokens["decoder"]], f"{head}_b")
        bias[self._tokens["decoder"] :] = -torch.inf
        model.decoder.logit_bias = bias

    def _rows(self, table: Tensor, stack: str, name: str, *, transposed: bool = False) -> None:
        tokens = self._tokens[stack]
        self._weights.copy(table[:tokens], name, transposed=transposed)
        table[tokens:] = 0

    def _layer(self, layer: EncoderLayer | DecoderLayer, name: str) -> None:
        norms = [cast(Residual, residual).norm for residual in layer.residuals]
        suffix = "_pre" if self._model.config.norm == "pre" else ""
        attentions = [("self", layer.self_attention)]
        if isinstance(layer, DecoderLayer):
            attentions.append(("context", layer.cross_attention))
        for (part, attention), norm in zip(attentions, norms, strict=False):
            self._attention(attention, f"{name}_{part}")
            self._norm(norm, f"{name}_{part}_Wo", suffix)
        self._linear(layer.feed_forward.expand, f"{name}_ffn", "1")
        self._linear(layer.feed_forward.contract, f"{name}_ffn", "2")
        self._norm(norms[-1], f"{name}_ffn_ffn", suffix)

    def _attention(self, attention: MultiHeadAttention, name: str) -> None:
        self._linear(attention.query, name, "q")
        keys, values = attention.key_value.weight.chunk(2)
        key_bias, value_bias = attention.key_value.bias.chunk(2)
        for part, weight, bias in (("k", keys, key_bias), ("v", values, value_bias)):
            self._weights.copy(weight, f"{name}_W{part}", transposed=True)
            self._weights.copy(bias, f"{name}_b{part}")
        self._linear(attention.output, name, "o")

    def _linear(self, linear: nn.Linear, name: str, part: str) -> None:
        self._weights.copy(linear.weight, f"{name}_W{part}", transposed=True)
        self._weights.copy(linear.bias, f"{name}_b{part}")

    def _norm(self, norm: nn.Module, name: str, suffix: str = "") -> None:
        for part, marian in (("weight", "scale"), ("bias", "bias")):
            self._weights.copy(getattr(norm, part), f"{name}_ln_{marian}{suffix}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
