"""Changes a tensor in a graph of the shipped model, so that a server meets what a sound bundle never does."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import external_data_helper, numpy_helper

# The shipped model in fp32. Tests that compare to float rounding need it, because the bundle that ships is int8.
SHIPPED_FP32 = Path(__file__).parents[1] / "bundles" / "g2p-en"

Array = NDArray[Any]


def altered(folder: Path, file: str, tensor: str, change: Callable[[Array], Array], **limits: int) -> Path:
    """Writes a copy of the shipped model, in fp32, with one tensor of a graph changed.

    Args:
        folder: that is made.
        file: of the graph.
        tensor: name of the initializer.
        change: makes the new one of the old one.
        limits: new values of the manifest's.

    Returns:
        the folder.
    """
    shutil.copytree(SHIPPED_FP32, folder)
    graph = folder / file
    model = onnx.load(graph, load_external_data=False)
    [table] = [each for each in model.graph.initializer if each.name == tensor]
    external_data_helper.load_external_data_for_tensor(table, str(folder))
    model.graph.initializer.remove(table)
    model.graph.initializer.append(numpy_helper.from_array(change(numpy_helper.to_array(table)), tensor))
    graph.write_bytes(model.SerializeToString())
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["limits"] |= limits
    content = graph.read_bytes()
    manifest["files"][file] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def lengthened(folder: Path, tokens: int) -> Path:
    """A model with room for answers of any length: work that takes a server seconds, and says nothing.

    The positions begin again where the model's own end.

    Args:
        tokens: of the longest answer.
    """

    def longer(positions: Array) -> Array:
        return np.resize(positions, (tokens + 1, positions.shape[1]))

    return altered(folder, "decoder.onnx", "decoder.embedding.positions.weight", longer, max_target_tokens=tokens)


def failing(folder: Path) -> Path:
    """A model on which ONNX Runtime fails where a "z" is encoded: the last letter of the vocabulary has no vector."""
    return altered(folder, "encoder.onnx", "encoder.embedding.tokens.weight", lambda vectors: vectors[:-1].copy())
