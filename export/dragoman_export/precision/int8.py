"""Products of 8-bit integers: weights with a scale for each output, activations with one that was found on data.

A scale for activations that is found while the graph runs would be one for the whole batch, and make answers depend on
who else is in it. A constant one does not, and costs less: no pass over the activations to find their range.

Weights that are multiplied have 7 bits, so that the same graph is exact on every CPU. x86 without VNNI adds pairs of
products of an unsigned and a signed byte in 16 bits, and cuts the sum off at 32,767: 255 * 63 * 2 = 32,130 fits, and
255 * 127 * 2 does not.
"""

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from dragoman_export.precision import scales
from dragoman_export.precision.calibration import Range
from dragoman_export.precision.editable_graph import CONTRIB, Floats, Graph, Product

MULTIPLIED = 63  # the largest integer of a weight that is multiplied: symmetric around zero
LOOKED_UP = 127  # and of a table of which only rows are wanted


def quantize(graph: Graph, seen: Mapping[str, Range], kept: Collection[str]) -> None:
    """Rewrites the products of a graph.

    Args:
        seen: by key of a weight; one that is not there stays as it is.
        kept: keys of the weights that stay as they are.
    """
    tables: dict[str, tuple[str, str]] = {}
    for product in list(graph.products()):
        if product.key in kept or product.key not in seen:
            continue
        names = _store(graph, product.weight, MULTIPLIED, transposed=product.transposed)
        if product.transposed:
            tables[product.weight] = names
        _multiply(graph, product, names, seen[product.key])
    tables |= {table: _store(graph, table, LOOKED_UP, transposed=True) for table in graph.tables()}
    for table, names in tables.items():
        for node in graph.lookups(table):
            _look_up(graph, node, *names)


def _store(graph: Graph, weight: str, largest: int, *, transposed: bool) -> tuple[str, str]:
    """Names of a weight's integers and of their scales [out]."""
    values = graph.values(weight)
    quantized, factors = by_output(values if transposed else values.T, largest)
    stored = quantized if transposed else np.ascontiguousarray(quantized.T)
    return graph.add(f"{weight}.int8", stored), graph.add(f"{weight}.scale", factors)


def by_output(weight: Floats, largest: int = MULTIPLIED) -> tuple[NDArray[np.int8], Floats]:
    """A weight [out, in] as integers from -largest to largest, and what to multiply each row by [out]."""
    peaks = np.abs(weight).max(1, keepdims=True)
    reaching = np.where(peaks == 0, 1, peaks / largest).astype(np.float32)
    integers, factors = scales.quantize(weight, reaching, -largest, largest)
    return integers.astype(np.int8), factors[:, 0]


def _multiply(graph: Graph, product: Product, names: tuple[str, str], seen: Range) -> None:
    weight, factors = names
    node, x = product.node, product.x
    nodes: list[NodeProto] = []
    factor = _row_factor(graph, x)
    if factor is not None:
        x = factor[0]
    scale, zero = activation_scale(seen)
    quantized = f"{x}.int8"
    if quantized not in graph.makers:
        inputs = [x, graph.add(f"{x}.scale", scale), graph.add(f"{x}.zero", zero)]
        nodes.append(helper.make_node("QuantizeLinear", inputs, [quantized], name=quantized))
    if product.transposed:
        turned = f"{weight}.turned"
        if turned not in graph.makers:  # done once, when the graph is loaded
            nodes.append(helper.make_node("Transpose", [weight], [turned], name=turned, perm=[1, 0]))
        weight = turned
    inputs = [quantized, weight, f"{x}.scale", factors, f"{x}.zero", graph.add("zero.int8", np.array(0, np.int8))]
    if product.bias is not None:
        inputs.append(product.bias)
    output = node.output[0]
    product_output = f"{output}.product" if factor else output
    nodes.append(
        helper.make_node("MatMulIntegerToFloat", inputs, [product_output], name=f"{output}.int8", domain=CONTRIB)
    )
    if factor:
        nodes.append(helper.make_node("Mul", [product_output, factor[1]], [output], name=f"{output}.factor"))
    graph.replace(node, *nodes)


def _row_factor(graph: Graph, x: str) -> tuple[str, str] | None:
    """Where activations are rows times a factor that the caller gives for each: both names.

    The factor, an inverse temperature, moves behind the product: it has no bounds, and the scale of the integers has.
    """
    maker = graph.makers.get(x)
    given = {value.name for value in graph.proto.input}
    if maker is None or maker.op_type != "Mul" or maker.input[1] not in given:
        return None
    return maker.input[0], maker.input[1]


def activation_scale(seen: Range) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """The step between two integers, and the one that means zero."""
    least, most = min(float(seen.least.min()), 0.0), max(float(seen.most.max()), 0.0)
    scale = (most - least) / 255 or 1.0
    return np.array(scale, np.float32), np.array(round(-least / scale), np.uint8)


def _look_up(graph: Graph, node: NodeProto, weight: str, scales: str) -> None:
    """Rows of a table that is stored as integers: gathered, then made numbers again with the scale of each."""
    output = node.output[0]
    width = graph.values(weight).shape[1]
    column = graph.add(f"{scales}.column", graph.values(scales)[:, None])
    ids = node.input[1]
    rows, factors = f"{output}.rows", f"{output}.factors"
    graph.replace(
        node,
        helper.make_node("Gather", [weight, ids], [rows], name=rows),
        helper.make_node("Gather", [column, ids], [factors], name=factors),
        helper.make_node("DequantizeLinear", [rows, factors], [output], name=output, axis=-1, block_size=width),
    )
