"""ONNX models with their weights inside, as only small ones can be."""

import onnx
from onnx import numpy_helper

from dragoman_export.graphs.onnx_model import OnnxModel


def complete(model: OnnxModel) -> onnx.ModelProto:
    """Returns a copy of a model with its weights inside."""
    proto = model.copy().proto
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(model.values(tensor).copy(), tensor.name))
    return proto
