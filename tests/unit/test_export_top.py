"""The best of a large vocabulary in two passes: what one pass would find, equal numbers included."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from dragoman_export.graphs.two_pass_top_k import block_width, split_top_k

VOCABULARY = 4200
NUMBERS = np.random.default_rng(0)


def graph(vocabulary: int = VOCABULARY) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    return helper.make_model(
        helper.make_graph(
            [helper.make_node("TopK", ["x", "k"], ["log_probabilities", "ids"], axis=-1)],
            "graph",
            [value("x", TensorProto.FLOAT, ["rows", vocabulary]), value("k", TensorProto.INT64, [1])],
            [
                value("log_probabilities", TensorProto.FLOAT, ["rows", "n"]),
                value("ids", TensorProto.INT64, ["rows", "n"]),
            ],
        ),
        opset_imports=[helper.make_opsetid("", 24)],
        ir_version=10,
    )


@pytest.fixture(scope="module")
def split() -> ort.InferenceSession:
    model = graph()
    split_top_k(model, VOCABULARY)
    assert sum(node.op_type == "ReduceMax" for node in model.graph.node) == 1
    onnx.checker.check_model(model)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def lowest_first(x: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    ids = np.argsort(-x, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(x, ids, 1), ids


def forbidden(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """All but a handful are -inf."""
    return np.where(NUMBERS.random(x.shape) < 0.999, np.float32(-np.inf), x).astype(np.float32)


@pytest.mark.parametrize("k", [1, 5, 69, 70, 71, 600, VOCABULARY])
@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("change", [None, np.round, forbidden, np.zeros_like])
def test_the_same_is_found_in_the_same_order(split: ort.InferenceSession, k: int, rows: int, change: object) -> None:
    x = NUMBERS.standard_normal((rows, VOCABULARY)).astype(np.float32)
    if callable(change):
        x = change(x)
    values, ids = split.run(None, {"x": x, "k": np.array([k])})
    wanted, places = lowest_first(x, k)
    np.testing.assert_array_equal(values, wanted)
    np.testing.assert_array_equal(ids, places)


@pytest.mark.parametrize(
    ("vocabulary", "width"), [(32_000, 160), (65_536, 256), (50_000, 200), (58_101, 181), (4_000, None), (65_537, None)]
)
def test_blocks_divide_the_vocabulary(vocabulary: int, width: int | None) -> None:
    assert block_width(vocabulary) == width


def test_what_can_not_be_divided_stays() -> None:
    model = graph(65_537)
    before = model.SerializeToString()
    split_top_k(model, 65_537)
    assert model.SerializeToString() == before
