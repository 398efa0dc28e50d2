"""Whether a graph has the inputs and outputs that its manifest lists."""

import onnxruntime as ort

from server.bundle.load import Bundle, BundleError
from server.bundle.manifest import Graph


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
