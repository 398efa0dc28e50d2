"""Quantized graphs: what they compute, which weights are kept, and how scales and sensitive weights are found."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from dragoman_export.bundle.bf16_on_cpu import widen
from dragoman_export.graphs.onnx_model import OnnxModel
from dragoman_export.precision import scales
from dragoman_export.precision.calibration import Range, activation_ranges
from dragoman_export.precision.editable_graph import LARGE, EditableGraph
from dragoman_export.precision.quantization_search import rank_by_sensitivity
from dragoman_export.precision.quantize import CalibratedWeights, quantize_graph
from dragoman_server.runtime.device import CPU, open_session
from tests.support.onnx_models import complete

Arrays = Mapping[str, NDArray[Any]]
IN, OUT, ROWS = 64, 48, 9


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def graph(nodes: list[onnx.NodeProto], inputs: dict[str, int], outputs: list[str], weights: Arrays) -> OnnxModel:
    """Returns a graph whose inputs have the given ONNX types, and whose outputs are fp32."""
    proto = helper.make_model(
        helper.make_graph(
            nodes,
            "graph",
            [helper.make_tensor_value_info(name, kind, None) for name, kind in inputs.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        ),
        opset_imports=[helper.make_opsetid("", 24)],
        ir_version=10,
    )
    model = OnnxModel(proto)
    model.graph.initializer.extend(model.new_tensor(name, values) for name, values in weights.items())
    return model


def run(model: OnnxModel, folder: Path, feed: Arrays) -> list[NDArray[Any]]:
    """Runs a graph as the server does."""
    path = folder / "graph.onnx"
    path.write_bytes(complete(model).SerializeToString())
    outputs: list[NDArray[Any]] = open_session(path, CPU, 1).run(None, dict(feed))
    return outputs


def test_emulated_bf16_rounds_after_every_operator(rng: np.random.Generator, tmp_path: Path) -> None:
    """x -> Gemm -> Relu -> Add in bf16 with inputs and outputs in fp32. Numbers that are only moved are not rounded."""
    kind, values = TensorProto.BFLOAT16, rng.standard_normal((ROWS, IN)).astype(np.float32)
    weights = {
        "weight": rng.standard_normal((IN, IN)).astype(ml_dtypes.bfloat16),
        "bias": rng.standard_normal(IN).astype(ml_dtypes.bfloat16),
        "flat": np.array([-1]),
    }
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=kind),
        helper.make_node("Gemm", ["narrow", "weight", "bias"], ["y"]),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("Add", ["narrow", "z"], ["sum"]),
        helper.make_node("Reshape", ["sum", "flat"], ["moved"]),
        helper.make_node("Cast", ["moved"], ["wide"], to=TensorProto.FLOAT),
    ]
    model = graph(nodes, {"x": TensorProto.FLOAT}, ["wide"], weights)
    model.graph.output.append(helper.make_tensor_value_info("y", kind, None))
    widen(model, kind)

    def as_bf16(array: NDArray[Any]) -> NDArray[Any]:
        return array.astype(ml_dtypes.bfloat16).astype(np.float64)

    x = as_bf16(values)
    y = as_bf16(x @ as_bf16(weights["weight"]) + as_bf16(weights["bias"]))
    wide, product = run(model, tmp_path, {"x": values})
    assert product.dtype == np.float32
    # A sum may be so near the middle of two numbers that another order of summing rounds it the other way.
    assert (product == y).mean() > 0.99
    np.testing.assert_allclose(product, y, rtol=2**-7)
    np.testing.assert_array_equal(wide, as_bf16(x + np.maximum(product, 0)).ravel())
    assert not (wide.astype(np.float32).view(np.uint32) & 0xFFFF).any()
    assert [node.op_type for node in model.graph.node].count("Cast") == 2 + 2 * 4, "none for the Reshape"


def layers(rng: np.random.Generator) -> OnnxModel:
    """x -> Gemm -> Relu -> MatMul of three dimensions."""
    weights = {
        "a": rng.standard_normal((IN, OUT)).astype(np.float32),
        "bias": rng.standard_normal(OUT).astype(np.float32),
        "b": rng.standard_normal((OUT, IN)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "a", "bias"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Unsqueeze", ["r", "axis"], ["u"]),
        helper.make_node("MatMul", ["u", "b"], ["y"]),
    ]
    return graph(nodes, {"x": TensorProto.FLOAT}, ["y"], weights | {"axis": np.array([0])})


def tied(rng: np.random.Generator) -> OnnxModel:
    """Rows of a table, times a temperature factor and the table; times the transposed table; and themselves."""
    table = rng.standard_normal((OUT, IN)).astype(np.float32)
    forbidden = np.zeros(OUT, np.float32)
    forbidden[3] = -np.inf
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Mul", ["rows", "scales"], ["scaled"]),
        helper.make_node("Gemm", ["scaled", "table", "forbidden"], ["logits"], transB=1),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["rows", "turned"], ["again"]),
        helper.make_node("Identity", ["rows"], ["embedded"]),
    ]
    inputs: dict[str, int] = {"ids": TensorProto.INT64, "scales": TensorProto.FLOAT}
    return graph(nodes, inputs, ["logits", "again", "embedded"], {"table": table, "forbidden": forbidden})


def quantized(model: OnnxModel, precision: Any, feed: Arrays, wider: tuple[str, ...] = ()) -> OnnxModel:
    names = {product.key: product.weight for product in EditableGraph(model).products()}
    copy = model.copy()
    keys = [key for key, name in names.items() if name in wider]
    quantize_graph(copy, precision, CalibratedWeights(names, activation_ranges(model, [feed])), keys)
    return copy


def relative_error(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """Returns the standard deviation of the difference as a share of that of the expected values."""
    finite = np.isfinite(expected)
    assert (np.isfinite(actual) == finite).all()
    return float((actual[finite] - expected[finite]).std() / expected[finite].std())


@pytest.mark.parametrize(
    ("precision", "least", "most"), [("int8", 2e-3, 0.02), ("int8-weights", 1e-3, 0.02), ("int4", 0.03, 0.12)]
)
def test_quantized_products_are_close(
    precision: str, least: float, most: float, rng: np.random.Generator, tmp_path: Path
) -> None:
    model, feed = layers(rng), {"x": rng.standard_normal((ROWS, IN)).astype(np.float32)}
    small = quantized(model, precision, feed)
    operators = {node.op_type for node in small.graph.node}
    assert not operators & {"Gemm", "MatMul"}
    assert all(
        t.data_type != TensorProto.FLOAT or len(t.dims) < 2 or t.name.endswith("scales")
        for t in small.graph.initializer
    )
    (expected,), (actual,) = run(model, tmp_path, feed), run(small, tmp_path, feed)
    assert least < relative_error(actual, expected) < most


@pytest.mark.parametrize("precision", ["int8", "int8-weights", "int4"])
def test_a_row_does_not_depend_on_the_others(precision: str, rng: np.random.Generator, tmp_path: Path) -> None:
    """Batches have two rows at least, as in the server: a CPU multiplies a single row by another kernel."""
    x = rng.standard_normal((ROWS, IN)).astype(np.float32)
    small = quantized(layers(rng), precision, {"x": x})
    (together,) = run(small, tmp_path, {"x": np.concatenate([x, 100 * x])})
    for row in range(ROWS):
        (paired,) = run(small, tmp_path, {"x": np.stack([x[row], -x[0]])})
        np.testing.assert_array_equal(paired[0, 0], together[0, row])


@pytest.mark.parametrize(("precision", "most"), [("int8", 0.02), ("int8-weights", 0.02), ("int4", 0.2)])
def test_tied_table_is_stored_once_and_temperatures_are_not_clipped(
    precision: str, most: float, rng: np.random.Generator, tmp_path: Path
) -> None:
    model = tied(rng)
    feed: dict[str, NDArray[Any]] = {"ids": np.arange(ROWS), "scales": np.ones((ROWS, 1), np.float32)}
    small = quantized(model, precision, feed)
    contents = {small.values(tensor).tobytes() for tensor in small.graph.initializer if len(tensor.dims) > 1}
    large = [content for content in contents if len(content) >= OUT * IN // 2]
    assert len(large) == 1, "lookup and product share one table"
    feed["scales"] = np.geomspace(0.1, 20, ROWS, dtype=np.float32)[:, None]
    expected, actual = run(model, tmp_path, feed), run(small, tmp_path, feed)
    for after, before in zip(actual, expected, strict=True):
        assert relative_error(after, before) < most
    assert np.isneginf(actual[0][:, 3]).all(), "forbidden tokens stay forbidden"


def test_lookups_dequantize_rows_of_a_table(rng: np.random.Generator, tmp_path: Path) -> None:
    model = tied(rng)
    table = model.values(model.graph.initializer[0]).view(np.float32)
    feed = {"ids": np.array([5, 47]), "scales": np.ones((2, 1), np.float32)}
    integers, factors = scales.by_output(table)
    embedded = run(quantized(model, "int8", feed), tmp_path, feed)[2]
    np.testing.assert_array_equal(embedded, (integers * factors[:, None])[feed["ids"]])
    for precision, bits in (("int8-weights", 8), ("int4", 4)):
        packed, factors = scales.by_block(table, bits)
        numbers = packed if bits == 8 else np.stack([packed & 15, packed >> 4], -1).reshape(OUT, -1, scales.BLOCK)
        dequantized = ((numbers.astype(np.float32) - 2 ** (bits - 1)) * factors[..., None]).reshape(OUT, IN)
        embedded = run(quantized(model, precision, feed), tmp_path, feed)[2]
        np.testing.assert_array_equal(embedded, dequantized[feed["ids"]])


@pytest.mark.parametrize("bits", [8, 4])
def test_incomplete_blocks_are_padded(bits: int, rng: np.random.Generator, tmp_path: Path) -> None:
    weight, x = rng.standard_normal((40, OUT)).astype(np.float32), rng.standard_normal((3, 40)).astype(np.float32)
    model = graph([helper.make_node("Gemm", ["x", "w"], ["y"])], {"x": TensorProto.FLOAT}, ["y"], {"w": weight})
    (actual,) = run(quantized(model, "int4" if bits == 4 else "int8-weights", {"x": x}), tmp_path, {"x": x})
    assert relative_error(actual, x @ weight) < (0.1 if bits == 4 else 0.01)


def test_large_lookup_table_is_quantized_too(rng: np.random.Generator, tmp_path: Path) -> None:
    table = rng.standard_normal((LARGE // 4 // IN, IN)).astype(np.float32)
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"])]
    model = graph(nodes, {"ids": TensorProto.INT64}, ["y"], {"table": table})
    ids = np.array([[0, 7], [1, len(table) - 1]])
    for precision in ("int8", "int8-weights"):
        small = model.copy()
        quantize_graph(small, precision, CalibratedWeights({}, {}), ())
        assert complete(small).ByteSize() < 0.35 * complete(model).ByteSize()
        (actual,) = run(small, tmp_path, {"ids": ids})
        assert relative_error(actual, table[ids]) < 0.01


@pytest.mark.parametrize(("precision", "most"), [("int8", 1e-5), ("int8-weights", 0.01), ("int4", 0.15)])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_products_do_not_overflow(precision: str, most: float, sign: int, tmp_path: Path) -> None:
    """Pairs of 255 * 127 do not fit into 16 bits, in which some CPUs add them."""
    weight = np.full((IN, 16), -0.999 * sign, np.float32)
    weight[:: scales.BLOCK] = sign  # makes all others the largest integer of the other sign
    if precision == "int8":
        weight[:] = sign
    model = graph([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": TensorProto.FLOAT}, ["y"], {"w": weight})
    x = np.full((ROWS, IN), 255, np.float32)
    (actual,) = run(quantized(model, precision, {"x": x}), tmp_path, {"x": x})
    np.testing.assert_allclose(actual, x @ weight, rtol=most)


def test_int8_factors_have_seven_bits(rng: np.random.Generator) -> None:
    model = tied(rng)
    feed: dict[str, NDArray[Any]] = {"ids": np.arange(ROWS), "scales": np.ones((ROWS, 1), np.float32)}
    small = quantized(model, "int8", feed)
    for tensor in small.graph.initializer:
        if tensor.data_type == TensorProto.INT8 and len(tensor.dims) == 2:
            assert 32 < np.abs(small.values(tensor).astype(int)).max() <= 63


def test_scales_leave_the_least_squared_error(rng: np.random.Generator) -> None:
    """Clipping one outlier costs less than larger steps cost all other values."""
    values = rng.standard_normal((50, 400)).astype(np.float32)
    values[0, 7] = 5
    reaching = np.abs(values).max(1, keepdims=True) / 7
    errors = {}
    for shares in ((1.0,), scales.SHARES):
        integers, best = scales.round_to_integers(values, reaching, -7, 7, shares)
        assert np.abs(integers).max() == 7
        errors[shares] = np.square(integers * best - values).sum(1)
        tried = reaching * np.array(shares, np.float32)
        assert (np.isclose(best, tried).sum(1) == 1).all(), "one of the candidates"
    assert (errors[scales.SHARES] <= errors[(1.0,)]).all()
    assert errors[scales.SHARES].sum() < 0.95 * errors[(1.0,)].sum()
    integers, best = scales.round_to_integers(np.zeros((1, 3), np.float32), np.ones((1, 1), np.float32), -7, 7)
    assert (integers == 0).all()
    assert best == 1


def test_wider_weights_are_kept(rng: np.random.Generator) -> None:
    model, feed = layers(rng), {"x": rng.standard_normal((ROWS, IN)).astype(np.float32)}
    kept = quantized(model, "int8", feed, wider=("b",))
    assert [node.op_type for node in kept.graph.node if "MatMul" in node.op_type] == ["MatMulIntegerToFloat", "MatMul"]
    kept = quantized(model, "int4", feed, wider=("b",))
    bits = [a.i for node in kept.graph.node for a in node.attribute if a.name == "bits"]
    assert bits == [4, 8]


def test_ranges_cover_all_feeds(rng: np.random.Generator) -> None:
    model = layers(rng)
    feeds = [{"x": np.full((2, IN), number, np.float32)} for number in (-3, 5, 1)]
    seen = list(activation_ranges(model, feeds).values())
    assert (seen[0].least.min(), seen[0].most.max()) == (-3, 5)
    assert seen[1].least.min() == 0, "after a Relu"
    scale, zero = scales.activation_scale(seen[1])
    assert zero == 0, "all 256 integers represent values that are not negative"
    assert float(scale) == pytest.approx(float(seen[1].most.max()) / 255)
    assert scales.activation_scale(Range(np.zeros(1, np.float32), np.zeros(1, np.float32)))[0] > 0, "nothing but zeros"


def test_the_most_sensitive_weight_is_ranked_first(rng: np.random.Generator) -> None:
    """One activation of the second weight is a thousand times the others and hardly counts, but sets its scale."""
    model = layers(rng)
    a, _, b, _ = (model.values(tensor).astype(np.float32) for tensor in model.graph.initializer)
    a[:, 0] *= 1000
    b[0] /= 1000
    for tensor, values in zip(model.graph.initializer, (a, None, b, None), strict=True):
        if values is not None:
            tensor.CopyFrom(model.new_tensor(tensor.name, values))
    model.graph.node[-1].output[0] = "log_probabilities"
    model.graph.output[0].name = "log_probabilities"
    feeds = [{"x": rng.standard_normal((ROWS, IN)).astype(np.float32)}]
    names = {product.key: product.weight for product in EditableGraph(model).products()}
    ranked = rank_by_sensitivity(model, feeds, "int8", CalibratedWeights(names, activation_ranges(model, feeds)))
    assert [names[key] for key, _ in ranked] == ["b", "a"]
    assert ranked[0][1] > 10 * ranked[1][1]
