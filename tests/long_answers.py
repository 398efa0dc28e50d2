"""The shipped model with room for answers of any length: work that takes a server seconds, and says nothing."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import external_data_helper, numpy_helper

from server.bundle.load import shipped_bundle

POSITIONS = "decoder.embedding.positions.weight"


def lengthened(folder: Path, tokens: int) -> Path:
    """Writes a bundle whose positions begin again where the model's own end.

    Args:
        tokens: of the longest answer.

    Returns:
        the folder.
    """
    shutil.copytree(shipped_bundle(), folder)
    graph = folder / "decoder.onnx"
    model = onnx.load(graph, load_external_data=False)
    [table] = [each for each in model.graph.initializer if each.name == POSITIONS]
    external_data_helper.load_external_data_for_tensor(table, str(folder))
    own = numpy_helper.to_array(table)
    model.graph.initializer.remove(table)
    longer = np.resize(own, (tokens + 1, own.shape[1]))
    model.graph.initializer.append(numpy_helper.from_array(longer, POSITIONS))
    graph.write_bytes(model.SerializeToString())
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["limits"]["max_target_tokens"] = tokens
    content = graph.read_bytes()
    manifest["files"][graph.name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder
