"""Makes a quantized bundle of one in fp32."""

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dragoman_export.bundle.onnx_files import DECODER, ENCODER, SCORER, Models, load_models, save_models
from dragoman_export.bundle.write import file_entry, write_manifest
from dragoman_export.graphs.onnx_model import WEIGHTS_FILE, OnnxModel
from dragoman_export.graphs.trace import count_operators
from dragoman_export.precision import blockwise, caches, int8
from dragoman_export.precision.calibration import Range
from dragoman_export.precision.editable_graph import EditableGraph, Rounded
from dragoman_server.bundle.load import Bundle, load_bundle
from dragoman_server.bundle.manifest import MANIFEST_FILE, Integers

WIDER: dict[Integers, str] = {"int8": "fp32", "int8-weights": "fp32", "int4": "int8-weights"}


@dataclass(frozen=True)
class CalibratedWeights:
    """The weights of a model that can be integers.

    Attributes:
        names: Names by key.
        ranges: Ranges of the activations that they multiply, by key.
        rounded: Weights that were rounded already.
    """

    names: Mapping[str, str]
    ranges: Mapping[str, Range]
    rounded: Rounded = field(default_factory=dict)


def weight_names(models: Models) -> dict[str, str]:
    """Returns the names of the weights in products by key; the decoder's first, as the scorer's are made up."""
    names: dict[str, str] = {}
    for name in (DECODER, ENCODER, SCORER):
        for product in EditableGraph(models[name]).products():
            names.setdefault(product.key, product.weight)
    return names


def quantize_graph(model: OnnxModel, precision: Integers, weights: CalibratedWeights, wider: Collection[str]) -> None:
    """Makes the weights of a graph integers.

    Args:
        model: The graph to rewrite.
        precision: Precision of the weights.
        weights: The weights to quantize.
        wider: Keys of the weights that get the next wider precision.
    """
    graph = EditableGraph(model, weights.rounded)
    if precision == "int8":
        int8.quantize(graph, weights.ranges, wider)
    else:
        width, wider_width = (8, None) if precision == "int8-weights" else (4, 8)
        bits = {key: wider_width if key in wider else width for key in weights.names}
        blockwise.quantize(graph, {key: number for key, number in bits.items() if number})
    graph.finish()


def quantize_bundle(
    exact: Bundle,
    folder: Path,
    precision: Integers,
    weights: CalibratedWeights,
    wider: Collection[str],
    scales: caches.Scales | None = None,
) -> Bundle:
    """Writes a quantized bundle.

    Args:
        exact: The bundle in fp32.
        folder: Where to write; its previous content is deleted.
        precision: Precision of the weights.
        weights: The weights to quantize.
        wider: Keys of the weights that get the next wider precision.
        scales: Scales of the caches; None for floats.

    Returns:
        The bundle. Its manifest lacks the results of checks and measurements.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    models = load_models(exact.path)
    for model in models.values():
        quantize_graph(model, precision, weights, wider)
        if scales is not None:
            caches.quantize(model, scales)
        model.release()
    counts = {name: dict(count_operators(model)) for name, model in models.items()}
    save_models(models, folder)
    for name in exact.manifest.files:
        if name not in models and name != WEIGHTS_FILE:
            shutil.copyfile(exact.path / name, folder / name)
    manifest = exact.manifest.model_copy(
        update={
            "precision": precision,
            "cache": "float" if scales is None else "int8",
            "files": {path.name: file_entry(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST_FILE},
            "training": exact.manifest.training | {"operators": counts},
            "quality": {},
            "parity": {},
        }
    )
    write_manifest(manifest, folder)
    return load_bundle(folder)
