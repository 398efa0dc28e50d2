"""Cache rows in the CPU's memory."""

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from dragoman_server.runtime.buffers import HostMemory, ort_element_type

SHAPES = {"layers of heads": (4, 3, 2, 7, 8), "whole vectors": (4, 3, 1, 16)}


@pytest.fixture(params=list(SHAPES.values()), ids=list(SHAPES))
def shape(request: pytest.FixtureRequest) -> tuple[int, ...]:
    shape: tuple[int, ...] = request.param
    return shape


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_copies_the_positions_asked_for_and_nothing_else(shape: tuple[int, ...], dtype: type) -> None:
    memory, before = filled(shape, dtype)
    start, stop = (2, 5) if shape[-2] > 1 else (0, 1)
    memory.copy_row(2, 0, start, stop)
    expected = before.copy()
    expected[:, 0, ..., start:stop, :] = before[:, 2, ..., start:stop, :]
    np.testing.assert_array_equal(memory.array, expected)


def test_copies_nothing_where_there_is_nothing_to_copy(shape: tuple[int, ...]) -> None:
    memory, before = filled(shape, np.float32)
    memory.copy_row(1, 2, shape[-2], shape[-2])
    np.testing.assert_array_equal(memory.array, before)


def test_writes_the_start_of_rows(shape: tuple[int, ...]) -> None:
    memory, expected = filled(shape, np.float32)
    values = np.ones((2, *shape[2:-2], 1, shape[-1]), np.float32)
    memory.write(3, 1, values)
    expected[3, 1:3, ..., :1, :] = 1
    np.testing.assert_array_equal(memory.array, expected)
    np.testing.assert_array_equal(memory.read(3, 1), expected[3, 1])


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [(np.float32, TensorProto.FLOAT), (np.float16, TensorProto.FLOAT16), (np.uint16, TensorProto.BFLOAT16)],
)
def test_graphs_write_numbers_of_every_cache(dtype: type, kind: int) -> None:
    """Of bf16, which NumPy lacks, memory holds the bits."""
    (x, y), node = (
        [helper.make_tensor_value_info(name, kind, [5]) for name in "xy"],
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    )
    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [5])
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [y], [shape]), opset_imports=[helper.make_opsetid("", 24)], ir_version=10
    )
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    memory = HostMemory((2, 1, 1, 5), np.dtype(dtype))
    memory.array[0] = [1, 2, 3, 65000, 0]
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, ort_element_type(memory.dtype), (5,), memory.address(0))
    binding.bind_output("y", "cpu", 0, ort_element_type(memory.dtype), (5,), memory.address(1))
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(memory.array[1], memory.array[0])


def filled(shape: tuple[int, ...], dtype: type) -> tuple[HostMemory, NDArray[np.generic]]:
    """Memory in which every number is different, and a copy of it."""
    memory = HostMemory(shape, np.dtype(dtype))
    memory.array[:] = np.arange(memory.array.size).reshape(shape) + 2
    return memory, memory.array.copy()
