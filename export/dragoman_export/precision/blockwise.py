"""Rewrites products to weights of 8 or 4 bits with a scale for each block of inputs, by ONNX Runtime's `MatMulNBits`.

The operator quantizes each row of activations with a scale of its own for each block, so a row's result does not depend
on other rows.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from dragoman_export.precision.editable_graph import CONTRIB, EditableGraph, Floats, Product
from dragoman_export.precision.scales import BLOCK, by_block

ACCURACY_LEVEL = 4  # activations are multiplied as 8-bit integers


def quantize(graph: EditableGraph, bits: Mapping[str, int]) -> None:
    """Rewrites the products and tables of a graph.

    Args:
        graph: The graph to rewrite.
        bits: 8 or 4 by key of a weight; other weights stay as they are.
    """
    tables: dict[str, tuple[int, str, str]] = {}
    for product in list(graph.products()):
        width = bits.get(product.key)
        if width is None:
            continue
        stored, scales = _multiply(graph, product, width)
        if product.transposed and graph.values(product.weight).shape[1] % BLOCK == 0:
            tables[product.weight] = width, stored, scales
    for table in graph.lookup_tables():
        values = graph.values(table)
        if values.shape[1] % BLOCK == 0:
            integers, block_scales = _rounded(graph, table, 8, transposed=True)
            tables[table] = 8, graph.add(f"{table}.int8", integers), graph.add(f"{table}.scales", block_scales)
    for table, (width, stored, scales) in tables.items():
        _look_up(graph, table, width, stored, scales)


def _rounded(graph: EditableGraph, weight: str, bits: int, *, transposed: bool) -> tuple[NDArray[np.uint8], Floats]:
    def compute(values: Floats) -> tuple[NDArray[np.uint8], Floats]:
        return by_block(values, bits)

    return graph.rounded(weight, f"blocks of {bits} bits", compute, transposed=transposed)


def _multiply(graph: EditableGraph, product: Product, width: int) -> tuple[str, str]:
    """Rewrites one product; returns the names of the weight's integers and scales."""
    shape = graph.values(product.weight).shape
    outputs, inputs = shape if product.transposed else shape[::-1]
    blocks, block_scales = _rounded(graph, product.weight, width, transposed=product.transposed)
    stored = graph.add(f"{product.weight}.int{width}", blocks)
    scales = graph.add(f"{product.weight}.scales", block_scales)
    arguments = [product.x, stored, scales]
    if product.bias is not None:
        arguments += ["", "", product.bias]
    node = helper.make_node(
        "MatMulNBits",
        arguments,
        list(product.node.output),
        name=f"{product.node.output[0]}.int{width}",
        domain=CONTRIB,
        K=inputs,
        N=outputs,
        bits=width,
        block_size=BLOCK,
        accuracy_level=ACCURACY_LEVEL,
    )
    graph.replace(product.node, node)
    return stored, scales


def _look_up(graph: EditableGraph, table: str, bits: int, stored: str, scales: str) -> None:
    """Gathers rows of a quantized table."""
    integers = graph.values(stored)
    flat = graph.add(f"{stored}.rows", integers.reshape(len(integers), -1))  # the same bytes, stored once
    for node in graph.lookups(table):
        gather = helper.make_node(
            "GatherBlockQuantized",
            [flat, node.input[1], scales],
            list(node.output),
            name=node.output[0],
            domain=CONTRIB,
            bits=bits,
            block_size=BLOCK,
            gather_axis=0,
            quantize_axis=1,
        )
        graph.replace(node, gather)
