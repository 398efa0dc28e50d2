"""Memory that a graph reads and writes in place, on the host or on a GPU."""

from collections.abc import Mapping
from math import prod
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

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


class Stream(Protocol):
    """A device whose memory is not the host's, and what is done there one after the other.

    Attributes:
        kind, index: how ONNX Runtime calls the device.
    """

    kind: Literal["cpu", "cuda"]
    index: int

    def allocate(self, size: int) -> int:
        """The address of so many zeroed bytes on the device.

        Raises:
            MemoryError: there is not that much.
        """

    def free(self, address: int) -> None:
        """Gives back what `allocate` gave."""

    def host_block(self, size: int) -> NDArray[np.uint8]:
        """Zeroed memory of the host, from and to which copies are fast and need not be waited for one by one."""

    def copy(self, target: int, source: int, size: int) -> None:
        """Copies bytes between the device and the host, or on the device, after what was asked for before.

        Host memory must stay as it is until `synchronize` has returned.
        """

    def copy_lines(self, target: int, source: int, pitch: int, width: int, height: int) -> None:
        """Copies `height` lines of `width` bytes, that begin `pitch` bytes after each other."""

    def synchronize(self) -> None:
        """Returns when all is done that was asked for."""


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


class StreamMemory:
    """Memory of a device, copied in the order of its stream.

    Copies from row to row are not waited for: whatever runs after them, runs on the same stream.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], stream: Stream) -> None:
        self.shape, self.dtype = shape, dtype
        self._plane_bytes = prod(shape[1:]) * dtype.itemsize
        self._row_bytes = prod(shape[2:]) * dtype.itemsize
        self.nbytes = shape[0] * self._plane_bytes
        self._stream = stream
        # Garbage beyond a row's length is never attended to, but a NaN times a zero weight would be a NaN.
        self._base = stream.allocate(self.nbytes)

    def __del__(self) -> None:
        if getattr(self, "_base", 0):
            self._stream.free(self._base)

    def address(self, plane: int, row: int = 0) -> int:
        return self._base + plane * self._plane_bytes + row * self._row_bytes

    def copy_row(self, source: int, target: int, start: int, stop: int) -> None:
        # One two-dimensional copy: a line for each plane, the whole row each. Less would be a copy for each plane, and
        # a GPU copies some megabytes in the time that it takes to tell it to.
        to, from_ = self.address(0, target), self.address(0, source)
        self._stream.copy_lines(to, from_, self._plane_bytes, self._row_bytes, self.shape[0])

    def write(self, plane: int, row: int, values: Array) -> None:
        if values.shape[1:] != self.shape[2:]:
            padded = np.zeros((len(values), *self.shape[2:]), self.dtype)
            padded[..., : values.shape[-2], :] = values
            values = padded
        values = np.ascontiguousarray(values, self.dtype)
        self._stream.copy(self.address(plane, row), values.ctypes.data, values.nbytes)
        self._stream.synchronize()  # before `values` is gone

    def read(self, plane: int, row: int) -> Array:
        values: Array = np.empty(self.shape[2:], self.dtype)
        self._stream.copy(values.ctypes.data, self.address(plane, row), values.nbytes)
        self._stream.synchronize()
        return values


class Block:
    """Arrays side by side in one piece of memory, on the device and on the host.

    Args:
        arrays: name to type and shape; the largest types first, so that each is aligned.

    Attributes:
        arrays: the host's.
        addresses: the device's.
    """

    def __init__(self, stream: Stream, arrays: Mapping[str, tuple[type[np.generic], tuple[int, ...]]]) -> None:
        self._stream = stream
        lengths = [np.dtype(kind).itemsize * prod(shape) for kind, shape in arrays.values()]
        self._host = stream.host_block(sum(lengths))
        self._device = stream.allocate(sum(lengths))
        self.arrays: dict[str, Array] = {}
        self.addresses: dict[str, int] = {}
        start = 0
        for (name, (kind, shape)), length in zip(arrays.items(), lengths, strict=True):
            self.arrays[name] = self._host[start : start + length].view(kind).reshape(shape)
            self.addresses[name] = self._device + start
            start += length

    def __del__(self) -> None:
        if getattr(self, "_device", 0):
            self._stream.free(self._device)

    def to_device(self) -> None:
        self._stream.copy(self._device, self._host.ctypes.data, self._host.nbytes)

    def to_host(self) -> None:
        self._stream.copy(self._host.ctypes.data, self._device, self._host.nbytes)


def allocate(shape: tuple[int, ...], dtype: np.dtype[Any], stream: Stream | None) -> Memory:
    """Zeroed memory of the device of a stream, or of the host where there is none.

    Raises:
        MemoryError: there is not that much.
    """
    return HostMemory(shape, dtype) if stream is None else StreamMemory(shape, dtype, stream)
