"""Runs a model on data to measure the ranges of its activations and caches, from which `scales` computes scales."""

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper

from dragoman_export.checks.affordable import reserved_rows
from dragoman_export.checks.quality import ComparisonSet
from dragoman_export.graphs.onnx_model import WEIGHTS_FILE, OnnxModel
from dragoman_export.precision.editable_graph import EditableGraph, Floats
from dragoman_server.bundle.load import Bundle
from dragoman_server.machine import usable_cpus
from dragoman_server.runtime.device import CPU, open_session
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions

CACHE_ROWS = 32  # rows decoded together to measure the caches

Feed = Mapping[str, NDArray[np.generic]]
"""Inputs of the scorer: one source with its target, without padding."""


@dataclass
class Range:
    """The range of the activations that are multiplied by one weight.

    Attributes:
        least, most: Minimum and maximum of each component, float32 [in].
    """

    least: Floats
    most: Floats


def calibration_feeds(bundle: Bundle, data: ComparisonSet) -> list[Feed]:
    """Returns scorer inputs for the examples of a data set."""
    return [scorer_feed(source, target, bundle.manifest.tokens.begin) for source, target in data.examples(bundle)]


def scorer_feed(source: Sequence[int], target: Sequence[int], begin: int) -> Feed:
    """Returns the scorer inputs of a source with its end token and a target without begin and end token."""
    return {
        "source_ids": np.array([source], np.int64),
        "source_lengths": np.array([len(source)], np.int32),
        "target_ids": np.array([[begin, *target]], np.int64),
        "target_lengths": np.array([len(target) + 1], np.int32),
    }


def cpu_session(model: OnnxModel) -> ort.InferenceSession:
    """Opens a session for a graph that is not in a file, though most of its weights may be."""
    with tempfile.TemporaryDirectory(dir=model.file.path.parent if model.file else None) as folder:
        place = Path(folder)
        if model.file:  # ONNX Runtime reads weights only from the graph's own directory
            try:
                (place / WEIGHTS_FILE).hardlink_to(model.file.path)
            except OSError:  # not every file system has hard links
                shutil.copyfile(model.file.path, place / WEIGHTS_FILE)
        (place / "graph.onnx").write_bytes(model.with_new_weights_inside().SerializeToString())
        return open_session(place / "graph.onnx", CPU, usable_cpus())


def log_probabilities(scorer: ort.InferenceSession, feeds: Sequence[Feed]) -> Floats:
    """Returns the log-probabilities of all tokens of all targets [tokens]."""
    found: Floats = np.concatenate([scorer.run(["log_probabilities"], dict(feed))[0].ravel() for feed in feeds])
    return found


def activation_ranges(scorer: OnnxModel, feeds: Iterable[Feed]) -> dict[str, Range]:
    """Returns the range of the activations of each weight, by the weight's key.

    Args:
        scorer: The scorer graph, which has all weights of a model. It is not changed.
        feeds: Its inputs.
    """
    model = scorer.copy()
    keys: dict[str, list[str]] = {}
    for product in EditableGraph(model).products():
        keys.setdefault(product.x, []).append(product.key)
    graph = model.graph
    del graph.output[:]
    graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in keys)
    session = cpu_session(model)
    found: dict[str, Range] = {}
    for feed in feeds:
        for name, values in zip(keys, session.run(list(keys), dict(feed)), strict=True):
            rows = values.reshape(-1, values.shape[-1])
            least, most = rows.min(0), rows.max(0)
            for key in keys[name]:
                seen = found.setdefault(key, Range(least, most))
                found[key] = Range(np.minimum(seen.least, least), np.maximum(seen.most, most))
    return found


def cache_peaks(exact: Bundle, feeds: Sequence[Feed], threads: int) -> dict[str, Floats]:
    """Returns the largest absolute value of each component by cache, float32 [1, heads, 1, d_head].

    Args:
        exact: The bundle in fp32.
        feeds: Sources, and targets to decode whatever the model would choose.
        threads: Threads of the runtime.
    """
    rows = reserved_rows(exact.manifest, CACHE_ROWS)
    runtime = Runtime(Sessions(exact, CPU, threads), rows)
    shape = exact.manifest.shape
    peaks = {
        f"{kind}_{part}_{layer}": np.zeros((1, shape.heads, 1, shape.d_head), np.float32)
        for kind in ("self", "cross")
        for layer in range(shape.decoder_layers)
        for part in ("key", "value")
    }
    for start in range(0, len(feeds), rows):
        lengths = _force_targets(runtime, feeds[start : start + rows])
        for name, seen in peaks.items():
            memory, plane = runtime.pool.place(name)
            for row, length in enumerate(lengths[name.split("_")[0]]):
                cached = np.abs(memory.read(plane, row)[:, :length]).max(1, keepdims=True)
                np.maximum(seen, cached, out=seen)
    return peaks


def _force_targets(runtime: Runtime, feeds: Sequence[Feed]) -> dict[str, list[int]]:
    """Decodes one row for each feed; returns the used positions of each row by kind of cache."""
    targets = [feed["target_ids"][0] for feed in feeds]
    rows, longest = len(feeds), max(map(len, targets))
    ids = np.zeros((rows, longest), np.int64)
    for row, target in enumerate(targets):
        ids[row, : len(target)] = target
    runtime.encode([feed["source_ids"][0].tolist() for feed in feeds], 0)
    for place in range(longest):
        runtime.tokens[:rows, 0] = ids[:, place]
        runtime.positions[:rows] = place
        runtime.top(rows, 1)
    return {"self": [len(target) for target in targets], "cross": runtime.source_lengths[:rows].tolist()}
