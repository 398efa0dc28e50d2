"""Reads a CTranslate2 directory into our Transformer: fp32 and fp16 encoder-decoders of the published families.

Names and layout follow CTranslate2's TransformerSpec: queries, keys and values are one matrix (`linear_0` of
self-attention), keys and values one (`linear_1` of cross-attention), every sub-layer holds its own norm, and switches
are variables.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from dragoman_export.ctranslate2.model_file import ModelFile, read_model_file
from dragoman_export.errors import ExportError
from dragoman_training.model import ModelConfig, Transformer
from dragoman_training.model.attention import MultiHeadAttention
from dragoman_training.model.feed_forward import Activation
from dragoman_training.model.layers import DecoderLayer, EncoderLayer, Residual

SPEC = "TransformerSpec"
# ctranslate2.specs.common_spec.Activation
_ACTIVATIONS: dict[int, Activation] = {0: "relu", 1: "gelu_tanh", 2: "silu", 3: "gelu"}
_GATED: dict[int, Activation] = {0: "reglu", 1: "geglu_tanh", 2: "swiglu", 3: "geglu"}
ZERO_TOKEN = "<pad>"  # as transformers calls it
UNLIMITED = 512  # positions of a model without a limit
LAYER_EPSILON, RMS_EPSILON = 1e-5, 1e-6
REFUSED = {
    "decoder/alibi": "ALiBi positions",
    "encoder/multi_query_attention": "multi-query attention",
    "decoder/layer_0/self_attention/relative_position_keys": "relative positions as vectors (Shaw et al. 2018)",
    "decoder/layer_0/self_attention/rotary_dim": "rotary positions",
}


@dataclass(frozen=True)
class Converted:
    """A model and its vocabularies.

    Attributes:
        source, target: Tokens by id; the same list if the vocabulary is joint.
        start: Id of the first decoder input; None if it is the language that a request names.
        end: Id of the end token.
    """

    model: Transformer
    source: list[str]
    target: list[str]
    start: int | None
    end: int


@torch.no_grad()
def read_converted(folder: Path, pad: int) -> Converted:
    """Reads the model of a directory, in 32-bit floats.

    For a decoder that starts from a zero vector, both vocabularies get one more token, ZERO_TOKEN, whose embedding is
    zero and which is never written.

    Args:
        folder: The directory.
        pad: Id of the padding token in the source.

    Raises:
        ExportError: A file is missing or damaged, the weights are integers, or the architecture is not supported.
    """
    path = folder / "model.bin"
    file = read_model_file(path)
    if file.spec != SPEC:
        raise ExportError(f"{path}: is a {file.spec}; only encoder-decoder Transformers ({SPEC}) can be imported")
    for name, what in REFUSED.items():
        if name in file and bool(file[name].any()):
            raise ExportError(f"{path}: {what} are not supported")
    if integers := [name for name in file.variables if name.endswith("weight_scale")]:
        weight = integers[0].removesuffix("_scale")
        raise ExportError(
            f"{path}: {weight} holds integers, which have lost precision; convert with float32 or float16"
        )
    settings = _json(folder / "config.json")
    source, target = _vocabulary(folder, "source"), _vocabulary(folder, "target")
    zero_start = _flag(file, "decoder/start_from_zero_embedding")
    zero = len(target) if zero_start else None
    start = zero if zero_start else _start(folder, settings, target)
    if zero_start:
        source, target = [*source, ZERO_TOKEN], [*target, ZERO_TOKEN]
    try:
        config = _config(file, settings, joint=source == target)
    except (ValidationError, KeyError) as error:
        raise ExportError(f"{path}: {_problem(error)}") from None
    model = Transformer(config, len(source), len(target), pad)
    try:
        _Filler(file, model, zero).fill()
    except (KeyError, RuntimeError, ValueError) as error:
        raise ExportError(f"{path}: {_problem(error)}") from None
    return Converted(model.eval(), source, target, start, _id(folder, settings, target, "eos_token"))


def _config(file: ModelFile, settings: dict[str, Any], *, joint: bool) -> ModelConfig:
    width = file["decoder/embeddings/weight"].size(1)
    heads = {stack: int(file[f"{stack}/num_heads"]) for stack in ("encoder", "decoder")}
    layers = {stack: _count(file, stack) for stack in heads}
    first = "encoder/layer_0/self_attention"
    inner = file[f"{first}/linear_0/weight"].size(0) // 3
    rms = f"{first}/layer_norm/beta" not in file
    epsilon = settings.get("layer_norm_epsilon") or (RMS_EPSILON if rms else LAYER_EPSILON)
    number = int(file["encoder/activation"])
    activations = _GATED if "encoder/layer_0/ffn/linear_0_noact/weight" in file else _ACTIVATIONS
    if number not in activations or number != int(file["decoder/activation"]):
        raise KeyError(f"activation {number}")
    relative = f"{first}/relative_attention_bias" in file
    positions = {stack: _positions(file, stack) for stack in heads}
    return ModelConfig(
        d_model=width,
        heads=heads["encoder"],
        decoder_heads=heads["decoder"],
        d_head=inner // heads["encoder"] if heads["encoder"] == heads["decoder"] else None,
        d_ff=file["encoder/layer_0/ffn/linear_0/weight"].size(0),
        decoder_d_ff=file["decoder/layer_0/ffn/linear_0/weight"].size(0),
        encoder_layers=layers["encoder"],
        decoder_layers=layers["decoder"],
        activation=activations[number],
        bias=f"{first}/linear_0/bias" in file,
        scaled_attention=f"{first}/queries_scale" not in file,
        norm="pre" if _flag(file, "encoder/pre_norm") else "post",
        norm_kind="rms" if rms else "layer",
        norm_epsilon=epsilon,
        positions="relative" if relative else "learned",
        relative_buckets=file[f"{first}/relative_attention_bias"].size(0) if relative else 32,
        relative_max_distance=int(file[f"{first}/relative_attention_max_distance"]) if relative else 128,
        embedding_scale=_scale(file, width),
        embedding_norm="sum" if "encoder/layernorm_embedding/gamma" in file else "none",
        share_embeddings=_shared(file, joint=joint),
        output_scale=_output_scale(file, width),
        dropout=0.0,
        max_source_length=positions["encoder"],
        max_target_length=positions["decoder"] - (0 if relative else 1),
    )


def _count(file: ModelFile, stack: str) -> int:
    count = 0
    while f"{stack}/layer_{count}/self_attention/linear_0/weight" in file:
        count += 1
    return count


def _positions(file: ModelFile, stack: str) -> int:
    name = f"{stack}/position_encodings/encodings"
    return file[name].size(0) if name in file else UNLIMITED


def _scale(file: ModelFile, width: int) -> bool:
    """Returns whether embeddings are multiplied by sqrt(d_model); the file has a switch or the factor itself."""
    scales = [file[f"{stack}/scale_embeddings"] for stack in ("encoder", "decoder")]
    factors = {float(s) if s.is_floating_point() else (math.sqrt(width) if s else 1.0) for s in scales}
    if factors == {1.0}:
        return False
    if len(factors) == 1 and math.isclose(factors.pop(), math.sqrt(width), rel_tol=1e-5):
        return True
    raise KeyError("a scale_embeddings other than 1 or the root of the width")


def _output_scale(file: ModelFile, width: int) -> bool:
    name = "decoder/scale_outputs"
    if name not in file or float(file[name]) in (0.0, 1.0):
        return False
    if file[name].is_floating_point() and not math.isclose(float(file[name]), width**-0.5, rel_tol=1e-5):
        raise KeyError("a scale_outputs other than 1 or the inverse root of the width")
    return True


def _shared(file: ModelFile, *, joint: bool) -> Any:
    source, target, head = "encoder/embeddings_0/weight", "decoder/embeddings/weight", "decoder/projection/weight"
    if file.same(source, target) and joint:
        return "all" if file.same(target, head) else "inputs"
    return "output" if file.same(target, head) else "none"


class _Filler:
    """Copies variables into a model.

    Args:
        zero: Id of a token whose embedding is zero and which is never written, or None.
    """

    def __init__(self, file: ModelFile, model: Transformer, zero: int | None) -> None:
        self._file, self._model, self._zero = file, model, zero

    def fill(self) -> None:
        model = self._model
        self._table(model.encoder.embedding.tokens.weight, "encoder/embeddings_0/weight")
        self._table(model.decoder.embedding.tokens.weight, "decoder/embeddings/weight")
        self._table(model.decoder.projection.weight, "decoder/projection/weight")
        for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
            embedding = stack.embedding
            if embedding.positions is not None:
                encodings = self._file[f"{name}/position_encodings/encodings"]
                embedding.positions.copy_(encodings[: len(embedding.positions)])
            if embedding.norm_input != "none":
                self._norm(embedding.norm, f"{name}/layernorm_embedding")
            for relative in cast(Any, stack.relative):
                self._copy(relative.table.weight, f"{name}/layer_0/self_attention/relative_attention_bias")
            for index, layer in enumerate(cast(Any, stack.layers)):
                self._layer(layer, f"{name}/layer_{index}")
            if f"{name}/layer_norm/gamma" in self._file:
                self._norm(stack.norm, f"{name}/layer_norm")
        model.decoder.logit_bias = self._bias()

    def _bias(self) -> Tensor | None:
        name, size = "decoder/projection/bias", self._model.decoder.projection.weight.size(0)
        bias = torch.zeros(size)
        if name in self._file:
            found = self._file[name].float()
            bias[: len(found)] = found
        if self._zero is not None:
            bias[self._zero] = -torch.inf
        return bias if bias.any() else None

    def _table(self, parameter: Tensor, name: str) -> None:
        rows = self._file[name].float()
        if not len(rows) <= len(parameter) <= len(rows) + 1:
            raise ValueError(f"{name} has {len(rows)} rows, but the vocabulary has {len(parameter)} tokens")
        parameter[: len(rows)] = rows
        parameter[len(rows) :] = 0

    def _layer(self, layer: EncoderLayer | DecoderLayer, name: str) -> None:
        norms = [cast(Residual, residual).norm for residual in layer.residuals]
        self._self_attention(layer.self_attention, f"{name}/self_attention")
        self._norm(norms[0], f"{name}/self_attention/layer_norm")
        if isinstance(layer, DecoderLayer):
            attention, cross = layer.cross_attention, f"{name}/attention"
            self._linear(attention.query, f"{cross}/linear_0")
            self._linear(attention.key_value, f"{cross}/linear_1")
            self._linear(attention.output, f"{cross}/linear_2")
            self._norm(norms[1], f"{cross}/layer_norm")
        feed = layer.feed_forward
        gate = f"{name}/ffn/linear_0_noact"
        names = [f"{name}/ffn/linear_0"] + ([gate] if f"{gate}/weight" in self._file else [])
        for part, parameter in feed.expand.named_parameters():
            for rows, own in zip(parameter.chunk(len(names)), names, strict=True):
                self._copy(rows, f"{own}/{part}")
        self._linear(feed.contract, f"{name}/ffn/linear_1")
        self._norm(norms[-1], f"{name}/ffn/layer_norm")

    def _self_attention(self, attention: MultiHeadAttention, name: str) -> None:
        inner = attention.query.weight.size(0)
        for part, parameter in attention.query.named_parameters():
            parameter.copy_(self._file[f"{name}/linear_0/{part}"][:inner])
        for part, parameter in attention.key_value.named_parameters():
            parameter.copy_(self._file[f"{name}/linear_0/{part}"][inner:])
        self._linear(attention.output, f"{name}/linear_1")

    def _linear(self, module: nn.Module, name: str) -> None:
        for part, parameter in module.named_parameters():
            self._copy(parameter, f"{name}/{part}")

    def _norm(self, module: nn.Module, name: str) -> None:
        for part, parameter in module.named_parameters():
            self._copy(parameter, f"{name}/{'gamma' if part == 'weight' else 'beta'}")

    def _copy(self, parameter: Tensor, name: str) -> None:
        value = self._file[name]
        if value.shape != parameter.shape:
            shapes = f"{list(value.shape)}; expected {list(parameter.shape)}"
            raise ValueError(f"{name} has the shape {shapes}")
        parameter.copy_(value)


def _flag(file: ModelFile, name: str) -> bool:
    return name in file and bool(file[name])


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ExportError(f"{path.parent}: no model of CTranslate2 here; {path.name} is missing") from None
    except (OSError, ValueError) as error:
        raise ExportError(f"{path}: cannot be read as JSON ({error})") from None


def _vocabulary(folder: Path, side: str) -> list[str]:
    shared = folder / "shared_vocabulary.json"
    path = shared if shared.exists() else folder / f"{side}_vocabulary.json"
    tokens = _json(path)
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ExportError(f"{path}: expected a list of tokens")
    return tokens


def _start(folder: Path, settings: dict[str, Any], target: list[str]) -> int | None:
    key = "decoder_start_token"
    return None if settings.get(key, "") is None else _id(folder, settings, target, key)


def _id(folder: Path, settings: dict[str, Any], target: list[str], key: str) -> int:
    token = settings.get(key)
    if token not in target:
        raise ExportError(f"{folder / 'config.json'}: {key} is {token!r}, which is not in the target vocabulary")
    return target.index(token)


def _problem(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return str(error.errors()[0]["msg"])
    if isinstance(error, KeyError):
        name = str(error.args[0])
        return f"variable {name} is missing" if "/" in name and " " not in name else f"{name} is not supported"
    return str(error).splitlines()[0]
