"""Writes the graphs of a bundle and the one file that holds their weights."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from dragoman_export.graphs.mapped_file import MappedFile
from dragoman_export.graphs.onnx_model import WEIGHTS_FILE, Array, OnnxModel, weight_tensor

ENCODER, DECODER, SCORER = "encoder.onnx", "decoder.onnx", "scorer.onnx"
Models = dict[str, OnnxModel]
"""Graphs by file name."""

_PAGE, _LINE = 4096, 64


def load_models(folder: Path) -> Models:
    """Loads the graphs of a bundle. Their weights are mapped, not read."""
    file = MappedFile(folder / WEIGHTS_FILE)
    return {name: _load(folder / name, file) for name in (ENCODER, DECODER, SCORER)}


def save_models(models: Mapping[str, OnnxModel], folder: Path) -> None:
    """Writes the graphs and `weights.bin`, which holds every tensor once, however many graphs or names it has.

    Args:
        models: Graphs by file name.
        folder: Where to write.

    Raises:
        onnx.checker.ValidationError: A graph is not valid ONNX.
    """
    offsets: dict[bytes, int] = {}
    with (folder / WEIGHTS_FILE).open("wb") as file:
        for model in models.values():
            for tensor in model.graph.initializer:
                if tensor.name not in model.weights:
                    continue
                values = np.ascontiguousarray(model.weights[tensor.name])
                content = values.reshape(-1).view(np.uint8).data
                digest = hashlib.sha256(content).digest()
                if digest not in offsets:
                    # Large tensors start on a page, for mapping; small ones on a cache line, to waste less.
                    alignment = _PAGE if values.nbytes >= 16 * _PAGE else _LINE
                    file.write(bytes(-file.tell() % alignment))
                    offsets[digest] = file.tell()
                    file.write(content)
                tensor.CopyFrom(weight_tensor(tensor.name, values, offsets[digest]))
    for name, model in models.items():
        path = folder / name
        path.write_bytes(model.proto.SerializeToString(deterministic=True))
        onnx.checker.check_model(path)


def _load(path: Path, file: MappedFile) -> OnnxModel:
    proto = onnx.load(path, load_external_data=False)
    weights: dict[str, Array] = {}
    keys: dict[str, str] = {}
    for tensor in proto.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            offset = next(entry.value for entry in tensor.external_data if entry.key == "offset")
            dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
            weights[tensor.name] = file.array(int(offset), dtype, tuple(tensor.dims))
            keys[tensor.name] = offset  # every content is there once
    return OnnxModel(proto, weights, keys, file)
