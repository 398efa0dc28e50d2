"""The shipped bundles, the one of g2p-en in fp32, and altered copies of bundles, such as no export writes."""

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

from dragoman_server.models.repository import SHIPPED_MODELS

SHIPPED_G2P = SHIPPED_MODELS / "g2p-en" / "1"
# The same model for tests that compare to float rounding, because the bundle that ships is int8.
SHIPPED_FP32 = Path(__file__).parents[1] / "bundles" / "g2p-en"

Array = NDArray[Any]
Change = Callable[[Path], None]
"""Changes the files of a bundle in place."""


def altered_copy(bundle: Path, folder: Path, change: Change) -> Path:
    """Makes a changed copy whose manifest has the checksums of the files as they are then; returns `folder`."""
    shutil.copytree(bundle, folder)
    change(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, file in manifest["files"].items():
        if not (folder / name).exists():
            continue
        content = (folder / name).read_bytes()
        file |= {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def edit_manifest(edit: Callable[[dict[str, Any]], object]) -> Change:
    """Returns a change of the manifest by a function that edits the document in place."""

    def change(bundle: Path) -> None:
        document = json.loads((bundle / "manifest.json").read_text())
        edit(document)
        (bundle / "manifest.json").write_text(json.dumps(document))

    return change


def edit_graph(name: str, edit: Callable[[onnx.GraphProto], object]) -> Change:
    """Returns a change of one graph by a function that edits it in place."""

    def change(bundle: Path) -> None:
        model = onnx.load(bundle / name, load_external_data=False)
        edit(model.graph)
        (bundle / name).write_bytes(model.SerializeToString())

    return change


def edit_tensor(file: str, tensor: str, edit: Callable[[Array], Array]) -> Change:
    """Returns a change of one initializer of a graph by a function from the old values to the new ones."""

    def change(bundle: Path) -> None:
        model = onnx.load(bundle / file, load_external_data=False)
        [table] = [initializer for initializer in model.graph.initializer if initializer.name == tensor]
        external_data_helper.load_external_data_for_tensor(table, str(bundle))
        model.graph.initializer.remove(table)
        model.graph.initializer.append(numpy_helper.from_array(edit(numpy_helper.to_array(table)), tensor))
        (bundle / file).write_bytes(model.SerializeToString())

    return change


def lengthened(folder: Path, tokens: int) -> Path:
    """Makes a copy of the shipped model whose answers may have any number of tokens: work that takes a server seconds.

    Positions start over where the model's own end, so the answers are meaningless.
    """

    def change(bundle: Path) -> None:
        edit_tensor(
            "decoder.onnx",
            "decoder.embedding.positions.weight",
            lambda positions: np.resize(positions, (tokens + 1, positions.shape[1])),
        )(bundle)
        edit_manifest(lambda document: document["limits"].update(max_target_tokens=tokens))(bundle)

    return altered_copy(SHIPPED_FP32, folder, change)


def failing(folder: Path) -> Path:
    """Makes a copy of the shipped model on which ONNX Runtime fails to encode a "z", whose embedding is missing."""
    change = edit_tensor("encoder.onnx", "encoder.embedding.tokens.weight", lambda vectors: vectors[:-1].copy())
    return altered_copy(SHIPPED_FP32, folder, change)
