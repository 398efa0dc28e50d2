"""A graph under rewriting, and the matrix products in it whose one factor is a trained weight."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from dragoman_export.graphs.onnx_model import OnnxModel

Floats = NDArray[np.float32]
CONTRIB = "com.microsoft"  # the domain of ONNX Runtime's own operators
LARGE = 1 << 20  # bytes of a table that is worth quantizing


@dataclass(frozen=True)
class Product:
    """The product y = x @ weight + bias.

    Attributes:
        node: Gemm or MatMul node.
        x: Name of the activations [..., in].
        weight: Name of the initializer, [in, out], or [out, in] if transposed.
        transposed: Whether the weight is transposed.
        bias: Name of the initializer [out]; None if there is none.
        key: Identity of the weight: the same in every graph that has it.
    """

    node: onnx.NodeProto
    x: str
    weight: str
    transposed: bool
    bias: str | None
    key: str


Rounded = dict[tuple[str, str, bool], tuple[NDArray[Any], Floats]]
"""Integers and scales by key of a weight, kind of rounding, and whether the weight was transposed."""


class EditableGraph:
    """A graph under rewriting.

    Args:
        model: The model to rewrite.
        rounded: Weights that were rounded for other graphs of a bundle, to round each only once.

    Attributes:
        proto: The graph, whose nodes and initializers `finish` replaces.
        tensors: Initializers by name.
        nodes: Nodes in order.
        makers: The node that computes each value.
    """

    def __init__(self, model: OnnxModel, rounded: Rounded | None = None) -> None:
        self.model, self.proto = model, model.graph
        self._rounded: Rounded = {} if rounded is None else rounded
        self.tensors = {tensor.name: tensor for tensor in self.proto.initializer}
        self.nodes = list(self.proto.node)
        self.makers = {name: node for node in self.nodes for name in node.output}

    def values(self, name: str) -> NDArray[Any]:
        """Returns the content of an initializer."""
        return self.model.values(self.tensors[name])

    def key(self, name: str) -> str:
        """Returns the identity of an initializer's content, the same in every graph of a bundle that has it."""
        return self.model.key(self.tensors[name])

    def rounded(
        self, name: str, kind: str, compute: Callable[[Floats], tuple[NDArray[Any], Floats]], *, transposed: bool
    ) -> tuple[NDArray[Any], Floats]:
        """Returns a weight's integers and scales.

        Args:
            name: Name of the weight.
            kind: Kind of rounding.
            compute: Rounds a weight [out, in].
            transposed: Whether the weight is [out, in], not [in, out].
        """
        place = self.key(name), kind, transposed
        if place not in self._rounded:
            weight = self.values(name)
            self._rounded[place] = compute(weight if transposed else weight.T)
        return self._rounded[place]

    def add(self, name: str, values: NDArray[Any]) -> str:
        """Adds an initializer unless it exists, and returns its name."""
        if name not in self.tensors:
            self.tensors[name] = self.model.new_tensor(name, np.asarray(values))
        return name

    def products(self) -> Iterator[Product]:
        """Yields all products in the order of the graph."""
        for node in self.nodes:
            product = self._product(node)
            if product:
                yield product

    def lookups(self, table: str) -> list[onnx.NodeProto]:
        """Returns the nodes that gather rows of an initializer."""
        return [
            node
            for node in self.nodes
            if node.op_type == "Gather"
            and node.input[0] == table
            and all(a.i == 0 for a in node.attribute if a.name == "axis")
        ]

    def lookup_tables(self) -> list[str]:
        """Returns large initializers of which only rows are gathered: embeddings that are not also projections."""
        uses = Counter(name for node in self.nodes for name in node.input)
        return [
            name
            for name, tensor in self.tensors.items()
            if len(tensor.dims) == 2
            and tensor.data_type == TensorProto.FLOAT
            and 4 * tensor.dims[0] * tensor.dims[1] >= LARGE
            and uses[name] == len(self.lookups(name)) > 0
        ]

    def row_factor(self, x: str) -> tuple[str, str] | None:
        """Returns both names if the activations are rows times a graph input with a factor for each row.

        The factor, an inverse temperature, moves behind the product: it is unbounded, and the range of integers is not.
        """
        maker = self.makers.get(x)
        graph_inputs = {value.name for value in self.proto.input}
        if maker is None or maker.op_type != "Mul" or maker.input[1] not in graph_inputs:
            return None
        return maker.input[0], maker.input[1]

    def replace(self, node: onnx.NodeProto, *nodes: onnx.NodeProto) -> None:
        """Replaces a node with others."""
        place = next(i for i, other in enumerate(self.nodes) if other is node)
        self.nodes[place : place + 1] = nodes
        self.makers |= {name: new for new in nodes for name in new.output}

    def finish(self) -> None:
        """Writes nodes and initializers back to the graph, without unused ones."""
        used = {output.name for output in self.proto.output}
        kept: list[onnx.NodeProto] = []
        for node in reversed(self.nodes):
            if used.intersection(node.output):
                used.update(node.input)
                kept.append(node)
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in reversed(kept)]
        del self.proto.node[:]
        self.proto.node.extend(kept)
        tensors = [tensor for name, tensor in self.tensors.items() if name in used]
        copies = [TensorProto.FromString(tensor.SerializeToString()) for tensor in tensors]
        del self.proto.initializer[:]
        self.proto.initializer.extend(copies)
        self.model.keep_weights(used)
        contrib = any(node.domain == CONTRIB for node in kept)
        if contrib and not any(opset.domain == CONTRIB for opset in self.model.proto.opset_import):
            self.model.proto.opset_import.append(helper.make_opsetid(CONTRIB, 1))

    def _product(self, node: onnx.NodeProto) -> Product | None:
        if node.op_type not in ("Gemm", "MatMul") or node.domain not in ("", "ai.onnx"):
            return None
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if attributes.get("transA", 0) or attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
            return None
        weight, transposed = node.input[1], bool(attributes.get("transB", 0))
        maker = self.makers.get(weight)
        if maker is not None and maker.op_type == "Transpose" and maker.input[0] in self.tensors:
            weight, transposed = maker.input[0], not transposed
        tensor = self.tensors.get(weight)
        if tensor is None or len(tensor.dims) != 2 or tensor.data_type != TensorProto.FLOAT:
            return None
        bias = node.input[2] if len(node.input) > 2 and node.input[2] else None
        if bias is not None and bias not in self.tensors:
            return None
        return Product(node, node.input[0], weight, transposed, bias, self.model.key(tensor))
