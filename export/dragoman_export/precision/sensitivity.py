"""Which weights suffer most from becoming integers."""

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime as ort

from dragoman_export.precision.calibration import Feed
from dragoman_export.precision.editable_graph import Floats
from dragoman_export.precision.quantize import Weights, rewrite
from dragoman_server.bundle.manifest import Integers
from dragoman_server.machine import usable_cpus


def log_probabilities(scorer: ort.InferenceSession, feeds: Sequence[Feed]) -> Floats:
    """Of all tokens of all targets [tokens]."""
    found: Floats = np.concatenate([scorer.run(["log_probabilities"], dict(feed))[0].ravel() for feed in feeds])
    return found


def most_sensitive(
    scorer: onnx.ModelProto, feeds: Sequence[Feed], precision: Integers, weights: Weights
) -> list[tuple[str, float]]:
    """Keys of weights, those first that cost most, and how much each does alone.

    One weight after the other is made integers, and the others left as they are. What it costs is the mean absolute
    change of the log-probabilities of the targets, in nats.

    Args:
        scorer: in fp32.
        feeds: see `calibration.feeds`.
    """
    exact = log_probabilities(_session(scorer), feeds)
    costs: dict[str, float] = {}
    for key in weights.names:
        model = onnx.ModelProto.FromString(scorer.SerializeToString())
        one = Weights({key: weights.names[key]}, {key: weights.seen[key]})
        rewrite(model, precision, one, ())
        costs[key] = float(np.abs(log_probabilities(_session(model), feeds) - exact).mean())
    return sorted(costs.items(), key=lambda item: -item[1])


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = usable_cpus()
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
