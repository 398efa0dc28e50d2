"""From a traced module to ONNX files whose weights stand once in one file."""

import hashlib
import logging
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from dragoman_export.graphs.interface import Interface, Port
from dragoman_export.graphs.operators import OPSET

WEIGHTS_FILE = "weights.bin"
_SMALLEST_EXTERNAL = 256  # bytes; what is smaller may be a shape or an axis, which ONNX Runtime wants in the graph
_PAGE, _LINE = 4096, 64

_ELEMENT_TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
}


def trace(module: nn.Module, interface: Interface) -> onnx.ModelProto:
    """Exports a module, with the interface's names and dimensions, its weights inside.

    The result depends on the module alone: it holds no time, path or stack trace.
    """
    names = {d for port in interface.inputs for d in port.shape if isinstance(d, str)}
    dimensions = {name: torch.export.Dim(name) for name in sorted(names)}
    dynamic = [port.dynamic(dimensions) for port in interface.inputs]
    arguments = tuple(port.example() for port in interface.inputs)
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it tells that torchvision is missing
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module.eval(),
                arguments,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=_by_parameter(module, dynamic),
                input_names=[port.name for port in interface.inputs],
                output_names=[port.name for port in interface.outputs],
                verbose=False,
            )
    finally:
        logger.setLevel(level)
    assert program is not None
    model = program.model_proto
    _declare(model, interface)
    _drop_unused(model)
    _store_as_multiplied(model)
    _strip(model)
    return model


def _by_parameter(module: nn.Module, dynamic: list[dict[int, torch.export.Dim]]) -> tuple[object, ...]:
    """What is passed beyond the named parameters of `forward` belongs to its `*state`, as a tuple."""
    code = module.forward.__code__
    named = code.co_argcount - 1
    return (*dynamic[:named], tuple(dynamic[named:])) if len(dynamic) > named else tuple(dynamic)


def _declare(model: onnx.ModelProto, interface: Interface) -> None:
    """Puts the declared types in place of inferred ones, whose dimensions have made-up names."""
    for declared, inferred in ((interface.inputs, model.graph.input), (interface.outputs, model.graph.output)):
        assert [value.name for value in inferred] == [port.name for port in declared]
        del inferred[:]
        inferred.extend(_value_info(port) for port in declared)
    del model.graph.value_info[:]


def _value_info(port: Port) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(port.name, _ELEMENT_TYPES[port.dtype], port.shape)


def _drop_unused(model: onnx.ModelProto) -> None:
    """Leaves out the optional outputs of an `Attention` that nobody uses, so that they are not computed."""
    used = {name for node in model.graph.node for name in node.input} | {o.name for o in model.graph.output}
    for node in model.graph.node:
        if node.op_type != "Attention":
            continue
        outputs = [name if name in used else "" for name in node.output]
        while not outputs[-1]:
            outputs.pop()
        if len(outputs) < len(node.output):
            kept = [a for a in node.attribute if a.name != "qk_matmul_output_mode"]  # what the last output holds
            del node.attribute[:], node.output[:]
            node.attribute.extend(kept)
        else:
            del node.output[:]
        node.output.extend(outputs)


def _store_as_multiplied(model: onnx.ModelProto) -> None:
    """Turns the weight [out, in] of each Gemm into [in, out].

    The exporter writes a linear map of a matrix as Gemm with a transposed weight, and one of a batch of matrices as
    MatMul with the weight transposed beforehand. In one layout the graphs can share it. A weight that is an embedding
    too stays.
    """
    uses = Counter(name for node in model.graph.node for name in node.input)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        transposed = [a for a in node.attribute if a.name == "transB" and a.i == 1]
        if node.op_type != "Gemm" or not transposed:
            continue
        weight = weights.get(node.input[1])
        if weight is None or uses[weight.name] > 1:
            continue
        values = np.ascontiguousarray(numpy_helper.to_array(weight).T)
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))
        node.attribute.remove(transposed[0])


def _strip(model: onnx.ModelProto) -> None:
    """Drops what tells of the machine that exported: stack traces and the like."""
    graph = model.graph
    holders: list[Any] = [model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer]
    for holder in holders:
        del holder.metadata_props[:]
        holder.doc_string = ""


def operators(model: onnx.ModelProto) -> Counter[str]:
    """How many nodes of each type a graph has."""
    return Counter(node.op_type for node in model.graph.node)


def save(models: Mapping[str, onnx.ModelProto], folder: Path) -> None:
    """Writes the graphs and `weights.bin`, in which every tensor stands once, however many graphs or names it has.

    Args:
        models: by file name; their weights are moved out of them.
        folder: where to.

    Raises:
        onnx.checker.ValidationError: a graph is not valid ONNX.
    """
    offsets: dict[bytes, int] = {}
    with (folder / WEIGHTS_FILE).open("wb") as file:
        for model in models.values():
            for tensor in model.graph.initializer:
                values = numpy_helper.to_array(tensor)
                if values.nbytes < _SMALLEST_EXTERNAL:
                    continue
                content = np.ascontiguousarray(values).tobytes()
                digest = hashlib.sha256(content).digest()
                if digest not in offsets:
                    # Large tensors start on a page, as mapping them wants; small ones on a cache line, to waste less.
                    alignment = _PAGE if len(content) >= 16 * _PAGE else _LINE
                    file.write(bytes(-file.tell() % alignment))
                    offsets[digest] = file.tell()
                    file.write(content)
                _point(tensor, offsets[digest], len(content))
    for name, model in models.items():
        path = folder / name
        path.write_bytes(model.SerializeToString(deterministic=True))
        onnx.checker.check_model(path)


def _point(tensor: TensorProto, offset: int, length: int) -> None:
    """Replaces a tensor's content by its place in the weights file."""
    for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", WEIGHTS_FILE), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
