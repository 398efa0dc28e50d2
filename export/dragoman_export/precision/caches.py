"""Rewrites the caches to 8-bit integers with a scale for each component of keys and values.

A step reads everything that its rows have cached, which for many rows exceeds a processor's caches: reading a quarter
of the bytes takes less time. For few rows or short sequences, dequantizing costs more than it saves.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from onnx import NodeProto, TensorProto, helper

from dragoman_export.checks.affordable import reserved_rows
from dragoman_export.checks.step_timing import fastest_steps
from dragoman_export.graphs.onnx_model import OnnxModel
from dragoman_export.precision.calibration import Feed
from dragoman_export.precision.editable_graph import CONTRIB, EditableGraph, Floats
from dragoman_server.bundle.load import Bundle
from dragoman_server.runtime.device import CPU
from dragoman_server.runtime.graph_check import is_cache
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions

TIMED_ROWS = 32
WORTHWHILE = 0.95  # share of the time with floats that steps with integers may take, to be worth their loss
GQA_INPUTS = 14  # inputs of GroupQueryAttention, up to the scales of keys and values
MOVES = ("Gather", "Reshape", "Split", "Transpose")  # operators that move numbers without changing them

Scales = Mapping[str, Floats]
"""Scales by name of the cache, see `scales.cache_scales`."""


def are_faster(with_floats: Bundle, with_integers: Bundle, feeds: Sequence[Feed], threads: int) -> bool:
    """Returns whether integers in the caches make steps faster, in the middle of targets like those of the feeds."""
    rows = reserved_rows(with_floats.manifest, TIMED_ROWS)
    some = [feeds[i % len(feeds)] for i in range(rows)]
    middle = sum(feed["target_ids"].size for feed in some) // (2 * len(some))
    runtimes = [Runtime(Sessions(bundle, CPU, threads), rows) for bundle in (with_floats, with_integers)]
    for runtime in runtimes:
        runtime.encode([feed["source_ids"][0].tolist() for feed in some], 0)
        runtime.positions[:] = middle
    floats, integers = fastest_steps(runtimes, rows)
    return integers <= WORTHWHILE * floats


def quantize(model: OnnxModel, scales: Scales) -> None:
    """Makes the caches that a graph reads or writes integers; the scorer has none."""
    graph = EditableGraph(model)
    if any(is_cache(value.name) for value in graph.proto.input):
        _quantize_decoder(graph, scales)
    elif any(value.name in scales for value in graph.proto.output):
        _quantize_encoder(graph, scales)
    graph.finish()


def _quantize_decoder(graph: EditableGraph, scales: Scales) -> None:
    """Makes the attention operators read and write integers."""
    for value in [*graph.proto.input, *graph.proto.output]:
        if value.name.removesuffix("_out") in scales:
            value.type.tensor_type.elem_type = TensorProto.INT8
    for node in list(graph.nodes):
        if node.op_type == "GroupQueryAttention":
            caches = node.input[3], node.input[4]
            node.input.extend([""] * (GQA_INPUTS - 2 - len(node.input)))
            node.input.extend(graph.add(f"{name}.scale", scales[name]) for name in caches)
            kinds = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
            node.attribute.extend(helper.make_attribute(name, kind) for name, kind in kinds.items())
        elif node.op_type == "Gather" and node.input[0] in scales:
            _dequantize(graph, node, scales)


def _dequantize(graph: EditableGraph, node: NodeProto, scales: Scales) -> None:
    """Dequantizes rows that a Gather reads from a cache."""
    name = node.input[0]
    output, rows, floats = node.output[0], f"{node.output[0]}.rows", f"{node.output[0]}.floats"
    gather = NodeProto.FromString(node.SerializeToString())
    gather.output[0] = rows
    graph.replace(
        node,
        gather,
        helper.make_node("Cast", [rows], [floats], name=floats, to=TensorProto.FLOAT),
        helper.make_node("Mul", [floats, graph.add(f"{name}.scale", scales[name])], [output], name=f"{output}.scaled"),
    )


def _quantize_encoder(graph: EditableGraph, scales: Scales) -> None:
    """Makes the encoder output integers, quantized before anything is padded or moved.

    Keys and values of all layers are one product, whose columns are in the order of the caches.
    """
    names = [value.name for value in graph.proto.output if value.name in scales]
    for value in graph.proto.output:
        if value.name in scales:
            value.type.tensor_type.elem_type = TensorProto.INT8
    first, projected = _first_move(graph, names)
    inverse = np.concatenate([1 / scales[name].reshape(-1) for name in names])
    scaled, quantized = f"{projected}.scaled", f"{projected}.integers"
    one, zero = graph.add("one", np.array(1, np.float32)), graph.add("zero.int8", np.array(0, np.int8))
    moved = NodeProto.FromString(first.SerializeToString())
    moved.input[0] = quantized
    graph.replace(
        first,
        helper.make_node("Mul", [projected, graph.add(f"{projected}.inverse", inverse)], [scaled], name=scaled),
        helper.make_node("QuantizeLinear", [scaled, one, zero], [quantized], name=quantized),
        moved,
    )


def _first_move(graph: EditableGraph, names: Sequence[str]) -> tuple[NodeProto, str]:
    """Returns the first node that moves the result of the product, and that result's name."""
    first = {id(node): node for name in names for *_, node in [_moves_before(graph, name)]}
    [node] = first.values()
    return node, node.input[0]


def _moves_before(graph: EditableGraph, name: str) -> Iterator[NodeProto]:
    while (node := graph.makers.get(name)) is not None and node.op_type in MOVES and node.domain != CONTRIB:
        yield node
        name = node.input[0]
