"""Cache rows in the CPU's memory."""

import numpy as np
import pytest
from numpy.typing import NDArray

from server.runtime.memory import HostMemory

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


def filled(shape: tuple[int, ...], dtype: type) -> tuple[HostMemory, NDArray[np.generic]]:
    """Memory in which every number is different, and a copy of it."""
    memory = HostMemory(shape, np.dtype(dtype))
    memory.array[:] = np.arange(memory.array.size).reshape(shape) + 2
    return memory, memory.array.copy()
