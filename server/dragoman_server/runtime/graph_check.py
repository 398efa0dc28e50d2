"""Checks a graph's inputs, outputs and caches against the manifest."""

import onnxruntime as ort

from dragoman_server.bundle.load import Bundle, BundleError
from dragoman_server.bundle.manifest import Graph


def is_cache(name: str) -> bool:
    """Returns whether a graph input or output is a KV cache."""
    return name.split("_", 1)[0] in ("self", "cross", "last") and not name.endswith("capacity")


def check_names(bundle: Bundle, graph: Graph, session: ort.InferenceSession) -> None:
    """Checks that a graph has the inputs and outputs that the manifest lists, and no others.

    Raises:
        BundleError: One is missing or undeclared; the message names the first.
    """
    for kind, declared, nodes in (
        ("input", graph.inputs, session.get_inputs()),
        ("output", graph.outputs, session.get_outputs()),
    ):
        actual = [node.name for node in nodes]
        for name in [*declared, *actual]:
            if name not in actual:
                raise BundleError(f"{bundle.path / graph.file} has no {kind} {name}, which the manifest lists")
            if name not in declared:
                raise BundleError(f"{bundle.path / graph.file} has an {kind} {name}, which the manifest does not list")


def check_caches(bundle: Bundle, encoder: ort.InferenceSession, decoder: ort.InferenceSession) -> None:
    """Checks the layers and the element type of the caches.

    Args:
        encoder, decoder: Sessions that passed `check_names`.

    Raises:
        BundleError: They differ from the manifest, or between the two graphs.
    """
    manifest = bundle.manifest
    types = {node.name: node.type for node in decoder.get_inputs() if _is_kv_cache(node.name)}
    layers = {name.rsplit("_", 1)[1] for name in types}
    if layers != {str(layer) for layer in range(manifest.shape.decoder_layers)}:
        raise BundleError(
            f"{bundle.path / manifest.graphs.decoder.file} has caches of {len(layers)} layers; "
            f"expected {manifest.shape.decoder_layers}, as the manifest says"
        )
    found = set(types.values())
    for node in (*encoder.get_outputs(), *decoder.get_outputs()):
        if _is_kv_cache(node.name):
            found.add(node.type)
    if len(found) > 1:
        raise BundleError(f"{bundle.path}: the graphs have caches of different types: {', '.join(sorted(found))}")
    [element_type] = found
    if (element_type == "tensor(int8)") != (manifest.cache == "int8"):
        raise BundleError(
            f"{bundle.path}: the caches of the graphs are {element_type}, but the manifest says {manifest.cache}"
        )


def _is_kv_cache(name: str) -> bool:
    """Returns whether this is a cache of all positions, not of the last one only."""
    return is_cache(name) and not name.startswith("last_")
