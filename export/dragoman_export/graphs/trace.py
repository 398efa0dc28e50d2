"""Exports a PyTorch module to ONNX."""

import logging
import warnings
from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnx_ir
import torch
from onnx import TensorProto, helper
from torch import nn

from dragoman_export.graphs.interface import Interface, Port
from dragoman_export.graphs.onnx_model import SMALLEST_WEIGHT, Array, OnnxModel, weight_tensor
from dragoman_export.graphs.operators import OPSET

_ELEMENT_TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
}


def trace(module: nn.Module, interface: Interface) -> OnnxModel:
    """Exports a module with the names and dimensions of its interface.

    The result depends on the module alone: it holds no time, path or stack trace. Its weights are the parameters of the
    module, not copies.
    """
    names = {d for port in interface.inputs for d in port.shape if isinstance(d, str)}
    dimensions = {name: torch.export.Dim(name) for name in sorted(names)}
    dynamic = [port.dynamic(dimensions) for port in interface.inputs]
    arguments = tuple(port.example() for port in interface.inputs)
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns that torchvision is missing
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
    model = _without_weights(program.model)
    _declare(model.proto, interface)
    _drop_unused_outputs(model.proto)
    _transpose_gemm_weights(model)
    _strip(model.proto)
    return model


def count_operators(model: OnnxModel) -> Counter[str]:
    """Returns how many nodes of each operator a graph has."""
    return Counter(node.op_type for node in model.graph.node)


def _without_weights(traced: onnx_ir.Model) -> OnnxModel:
    """Converts a traced model to a protocol buffer that lacks the contents of its weights."""
    weights: dict[str, Array] = {}
    for name, value in traced.graph.initializers.items():
        assert value.const_value is not None
        if value.const_value.nbytes >= SMALLEST_WEIGHT:
            weights[name] = value.const_value.numpy()
            value.const_value = onnx_ir.tensor(np.empty(0, weights[name].dtype), name=name)
    proto = onnx_ir.serde.serialize_model(traced)
    for tensor in proto.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(weight_tensor(tensor.name, weights[tensor.name]))
    return OnnxModel(proto, weights)


def _by_parameter(module: nn.Module, dynamic: list[dict[int, torch.export.Dim]]) -> tuple[object, ...]:
    """Groups the dynamic shapes as `forward` groups its arguments: those of its `*args`, if any, are one tuple."""
    named = module.forward.__code__.co_argcount - 1
    return (*dynamic[:named], tuple(dynamic[named:])) if len(dynamic) > named else tuple(dynamic)


def _declare(model: onnx.ModelProto, interface: Interface) -> None:
    """Replaces inferred input and output types, whose dimensions have made-up names, with those of the interface."""
    for declared, inferred in ((interface.inputs, model.graph.input), (interface.outputs, model.graph.output)):
        assert [value.name for value in inferred] == [port.name for port in declared]
        del inferred[:]
        inferred.extend(_value_info(port) for port in declared)
    del model.graph.value_info[:]


def _value_info(port: Port) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(port.name, _ELEMENT_TYPES[port.dtype], port.shape)


def _drop_unused_outputs(model: onnx.ModelProto) -> None:
    """Removes optional outputs of `Attention` nodes that nothing uses, so that they are not computed."""
    used = {name for node in model.graph.node for name in node.input} | {o.name for o in model.graph.output}
    for node in model.graph.node:
        if node.op_type != "Attention":
            continue
        outputs = [name if name in used else "" for name in node.output]
        while not outputs[-1]:
            outputs.pop()
        if len(outputs) < len(node.output):
            # The attribute describes the last output, which is gone.
            kept = [a for a in node.attribute if a.name != "qk_matmul_output_mode"]
            del node.attribute[:], node.output[:]
            node.attribute.extend(kept)
        else:
            del node.output[:]
        node.output.extend(outputs)


def _transpose_gemm_weights(model: OnnxModel) -> None:
    """Turns the weight [out, in] of each Gemm into [in, out].

    The exporter writes a linear map of a matrix as Gemm with a transposed weight, and that of a batch of matrices as
    MatMul with a weight transposed beforehand. With one layout the graphs can share it. A weight that is also an
    embedding stays as it is.
    """
    graph = model.graph
    uses = Counter(name for node in graph.node for name in node.input)
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        transposed = [a for a in node.attribute if a.name == "transB" and a.i == 1]
        if node.op_type != "Gemm" or not transposed:
            continue
        weight = tensors.get(node.input[1])
        if weight is None or uses[weight.name] > 1:
            continue
        weight.CopyFrom(model.new_tensor(weight.name, model.values(weight).T))
        node.attribute.remove(transposed[0])


def _strip(model: onnx.ModelProto) -> None:
    """Removes traces of the exporting machine, such as stack traces."""
    graph = model.graph
    holders: list[Any] = [model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer]
    for holder in holders:
        del holder.metadata_props[:]
        holder.doc_string = ""
