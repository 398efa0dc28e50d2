"""A bundle of integers from one of fp32."""

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from dragoman_export.bundle.onnx_files import WEIGHTS_FILE, operators, save
from dragoman_export.bundle.write import DECODER, ENCODER, SCORER, file_entry, write_manifest
from dragoman_export.precision import blockwise, caches, int8
from dragoman_export.precision.calibration import Range
from dragoman_export.precision.editable_graph import Graph
from dragoman_server.bundle.load import Bundle, load_bundle
from dragoman_server.bundle.manifest import MANIFEST_FILE, Integers

WIDER: dict[Integers, str] = {"int8": "fp32", "int8-weights": "fp32", "int4": "int8-weights"}
Models = dict[str, onnx.ModelProto]


@dataclass(frozen=True)
class Weights:
    """What is to be known of the weights of a model before they become integers.

    Attributes:
        names: by key, those of the decoder first: the scorer's are made up.
        seen: ranges of what is multiplied by them, by key.
    """

    names: Mapping[str, str]
    seen: Mapping[str, Range]


def load_graphs(bundle: Bundle) -> Models:
    """The graphs of a bundle by file name, with their weights inside."""
    return {name: onnx.load(bundle.path / name) for name in (ENCODER, DECODER, SCORER)}


def weight_names(models: Models) -> dict[str, str]:
    """Names of the weights that can be integers, by key."""
    names: dict[str, str] = {}
    for name in (DECODER, ENCODER, SCORER):
        for product in Graph(models[name]).products():
            names.setdefault(product.key, product.weight)
    return names


def rewrite(model: onnx.ModelProto, precision: Integers, weights: Weights, wider: Collection[str]) -> None:
    """Makes the weights of a graph integers.

    Args:
        wider: keys of the weights that get the next wider precision.
    """
    graph = Graph(model)
    if precision == "int8":
        int8.quantize(graph, weights.seen, wider)
    else:
        width, other = (8, None) if precision == "int8-weights" else (4, 8)
        bits = {key: other if key in wider else width for key in weights.names}
        blockwise.quantize(graph, {key: number for key, number in bits.items() if number})
    graph.finish()


def quantize_bundle(
    exact: Bundle,
    folder: Path,
    precision: Integers,
    weights: Weights,
    wider: Collection[str],
    scales: caches.Scales | None = None,
) -> Bundle:
    """Writes a bundle of integers.

    Args:
        exact: in fp32.
        folder: where to; what is there already goes.
        wider: see `rewrite`.
        scales: of the integers in the caches; None where those hold floats.

    Returns:
        the bundle, whose manifest lacks the outcome of checks and measurements.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    models = load_graphs(exact)
    for model in models.values():
        rewrite(model, precision, weights, wider)
        if scales is not None:
            caches.rewrite(model, scales)
    counts = {name: dict(operators(model)) for name, model in models.items()}
    save(models, folder)
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
