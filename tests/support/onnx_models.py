"""ONNX models with their weights inside, as only small ones can be."""

import onnx

from dragoman_export.graphs.onnx_model import OnnxModel


def complete(model: OnnxModel) -> onnx.ModelProto:
    """Returns a copy of a model, which must not be from a file, with its weights inside."""
    assert model.file is None
    return model.with_new_weights_inside()
