"""Weights of 8 or 4 bits with a scale for each block of inputs, multiplied by ONNX Runtime's `MatMulNBits`.

It turns each row of activations into integers with a scale of its own for each block, so a row's outcome does not
depend on other rows.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from dragoman_export.precision import scales
from dragoman_export.precision.editable_graph import CONTRIB, Floats, Graph

BLOCK = 32  # inputs that share a scale
INTEGERS = 4  # `accuracy_level`: activations are multiplied as 8-bit integers


def quantize(graph: Graph, bits: Mapping[str, int]) -> None:
    """Rewrites the products of a graph.

    Args:
        bits: 8 or 4, by key of a weight; others stay as they are.
    """
    tables: dict[str, tuple[int, str, str]] = {}
    for product in list(graph.products()):
        width = bits.get(product.key)
        if width is None:
            continue
        weight = graph.values(product.weight)
        weight = weight if product.transposed else weight.T
        outputs, inputs = weight.shape
        blocks, block_scales = by_block(weight, width)
        stored = graph.add(f"{product.weight}.int{width}", blocks)
        factors = graph.add(f"{product.weight}.scales", block_scales)
        arguments = [product.x, stored, factors]
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
            accuracy_level=INTEGERS,
        )
        graph.replace(product.node, node)
        if product.transposed and inputs % BLOCK == 0:
            tables[product.weight] = width, stored, factors
    for table in graph.tables():
        values = graph.values(table)
        if values.shape[1] % BLOCK == 0:
            integers, block_scales = by_block(values, 8)
            tables[table] = 8, graph.add(f"{table}.int8", integers), graph.add(f"{table}.scales", block_scales)
    for table, (width, stored, factors) in tables.items():
        _look_up(graph, table, width, stored, factors)


def by_block(weight: Floats, bits: int) -> tuple[NDArray[np.uint8], Floats]:
    """A weight as `MatMulNBits` wants it.

    Args:
        weight: [out, in]
        bits: 8 or 4

    Returns:
        integers [out, blocks, BLOCK * bits / 8] around 128 or 8, two 4-bit ones in a byte with the first in its lower
        half; scales [out, blocks].
    """
    outputs, inputs = weight.shape
    weight = np.pad(weight, ((0, 0), (0, -inputs % BLOCK))).reshape(outputs, -1, BLOCK)
    zero = 1 << (bits - 1)
    # The number of the largest size becomes the least integer, of which there is one more than on the other side.
    peaks = np.take_along_axis(weight, np.abs(weight).argmax(-1)[..., None], -1)
    reaching = np.where(peaks == 0, 1, peaks / -zero).astype(np.float32)
    shares = scales.SHARES if bits == 4 else (1.0,)
    rounded, factors = scales.quantize(weight, reaching, -zero, zero - 1, shares)
    integers = (rounded + zero).astype(np.uint8)
    if bits == 4:
        integers = integers[..., ::2] | (integers[..., 1::2] << np.uint8(4))
    return integers, factors[..., 0]


def _look_up(graph: Graph, table: str, bits: int, stored: str, factors: str) -> None:
    """Rows of a table that is stored as integers."""
    integers = graph.values(stored)
    flat = graph.add(f"{stored}.rows", integers.reshape(len(integers), -1))  # the same bytes, stored once
    for node in graph.lookups(table):
        arguments = [flat, node.input[1], factors]
        gather = helper.make_node(
            "GatherBlockQuantized",
            arguments,
            list(node.output),
            name=node.output[0],
            domain=CONTRIB,
            bits=bits,
            block_size=BLOCK,
            gather_axis=0,
            quantize_axis=1,
        )
        graph.replace(node, gather)
