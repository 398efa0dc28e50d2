"""How large what is multiplied by each weight becomes, on data."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper

from dragoman_export.precision.editable_graph import Floats, Graph
from dragoman_server.machine import usable_cpus


@dataclass
class Range:
    """Of the activations that are multiplied by one weight.

    Attributes:
        least, most: float32 [in], of each component.
    """

    least: Floats
    most: Floats


Feed = Mapping[str, NDArray[np.generic]]


def ranges(scorer: onnx.ModelProto, feeds: Iterable[Feed]) -> dict[str, Range]:
    """What was seen in the scorer, which has all weights of a model, by the key of the weight.

    Args:
        scorer: a graph that is not to be changed.
        feeds: its inputs, without padding.
    """
    model = onnx.ModelProto.FromString(scorer.SerializeToString())
    keys: dict[str, list[str]] = {}
    for product in Graph(model).products():
        keys.setdefault(product.x, []).append(product.key)
    del model.graph.output[:]
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in keys)
    options = ort.SessionOptions()
    options.intra_op_num_threads = usable_cpus()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: dict[str, Range] = {}
    for feed in feeds:
        for name, values in zip(keys, session.run(list(keys), dict(feed)), strict=True):
            rows = values.reshape(-1, values.shape[-1])
            least, most = rows.min(0), rows.max(0)
            for key in keys[name]:
                seen = found.setdefault(key, Range(least, most))
                found[key] = Range(np.minimum(seen.least, least), np.maximum(seen.most, most))
    return found


def feeds(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], begin: int) -> Iterator[Feed]:
    """One of each source with its target.

    Args:
        pairs: source ids with the end token, target ids without begin and end token.
    """
    for source, target in pairs:
        yield {
            "source_ids": np.array([source], np.int64),
            "source_lengths": np.array([len(source)], np.int32),
            "target_ids": np.array([[begin, *target]], np.int64),
            "target_lengths": np.array([len(target) + 1], np.int32),
        }
