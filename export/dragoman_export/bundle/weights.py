"""Restores the PyTorch model from a bundle's graphs, with exactly the weights that are served.

Weights of an int8 bundle are dequantized. Bundles with blockwise integers are not supported.

Initializers of equal content share a name in the graphs, and bias vectors of zeros are left out. So weights are found
by their use: the nodes with weights, in the order of computation, correspond to the modules in the same order. The
projection to shortlists has no weights of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from math import sqrt
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import Tensor, nn

from dragoman_server.bundle.load import Bundle
from dragoman_training.data.tokenizers import NEVER_GENERATED
from dragoman_training.model import ModelConfig, Transformer
from dragoman_training.model.layers import DecoderLayer, EncoderLayer
from dragoman_training.model.parts import decoder_layers, encoder_layers, last_norm, norms, position_table

Array = NDArray[np.float32]
INTEGERS, ROW_SCALES = ".int8", ".scale.column"  # suffixes of the names of a quantized table's parts


# Architectures whose folding can be undone: the supported values of these keys.
_READABLE: dict[str, tuple[Any, ...]] = {
    "bias": (True,),
    "scaled_attention": (True,),
    "norm_kind": ("layer",),
    "positions": ("sinusoidal", "sinusoidal_halves", "sinusoidal_fairseq", "learned"),
    "embedding_scale": (True,),
    "embedding_norm": ("none",),
    "decoder_embedding_norm": (None, "none"),
    "output_scale": (False,),
    "output_bias": (False,),
}


class UnreadableGraphError(Exception):
    """The graphs are not those of the model in the manifest."""


@dataclass
class GraphWeights:
    """The weights of a graph, each kind in the order of computation.

    Attributes:
        linears: Weight [out, in] and bias [out] (None: zeros) of the linear maps.
        norms: Gain and bias of the norms.
        tables: Tables by the graph input whose ids are looked up ("" for positions, which the encoder counts itself).
        scaled: Whether the query projections include the attention's scale.
    """

    linears: list[tuple[Array, Array | None]] = field(default_factory=list)
    norms: list[tuple[Array, Array]] = field(default_factory=list)
    tables: dict[str, Array] = field(default_factory=dict)
    scaled: bool = False


def load_model(bundle: Bundle) -> Transformer:
    """Returns the model that a bundle was exported from, in evaluation mode.

    Raises:
        UnreadableGraphError: The manifest does not describe the model, the graphs do not match it, or the architecture
            is one whose weights are folded in ways that are not undone here.
    """
    document: Any = bundle.manifest.training
    try:
        config = ModelConfig.model_validate(document["recipe"]["model"])
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableGraphError(
            f"{bundle.path}: the manifest's training.recipe.model is no model: {error}"
        ) from None
    for key, values in _READABLE.items():
        if getattr(config, key) not in values:
            expected = " or ".join(map(str, values))
            raise UnreadableGraphError(
                f"{bundle.path}: model.{key} is {getattr(config, key)}; only with {expected} can weights be read back"
            )
    shape = bundle.manifest.shape
    model = Transformer(config, shape.source_vocabulary, shape.target_vocabulary, bundle.manifest.tokens.pad).eval()
    encoder, decoder = (read_weights(onnx.load(path).graph) for path in (bundle.encoder, bundle.decoder))
    try:
        fill_model(model, encoder, decoder)
    except (StopIteration, KeyError, RuntimeError) as error:
        raise UnreadableGraphError(
            f"{bundle.path}: the graphs are not those of the manifest's model: {error!r}"
        ) from None
    model.decoder.forbid(NEVER_GENERATED)  # as in the exported model
    return model


@torch.no_grad()
def fill_model(model: Transformer, encoder: GraphWeights, decoder: GraphWeights) -> None:
    """Copies the weights of the graphs into a model of the same shape.

    Undoes what export folds: scales of embeddings and attentions, and concatenated matrices.

    Raises:
        StopIteration, KeyError, RuntimeError: The graphs have another shape.
    """
    scale = sqrt(model.config.d_model)
    linears, gains = iter(encoder.linears), iter(encoder.norms)
    _copy_rows(model.encoder.embedding.tokens.weight, encoder.tables["source_ids"] / scale)
    for layer in encoder_layers(model):
        _fill_layer(layer, linears, gains)
    if isinstance(model.encoder.norm, nn.LayerNorm):
        _fill_norm(model.encoder.norm, gains)
    _fill_memory(linears, [layer.cross_attention.key_value for layer in decoder_layers(model)])

    linears, gains = iter(decoder.linears), iter(decoder.norms)
    _copy_rows(model.decoder.embedding.tokens.weight, decoder.tables["token_ids"] / scale)
    for decoder_layer in decoder_layers(model):
        _fill_layer(decoder_layer, linears, gains)
    if isinstance(model.decoder.norm, nn.LayerNorm):
        _fill_norm(model.decoder.norm, gains)
    if model.config.share_embeddings in ("none", "inputs"):
        _copy_rows(model.decoder.projection.weight, next(linears)[0])
    else:
        for parameter in last_norm(model).parameters():
            parameter.mul_(scale)
    if model.config.positions == "learned":
        _copy(position_table(model.encoder.embedding), encoder.tables[""])
        _copy(position_table(model.decoder.embedding), decoder.tables["positions"])
    if decoder.scaled:
        attentions = [layer.self_attention for layer in encoder_layers(model)]
        for decoder_layer in decoder_layers(model):
            attentions += [decoder_layer.self_attention, decoder_layer.cross_attention]
        for query, heads in ((attention.query, attention.heads) for attention in attentions):
            for parameter in query.parameters():
                parameter.mul_(sqrt(query.out_features // heads))


def _fill_layer(
    layer: EncoderLayer | DecoderLayer,
    linears: Iterator[tuple[Array, Array | None]],
    gains: Iterator[tuple[Array, Array]],
) -> None:
    own = layer.self_attention
    _fill_linears(linears, own.query, own.key_value)
    _fill_linears(linears, own.output)
    if isinstance(layer, DecoderLayer):
        _fill_linears(linears, layer.cross_attention.query)
        _fill_linears(linears, layer.cross_attention.output)
    _fill_linears(linears, layer.feed_forward.expand)
    _fill_linears(linears, layer.feed_forward.contract)
    for norm in norms(layer):
        _fill_norm(norm, gains)


def _fill_memory(source: Iterator[tuple[Array, Array | None]], linears: list[nn.Linear]) -> None:
    """Fills the source projections: one linear map for all layers, or one for each in older bundles."""
    weight, bias = next(source)
    source = chain([(weight, bias)], source)
    if len(weight) == sum(linear.out_features for linear in linears):
        _fill_linears(source, *linears)
    else:
        for linear in linears:
            _fill_linears(source, linear)


def _fill_linears(source: Iterator[tuple[Array, Array | None]], *linears: nn.Linear) -> None:
    """Splits one linear map of the graph into one or several of the model."""
    weight, bias = next(source)
    start = 0
    for linear in linears:
        end = start + linear.out_features
        _copy(linear.weight, weight[start:end])
        linear.bias.copy_(torch.zeros(end - start) if bias is None else torch.from_numpy(bias[start:end]))
        start = end
    if start != len(weight):
        raise RuntimeError(f"a linear map has {len(weight)} outputs where {start} were expected")


def _fill_norm(norm: nn.LayerNorm, source: Iterator[tuple[Array, Array]]) -> None:
    gain, bias = next(source)
    _copy(norm.weight, gain)
    _copy(norm.bias, bias)


def _copy_rows(table: Tensor, values: Array) -> None:
    """Fills a table, without the rows that pad it for tokens that do not exist."""
    _copy(table, values[: len(table)])


def _copy(parameter: Tensor, values: Array) -> None:
    if parameter.shape != values.shape:
        raise RuntimeError(f"a tensor has shape {list(values.shape)} where {list(parameter.shape)} was expected")
    parameter.copy_(torch.from_numpy(np.ascontiguousarray(values)))


def read_weights(graph: onnx.GraphProto) -> GraphWeights:
    """Returns the weights of a graph by their use."""
    tensors = {t.name: t for t in graph.initializer}
    consumers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)

    def array(name: str) -> Array:
        """Returns an initializer as floats. Integers of lookup tables, see precision.int8, are dequantized."""
        values = numpy_helper.to_array(tensors[name]).astype(np.float32)
        scales = tensors.get(name.removesuffix(INTEGERS) + ROW_SCALES) if name.endswith(INTEGERS) else None
        return values if scales is None else values * numpy_helper.to_array(scales)

    result = GraphWeights()
    turned: dict[str, str] = {}  # quantized tables that are also factors: [out, in] in the file
    origin = {value.name: value.name for value in graph.input}  # the graph input behind each reshaped or packed value
    for node in graph.node:
        weights = [name for name in node.input if name in tensors]
        if node.op_type in ("Squeeze", "Cast", "Reshape", "GatherND", "GatherElements") and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        elif node.op_type in ("Attention", "GroupQueryAttention"):
            result.scaled |= any(a.name == "scale" and a.f == 1 for a in node.attribute)
        elif node.op_type == "LayerNormalization":
            bias = array(node.input[2]) if len(node.input) > 2 else np.zeros_like(array(node.input[1]))
            result.norms.append((array(node.input[1]), bias))
        elif node.op_type == "Gather" and node.input[0] in tensors and not node.input[0].endswith(ROW_SCALES):
            result.tables[origin.get(node.input[1], "")] = array(node.input[0])
        elif node.op_type == "Gemm" and node.input[1] in tensors:
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            weight = array(node.input[1])
            bias_ = array(node.input[2]) if len(node.input) > 2 and node.input[2] else None
            result.linears.append((weight if transposed else weight.T, bias_))
        elif node.op_type == "Transpose" and node.input[0] in tensors:
            turned[node.output[0]] = node.input[0]
        elif node.op_type == "MatMulIntegerToFloat":
            name, scales = node.input[1], node.input[3]
            bias_ = array(node.input[6]) if len(node.input) > 6 and node.input[6] else None
            result.linears.append((array(turned[name]) if name in turned else (array(name) * array(scales)).T, bias_))
        elif node.op_type == "MatMul" and node.input[1] in tensors:
            following = consumers.get(node.output[0], [])
            added = [n for f in following if f.op_type == "Add" for n in f.input if n in tensors]
            result.linears.append((array(weights[0]).T, array(added[0]) if added else None))
    return result
