"""Whether graphs have the inputs and outputs that their manifest lists, and caches of what it says."""

import onnxruntime as ort

from dragoman_server.bundle.load import Bundle, BundleError
from dragoman_server.bundle.manifest import Graph
from dragoman_server.runtime.step import is_cache


def check_names(bundle: Bundle, graph: Graph, session: ort.InferenceSession) -> None:
    """Raises BundleError, which names the first that is missing or too many."""
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
    """Raises BundleError where layers or numbers of the caches are not those of the manifest, or not the same in both.

    Args:
        encoder, decoder: with the names that the manifest lists.
    """
    manifest = bundle.manifest
    types = {node.name: node.type for node in decoder.get_inputs() if _holds_positions(node.name)}
    layers = {name.rsplit("_", 1)[1] for name in types}
    if layers != {str(layer) for layer in range(manifest.shape.decoder_layers)}:
        raise BundleError(
            f"{bundle.path / manifest.graphs.decoder.file} has caches of {len(layers)} layers; "
            f"expected {manifest.shape.decoder_layers}, as the manifest says"
        )
    found = set(types.values())
    for node in (*encoder.get_outputs(), *decoder.get_outputs()):
        if _holds_positions(node.name):
            found.add(node.type)
    if len(found) > 1:
        raise BundleError(
            f"{bundle.path}: the graphs differ in the numbers of their caches: {', '.join(sorted(found))}"
        )
    [kind] = found
    if (kind == "tensor(int8)") != (manifest.cache == "int8"):
        raise BundleError(
            f"{bundle.path}: the caches of the graphs hold {kind}, but the manifest says {manifest.cache}"
        )


def _holds_positions(name: str) -> bool:
    """A cache of more than the last position."""
    return is_cache(name) and not name.startswith("last_")
