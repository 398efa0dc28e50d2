"""Memory that a graph reads and writes in place, on the host or on a GPU."""

import ctypes
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from server.runtime.device import Device

Array = NDArray[Any]


class Memory(Protocol):
    """A buffer of fixed shape and address, whose leading dimensions are [planes, rows].

    A plane is what one graph input is bound to: the keys of one layer, say. One buffer for all layers makes a row that
    moves one copy instead of one for each layer.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes: int

    def address(self, plane: int, row: int = 0) -> int:
        """Device address of a row."""

    def copy_row(self, source: int, target: int, start: int, stop: int) -> None:
        """Copies positions start .. stop-1 (of the second-last dimension) of a row in every plane.

        Others may be copied too: a caller must not care what the target has there.
        """

    def write(self, plane: int, row: int, values: Array) -> None:
        """Writes values [rows, ...] from `row` on; where shorter in the second-last dimension, the start of each."""

    def read(self, plane: int, row: int) -> Array:
        """A copy of one row on the host."""


class HostMemory:
    """Memory of the CPU: a NumPy array.

    NOTE: NumPy lets go of the interpreter's lock to copy more than 500 elements. Where several engines run, getting it
    back takes ten times as long as copying a row of a small model; so there an element is the whole last dimension.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        try:
            self.array: Array = np.zeros(shape, dtype)
        except (ValueError, OverflowError) as error:  # more than there are addresses
            raise MemoryError(str(error)) from None
        self.shape, self.dtype, self.nbytes = shape, dtype, self.array.nbytes
        self._base = self.array.ctypes.data
        self._vectors: Array = self.array.view(np.dtype((np.void, shape[-1] * dtype.itemsize)))[..., 0]

    def address(self, plane: int, row: int = 0) -> int:
        return self._base + plane * self.array.strides[0] + row * self.array.strides[1]

    def copy_row(self, source: int, target: int, start: int, stop: int) -> None:
        self._vectors[:, target, ..., start:stop] = self._vectors[:, source, ..., start:stop]

    def write(self, plane: int, row: int, values: Array) -> None:
        self.array[plane, row : row + len(values), ..., : values.shape[-2], :] = values

    def read(self, plane: int, row: int) -> Array:
        row_values: Array = self.array[plane, row].copy()
        return row_values


class CudaMemory:
    """Memory of a GPU, allocated and copied through the CUDA runtime that ONNX Runtime itself uses.

    NOTE: ONNX Runtime has synchronised its stream when `run_with_iobinding` returns, and every copy here ends with a
    synchronisation of its own, so that neither can overtake the other.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: Device) -> None:
        self.shape, self.dtype = shape, dtype
        self._plane_bytes = prod(shape[1:]) * dtype.itemsize
        self._row_bytes = prod(shape[2:]) * dtype.itemsize
        self.nbytes = shape[0] * self._plane_bytes
        self._cuda = cuda_runtime()
        pointer = ctypes.c_void_p()
        _check(self._cuda, self._cuda.cudaSetDevice(device.index))
        _check(self._cuda, self._cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(self.nbytes)))
        self._base = pointer.value or 0
        # Garbage beyond a row's length is never attended to, but a NaN times a zero weight would be a NaN.
        _check(self._cuda, self._cuda.cudaMemset(pointer, 0, ctypes.c_size_t(self.nbytes)))

    def __del__(self) -> None:
        if getattr(self, "_base", 0):
            self._cuda.cudaFree(ctypes.c_void_p(self._base))

    def address(self, plane: int, row: int = 0) -> int:
        return self._base + plane * self._plane_bytes + row * self._row_bytes

    def copy_row(self, source: int, target: int, start: int, stop: int) -> None:
        # One two-dimensional copy: a line for each plane, the whole row each. Less would be a copy for each plane, and
        # a GPU copies some megabytes in the time that it takes to tell it to.
        pitch = ctypes.c_size_t(self._plane_bytes)
        width, height = ctypes.c_size_t(self._row_bytes), ctypes.c_size_t(self.shape[0])
        to, from_ = ctypes.c_void_p(self.address(0, target)), ctypes.c_void_p(self.address(0, source))
        _check(self._cuda, self._cuda.cudaMemcpy2D(to, pitch, from_, pitch, width, height, _DEVICE_TO_DEVICE))
        _check(self._cuda, self._cuda.cudaStreamSynchronize(None))

    def write(self, plane: int, row: int, values: Array) -> None:
        if values.shape[1:] != self.shape[2:]:
            padded = np.zeros((len(values), *self.shape[2:]), self.dtype)
            padded[..., : values.shape[-2], :] = values
            values = padded
        values = np.ascontiguousarray(values, self.dtype)
        self._copy(self.address(plane, row), values.ctypes.data, values.nbytes, _HOST_TO_DEVICE)

    def read(self, plane: int, row: int) -> Array:
        values: Array = np.empty(self.shape[2:], self.dtype)
        self._copy(values.ctypes.data, self.address(plane, row), values.nbytes, _DEVICE_TO_HOST)
        return values

    def _copy(self, target: int, source: int, size: int, kind: int) -> None:
        arguments = ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_size_t(size), kind
        _check(self._cuda, self._cuda.cudaMemcpy(*arguments))


_HOST_TO_DEVICE, _DEVICE_TO_HOST, _DEVICE_TO_DEVICE = 1, 2, 3  # enum cudaMemcpyKind


def allocate(shape: tuple[int, ...], dtype: np.dtype[Any], device: Device) -> Memory:
    """Zeroed memory on a device.

    Raises:
        MemoryError: there is not that much.
    """
    return HostMemory(shape, dtype) if device.kind == "cpu" else CudaMemory(shape, dtype, device)


def cuda_runtime() -> Any:
    """The CUDA runtime library, of the newest major version that is installed.

    Raises:
        OSError: there is none.
    """
    for major in (13, 12):
        try:
            return ctypes.CDLL(f"libcudart.so.{major}")
        except OSError as error:
            reason = error
    raise reason


def _check(cuda: Any, code: int) -> None:
    if code == 0:
        return
    cuda.cudaGetErrorString.restype = ctypes.c_char_p
    message = cuda.cudaGetErrorString(code).decode()
    raise MemoryError(message) if code == 2 else RuntimeError(f"CUDA: {message}")
