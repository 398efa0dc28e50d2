"""Rewrites products to 8-bit integers: weights with a scale for each output, activations with a constant scale.

A scale for activations found while the graph runs would cover the whole batch, so answers would depend on the other
rows. A constant one does not, and costs less: no pass over the activations to find their range.

Weights in products have 7 bits, so that the same graph is exact on every CPU. x86 without VNNI adds pairs of products
of an unsigned and a signed byte in 16 bits, and saturates at 32,767: 255 * 63 * 2 = 32,130 fits, 255 * 127 * 2
does not.
"""

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from dragoman_export.precision.calibration import Range
from dragoman_export.precision.editable_graph import CONTRIB, EditableGraph, Floats, Product
from dragoman_export.precision.int8_shortlist import multiply_listed
from dragoman_export.precision.scales import LARGEST_FACTOR, LARGEST_IN_TABLE, activation_scale, by_output


def quantize(graph: EditableGraph, ranges: Mapping[str, Range], kept: Collection[str]) -> None:
    """Rewrites the products and tables of a graph.

    Args:
        graph: The graph to rewrite.
        ranges: Activation ranges by key of a weight; weights without one stay as they are.
        kept: Keys of the weights that stay as they are.
    """
    tables: dict[str, tuple[str, str]] = {}
    for product in list(graph.products()):
        if product.key in kept or product.key not in ranges:
            continue
        names = _store(graph, product.weight, LARGEST_FACTOR, transposed=product.transposed)
        if product.transposed:
            tables[product.weight] = names
            multiply_listed(graph, product.weight, names, ranges[product.key])
        _multiply(graph, product, names, ranges[product.key])
    for table in graph.lookup_tables():
        # A table that is a factor in another graph has that graph's integers here too, so that it is stored once.
        factor = graph.key(table) in ranges and graph.key(table) not in kept
        tables[table] = _store(graph, table, LARGEST_FACTOR if factor else LARGEST_IN_TABLE, transposed=True)
    for table, names in tables.items():
        for node in graph.lookups(table):
            _look_up(graph, node, *names)


def _store(graph: EditableGraph, weight: str, largest: int, *, transposed: bool) -> tuple[str, str]:
    """Adds a weight's integers and their scales [out]; returns both names."""

    def compute(values: Floats) -> tuple[NDArray[np.int8], Floats]:
        return by_output(values, largest)

    quantized, scales = graph.rounded(weight, f"int8 to {largest}", compute, transposed=transposed)
    stored = quantized if transposed else quantized.T
    return graph.add(f"{weight}.int8", stored), graph.add(f"{weight}.scale", scales)


def _multiply(graph: EditableGraph, product: Product, names: tuple[str, str], seen: Range) -> None:
    weight, scales = names
    node, x = product.node, product.x
    nodes: list[NodeProto] = []
    factor = graph.row_factor(x)
    if factor is not None:
        x = factor[0]
    scale, zero = activation_scale(seen)
    quantized = f"{x}.int8"
    if quantized not in graph.makers:
        inputs = [x, graph.add(f"{x}.scale", scale), graph.add(f"{x}.zero", zero)]
        nodes.append(helper.make_node("QuantizeLinear", inputs, [quantized], name=quantized))
    if product.transposed:
        turned = f"{weight}.turned"
        if turned not in graph.makers:  # folded once, when the graph is loaded
            nodes.append(helper.make_node("Transpose", [weight], [turned], name=turned, perm=[1, 0]))
        weight = turned
    inputs = [quantized, weight, f"{x}.scale", scales, f"{x}.zero", graph.add("zero.int8", np.array(0, np.int8))]
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


def _look_up(graph: EditableGraph, node: NodeProto, table: str, scales: str) -> None:
    """Gathers rows of a quantized table and dequantizes them with the scale of each."""
    output = node.output[0]
    width = graph.values(table).shape[1]
    column = graph.add(f"{scales}.column", graph.values(scales)[:, None])
    ids = node.input[1]
    rows, factors = f"{output}.rows", f"{output}.factors"
    graph.replace(
        node,
        helper.make_node("Gather", [table, ids], [rows], name=rows),
        helper.make_node("Gather", [column, ids], [factors], name=factors),
        helper.make_node("DequantizeLinear", [rows, factors], [output], name=output, axis=-1, block_size=width),
    )
