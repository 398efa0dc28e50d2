"""Graphs of a precision that CPUs lack, for a CPU: they compute in fp32, and round wherever a number of that precision
stands in the original.

ONNX Runtime's kernels add up the products of bf16 in fp32 and round the outcome, on any device. So what such a graph
finds differs from what a GPU finds by the order of sums, and by what kernels round that are one node and do several
things: the shares of an attention, for one.
"""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dragoman_export.bundle.onnx_files import save
from dragoman_export.bundle.write import DECODER, ENCODER, SCORER
from dragoman_server.bundle.load import Bundle
from dragoman_server.bundle.manifest import Manifest
from dragoman_server.runtime.device import CPU, Device, DeviceError, choose_device

# Whose output has no other numbers than their inputs have.
_MOVING = {
    "Concat",
    "Gather",
    "GatherElements",
    "Reshape",
    "Split",
    "Squeeze",
    "Transpose",
    "TensorScatter",
    "Unsqueeze",
}
# Outputs of which the same is true: the caches of GroupQueryAttention, which are written in place and must stay so.
_MOVED = {"GroupQueryAttention": (1, 2)}


def runnable(bundle: Bundle, choice: str, folder: Path) -> tuple[Bundle, Device]:
    """What of a bundle this machine can run, and where.

    Args:
        choice: see `choose_device`.
        folder: where to write graphs to that stand in for those in bf16, should there be no GPU.

    Raises:
        DeviceError: a GPU was asked for and does not work, or the precision is not for what there is.
    """
    try:
        return bundle, choose_device(choice, bundle.decoder, bundle.manifest.precision)
    except DeviceError:
        if choice not in ("auto", "cpu") or not stood_in_for(bundle.manifest, CPU):
            raise
    return rounded(bundle, folder), CPU


def stood_in_for(manifest: Manifest, device: Device) -> bool:
    """Whether a device can't run the graphs of a bundle, but others in their place."""
    return device.kind == "cpu" and manifest.precision == "bf16"


def rounded(bundle: Bundle, folder: Path) -> Bundle:
    """A bundle whose graphs a CPU can run in the place of those of another.

    Args:
        bundle: in bf16.
        folder: where to write them.

    Returns:
        the bundle with those graphs, and with its own manifest.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    models = {name: onnx.load(bundle.path / name) for name in (ENCODER, DECODER, SCORER)}
    for model in models.values():
        widen(model, TensorProto.BFLOAT16)
    save(models, folder)
    return replace(bundle, path=folder)


def widen(model: onnx.ModelProto, narrow: int) -> None:
    """Makes a graph compute in fp32, and round to another type what was of that type.

    Args:
        narrow: the type, as an element of onnx.TensorProto.
    """
    graph = model.graph
    of_type = _values_of(model, narrow)
    for tensor in graph.initializer:
        if tensor.data_type == narrow:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    for value in (*graph.input, *graph.output):
        if value.name in of_type:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    nodes = list(graph.node)
    del graph.node[:], graph.value_info[:]
    for node in nodes:
        graph.node.append(node)
        node = graph.node[-1]
        for place, name in enumerate(node.output):
            if name in of_type and not (node.op_type in _MOVING or place in _MOVED.get(node.op_type, ())):
                node.output[place] = f"{name}.exact"
                graph.node.extend(_round(name, narrow))


def _values_of(model: onnx.ModelProto, narrow: int) -> set[str]:
    """Names of the inputs of a graph, and of what its nodes make, that are of a type."""
    known = onnx.ModelProto()
    known.CopyFrom(model)
    for node in model.graph.node:  # ONNX knows nothing of other domains' operators
        if node.op_type == "GroupQueryAttention":
            known.graph.value_info.extend(helper.make_tensor_value_info(name, narrow, None) for name in node.output)
    graph = onnx.shape_inference.infer_shapes(known, strict_mode=True).graph
    values: Iterable[onnx.ValueInfoProto] = (*graph.input, *graph.value_info, *graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    untyped = {name for node in graph.node for name in node.output if name} - set(types)
    assert not untyped, f"of unknown type: {sorted(untyped)}"
    return {name for name, kind in types.items() if kind == narrow}


def _round(name: str, narrow: int) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Cast", [f"{name}.exact"], [f"{name}.narrow"], name=f"{name}.narrow", to=narrow),
        helper.make_node("Cast", [f"{name}.narrow"], [name], name=f"{name}.wide", to=TensorProto.FLOAT),
    ]
