"""Writes the graphs of a bundle and the one file that holds their weights."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

ENCODER, DECODER, SCORER = "encoder.onnx", "decoder.onnx", "scorer.onnx"
WEIGHTS_FILE = "weights.bin"
Models = dict[str, onnx.ModelProto]
"""Graphs by file name, with their weights inside."""

_SMALLEST_EXTERNAL = 256  # bytes; smaller tensors may be shapes or axes, which ONNX Runtime needs inside the graph
_PAGE, _LINE = 4096, 64


def load_models(folder: Path) -> Models:
    """Loads the graphs of a bundle."""
    return {name: onnx.load(folder / name) for name in (ENCODER, DECODER, SCORER)}


def save_models(models: Mapping[str, onnx.ModelProto], folder: Path) -> None:
    """Writes the graphs and `weights.bin`, which holds every tensor once, however many graphs or names it has.

    Args:
        models: Graphs by file name. Their weights are moved out of them.
        folder: Where to write.

    Raises:
        onnx.checker.ValidationError: A graph is not valid ONNX.
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
                    # Large tensors start on a page, for mapping; small ones on a cache line, to waste less.
                    alignment = _PAGE if len(content) >= 16 * _PAGE else _LINE
                    file.write(bytes(-file.tell() % alignment))
                    offsets[digest] = file.tell()
                    file.write(content)
                _make_external(tensor, offsets[digest], len(content))
    for name, model in models.items():
        path = folder / name
        path.write_bytes(model.SerializeToString(deterministic=True))
        onnx.checker.check_model(path)


def _make_external(tensor: TensorProto, offset: int, length: int) -> None:
    """Replaces a tensor's content with its place in the weights file."""
    for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", WEIGHTS_FILE), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
