"""Caches of 8-bit integers, with a scale for each component of keys and values that was found on data.

A step reads all that its rows have cached, which at many rows is more than a processor's caches hold: a quarter of the
bytes is read in less time. With few rows, or where sequences are short, making numbers of the integers costs more.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper

from dragoman_export.checks.step_timing import least_seconds
from dragoman_export.precision.calibration import Feed
from dragoman_export.precision.editable_graph import CONTRIB, Floats, Graph
from dragoman_server.bundle.load import Bundle
from dragoman_server.runtime.device import CPU
from dragoman_server.runtime.graph_check import is_cache
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions

LARGEST = 127  # of an integer in a cache: symmetric around zero
ROWS = 32  # decoded together, to see what they cache and how long they take
WORTH = 0.95  # of the time with floats, that steps with integers may take to be worth their loss
INPUTS = 14  # of GroupQueryAttention, up to the scales of keys and values
MOVES = ("Gather", "Reshape", "Split", "Transpose")  # change where numbers stand, not what they are

Scales = Mapping[str, Floats]


def find_scales(exact: Bundle, feeds: Sequence[Feed], threads: int) -> dict[str, Floats]:
    """What an integer stands for, by name of the cache: float32 [1, heads, 1, d_head].

    Args:
        exact: in fp32.
        feeds: inputs of the scorer: sources, and targets that are decoded whatever the model would say.
    """
    runtime = Runtime(Sessions(exact, CPU, threads), ROWS)
    shape = exact.manifest.shape
    most = {
        f"{which}_{part}_{layer}": np.zeros((1, shape.heads, 1, shape.d_head), np.float32)
        for which in ("self", "cross")
        for layer in range(shape.decoder_layers)
        for part in ("key", "value")
    }
    for start in range(0, len(feeds), ROWS):
        lengths = _decode(runtime, feeds[start : start + ROWS])
        for name, seen in most.items():
            memory, plane = runtime.pool.place(name)
            for row, length in enumerate(lengths[name.split("_")[0]]):
                cached = np.abs(memory.read(plane, row)[:, :length]).max(1, keepdims=True)
                np.maximum(seen, cached, out=seen)
    return {name: np.where(seen == 0, 1, seen / LARGEST).astype(np.float32) for name, seen in most.items()}


def _decode(runtime: Runtime, feeds: Sequence[Feed]) -> dict[str, list[int]]:
    """Fills one row for each feed; tells how many positions of the caches are its own."""
    targets = [feed["target_ids"][0] for feed in feeds]
    rows, longest = len(feeds), max(map(len, targets))
    ids = np.zeros((rows, longest), np.int64)
    for row, target in enumerate(targets):
        ids[row, : len(target)] = target
    runtime.encode([feed["source_ids"][0].tolist() for feed in feeds], 0)
    for place in range(longest):
        runtime.tokens[:rows, 0] = ids[:, place]
        runtime.positions[:rows] = place
        runtime.top(rows, 1)
    return {"self": [len(target) for target in targets], "cross": runtime.source_lengths[:rows].tolist()}


def pays(plain: Bundle, integers: Bundle, feeds: Sequence[Feed], threads: int) -> bool:
    """Whether steps are faster with integers in the caches, in the middle of such targets and after such sources.

    Args:
        plain: with floats in them, otherwise the same.
        integers: with integers.
    """
    some = [feeds[i % len(feeds)] for i in range(ROWS)]
    middle = sum(feed["target_ids"].size for feed in some) // (2 * len(some))
    runtimes = [Runtime(Sessions(bundle, CPU, threads), ROWS) for bundle in (plain, integers)]
    for runtime in runtimes:
        runtime.encode([feed["source_ids"][0].tolist() for feed in some], 0)
        runtime.positions[:] = middle
    floats, others = least_seconds(runtimes, ROWS)
    return others <= WORTH * floats


def quantize_decoder(graph: Graph, scales: Scales) -> None:
    """Lets the attentions read and write integers."""
    for value in [*graph.proto.input, *graph.proto.output]:
        if value.name.removesuffix("_out") in scales:
            value.type.tensor_type.elem_type = TensorProto.INT8
    for node in list(graph.nodes):
        if node.op_type == "GroupQueryAttention":
            key, value_ = node.input[3], node.input[4]
            node.input.extend([""] * (INPUTS - 2 - len(node.input)))
            node.input.extend(graph.add(f"{name}.scale", scales[name]) for name in (key, value_))
            kinds = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
            node.attribute.extend(helper.make_attribute(name, kind) for name, kind in kinds.items())
        elif node.op_type == "Gather" and node.input[0] in scales:
            _read(graph, node, scales)


def _read(graph: Graph, node: NodeProto, scales: Scales) -> None:
    """Makes numbers again of rows that somebody else than an attention takes out of a cache."""
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


def quantize_encoder(graph: Graph, scales: Scales) -> None:
    """Lets the encoder give integers, made before anything is padded or moved.

    Keys and values of all layers are one product, and the order of the caches is that of its columns.
    """
    names = [value.name for value in graph.proto.output if value.name in scales]
    for value in graph.proto.output:
        if value.name in scales:
            value.type.tensor_type.elem_type = TensorProto.INT8
    first, projected = _source(graph, names)
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


def _source(graph: Graph, names: Sequence[str]) -> tuple[NodeProto, str]:
    """The first node that moves what the product gives, and what that gives."""
    first = {id(node): node for name in names for *_, node in [_back(graph, name)]}
    [node] = first.values()
    return node, node.input[0]


def _back(graph: Graph, name: str) -> Iterator[NodeProto]:
    while (node := graph.makers.get(name)) is not None and node.op_type in MOVES and node.domain != CONTRIB:
        yield node
        name = node.input[0]


def rewrite(model: onnx.ModelProto, scales: Scales) -> None:
    """Makes the caches integers that a graph reads or writes; the scorer has none."""
    graph = Graph(model)
    given = {value.name for value in graph.proto.input}
    if any(is_cache(name) for name in given):
        quantize_decoder(graph, scales)
    elif any(value.name in scales for value in graph.proto.output):
        quantize_encoder(graph, scales)
    graph.finish()
