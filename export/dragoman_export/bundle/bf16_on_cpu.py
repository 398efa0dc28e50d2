"""Emulates bf16 graphs on a CPU, which has no bf16 operators: they compute in fp32 and round wherever the original has
a bf16 number.

ONNX Runtime's kernels add up bf16 products in fp32 and round the result, on any device. So emulated graphs differ from
a GPU only in the order of sums, and inside kernels that do several things in one node, such as attention weights.
"""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from dragoman_export.bundle.onnx_files import load_models, save_models
from dragoman_export.graphs.onnx_model import WEIGHTS_FILE, OnnxModel
from dragoman_server.bundle.load import Bundle
from dragoman_server.bundle.manifest import Manifest
from dragoman_server.runtime.device import CPU, Device, DeviceError, choose_device

# Operators whose output holds the numbers of their inputs.
_COPYING = {
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
# Outputs that do likewise: the caches of GroupQueryAttention, which are written in place and must stay so.
_COPIED_OUTPUTS = {"GroupQueryAttention": (1, 2)}


def runnable(bundle: Bundle, choice: str, folder: Path) -> tuple[Bundle, Device]:
    """Returns the bundle in a form that this machine can run, and the device to run it on.

    Args:
        bundle: The bundle to run.
        choice: The device, see `choose_device`.
        folder: Where to write emulated graphs if the bundle is bf16 and there is no GPU.

    Raises:
        DeviceError: The chosen GPU does not work, or the device cannot run the precision.
    """
    try:
        return bundle, choose_device(choice, bundle.decoder, bundle.manifest.precision)
    except DeviceError:
        if choice not in ("auto", "cpu") or not is_emulated(bundle.manifest, CPU):
            raise
    return emulate(bundle, folder), CPU


def is_emulated(manifest: Manifest, device: Device) -> bool:
    """Returns whether a device runs emulated graphs in place of the bundle's own."""
    return device.kind == "cpu" and manifest.precision == "bf16"


def emulate(bundle: Bundle, folder: Path) -> Bundle:
    """Writes emulated graphs of a bf16 bundle.

    Args:
        bundle: A bundle in bf16.
        folder: Where to write the graphs.

    Returns:
        The bundle with the emulated graphs and its own manifest, and copies of its other files.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    models = load_models(bundle.path)
    for model in models.values():
        widen(model, TensorProto.BFLOAT16)
    save_models(models, folder)
    for name in bundle.manifest.files:
        if name not in models and name != WEIGHTS_FILE:
            shutil.copyfile(bundle.path / name, folder / name)
    return replace(bundle, path=folder)


def widen(model: OnnxModel, narrow: int) -> None:
    """Makes a graph compute in fp32, and round to a narrower type every number that was of that type.

    Args:
        model: The graph to rewrite.
        narrow: The type, an element of onnx.TensorProto.
    """
    graph = model.graph
    of_type = _values_of(model.proto, narrow)
    for tensor in graph.initializer:
        if tensor.data_type == narrow:
            tensor.CopyFrom(model.new_tensor(tensor.name, model.values(tensor).astype(np.float32)))
    for value in (*graph.input, *graph.output):
        if value.name in of_type:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    nodes = list(graph.node)
    del graph.node[:], graph.value_info[:]
    for node in nodes:
        graph.node.append(node)
        node = graph.node[-1]
        for place, name in enumerate(node.output):
            if name in of_type and not (node.op_type in _COPYING or place in _COPIED_OUTPUTS.get(node.op_type, ())):
                node.output[place] = f"{name}.exact"
                graph.node.extend(_round(name, narrow))


def _values_of(model: onnx.ModelProto, narrow: int) -> set[str]:
    """Returns the names of all graph inputs and node outputs of a type."""
    known = onnx.ModelProto()
    known.CopyFrom(model)
    for node in model.graph.node:  # ONNX does not infer types of operators of other domains
        if node.op_type == "GroupQueryAttention":
            known.graph.value_info.extend(helper.make_tensor_value_info(name, narrow, None) for name in node.output)
    graph = onnx.shape_inference.infer_shapes(known, strict_mode=True).graph
    values: Iterable[onnx.ValueInfoProto] = (*graph.input, *graph.value_info, *graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    untyped = {name for node in graph.node for name in node.output if name} - set(types)
    assert not untyped, f"of unknown type: {sorted(untyped)}"
    return {name for name, element_type in types.items() if element_type == narrow}


def _round(name: str, narrow: int) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Cast", [f"{name}.exact"], [f"{name}.narrow"], name=f"{name}.narrow", to=narrow),
        helper.make_node("Cast", [f"{name}.narrow"], [name], name=f"{name}.wide", to=TensorProto.FLOAT),
    ]
