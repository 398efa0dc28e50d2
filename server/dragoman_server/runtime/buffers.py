"""Buffers that a graph reads and writes in place, on the host or on a GPU."""

import ctypes
import mmap
import weakref
from collections.abc import Mapping
from contextlib import suppress
from math import prod
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

CACHE_DTYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(bfloat16)": np.dtype(np.uint16),  # NumPy has no bfloat16; only the graphs interpret the bits
    "tensor(int8)": np.dtype(np.int8),
}
LISTED_DTYPES = CACHE_DTYPES | {"tensor(uint8)": np.dtype(np.uint8)}
_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16
_mapped: "weakref.WeakSet[mmap.mmap]" = weakref.WeakSet()  # by `zeroed`


def ort_element_type(dtype: np.dtype[Any]) -> type[np.generic] | int:
    """Returns ONNX Runtime's element type for a cache of this dtype, see `CACHE_DTYPES`."""
    return _BFLOAT16 if dtype == np.uint16 else dtype.type


class Memory(Protocol):
    """A buffer of fixed shape and address, whose leading dimensions are [planes, rows].

    A plane is what one graph input is bound to, such as the keys of one layer. With one buffer for all layers, moving a
    row takes one copy instead of one per layer.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes: int

    def address(self, plane: int, row: int = 0) -> int:
        """Returns the device address of a row."""

    def copy_row(self, source: int, target: int, start: int, stop: int) -> None:
        """Copies positions start .. stop-1 (second-last dimension) of a row, in every plane.

        May copy other positions too; the caller must not rely on what the target holds there.
        """

    def copy_rows(self, source: int, target: int, count: int, stop: int) -> None:
        """Copies positions 0 .. stop-1 of `count` rows from `source` on to those from `target` on; see `copy_row`."""

    def write(self, plane: int, row: int, values: Array) -> None:
        """Writes values [rows, ...] from `row` on, which may be shorter than a row in the second-last dimension."""

    def read(self, plane: int, row: int) -> Array:
        """Returns a copy of one row on the host."""


class Stream(Protocol):
    """A device with its own memory, and an ordered queue of work on it.

    Attributes:
        kind, index: ONNX Runtime's name and number of the device.
    """

    kind: Literal["cpu", "cuda"]
    index: int

    def allocate(self, size: int) -> int:
        """Allocates zeroed device memory and returns its address.

        Raises:
            MemoryError: The device is out of memory.
        """

    def free(self, address: int) -> None:
        """Frees memory that `allocate` returned."""

    def host_block(self, size: int) -> NDArray[np.uint8]:
        """Allocates zeroed pinned host memory, which copies fast and asynchronously."""

    def copy(self, target: int, source: int, size: int) -> None:
        """Enqueues a copy of `size` bytes between device and host, or within the device.

        Host memory must not change until `synchronize` has returned.
        """

    def copy_lines(self, target: int, source: int, pitch: int, width: int, height: int) -> None:
        """Enqueues a copy of `height` lines of `width` bytes, whose starts are `pitch` bytes apart."""

    def synchronize(self) -> None:
        """Blocks until all enqueued work is done."""


class HostMemory:
    """CPU memory: a NumPy array, of which pages are in use only once they are written.

    NOTE: NumPy releases the GIL to copy more than 500 elements. With several engines, reacquiring it takes ten times as
    long as copying a row of a small model. So copies use elements that span the whole last dimension.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.array = zeroed(shape, dtype)
        self.shape, self.dtype, self.nbytes = shape, dtype, self.array.nbytes
        self._base = self.array.ctypes.data
        self._vectors: Array = self.array.view(np.dtype((np.void, shape[-1] * dtype.itemsize)))[..., 0]

    def address(self, plane: int, row: int = 0) -> int:
        return self._base + plane * self.array.strides[0] + row * self.array.strides[1]

    def copy_row(self, source: int, target: int, start: int, stop: int) -> None:
        self._vectors[:, target, ..., start:stop] = self._vectors[:, source, ..., start:stop]

    def copy_rows(self, source: int, target: int, count: int, stop: int) -> None:
        copied = self._vectors[:, source : source + count, ..., :stop]
        self._vectors[:, target : target + count, ..., :stop] = copied

    def write(self, plane: int, row: int, values: Array) -> None:
        self.array[plane, row : row + len(values), ..., : values.shape[-2], :] = values

    def read(self, plane: int, row: int) -> Array:
        row_values: Array = self.array[plane, row].copy()
        return row_values


class StreamMemory:
    """Device memory, copied in stream order.

    Row copies are not waited for: whatever runs afterwards runs on the same stream.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], stream: Stream) -> None:
        self.shape, self.dtype = shape, dtype
        self._plane_bytes = prod(shape[1:]) * dtype.itemsize
        self._row_bytes = prod(shape[2:]) * dtype.itemsize
        self.nbytes = shape[0] * self._plane_bytes
        self._stream = stream
        # Zeroed, because attention masks garbage beyond a row's length with zero weights, and NaN * 0 is NaN.
        self._base = stream.allocate(self.nbytes)

    def __del__(self) -> None:
        if getattr(self, "_base", 0):
            self._stream.free(self._base)

    def address(self, plane: int, row: int = 0) -> int:
        return self._base + plane * self._plane_bytes + row * self._row_bytes

    def copy_row(self, source: int, target: int, start: int, stop: int) -> None:
        # One two-dimensional copy of whole rows, one line per plane. Copying fewer positions would take a copy per
        # plane, and a GPU copies megabytes in the time it takes to launch one.
        to, from_ = self.address(0, target), self.address(0, source)
        self._stream.copy_lines(to, from_, self._plane_bytes, self._row_bytes, self.shape[0])

    def copy_rows(self, source: int, target: int, count: int, stop: int) -> None:
        to, from_ = self.address(0, target), self.address(0, source)
        self._stream.copy_lines(to, from_, self._plane_bytes, count * self._row_bytes, self.shape[0])

    def write(self, plane: int, row: int, values: Array) -> None:
        if values.shape[1:] != self.shape[2:]:
            padded = np.zeros((len(values), *self.shape[2:]), self.dtype)
            padded[..., : values.shape[-2], :] = values
            values = padded
        values = np.ascontiguousarray(values, self.dtype)
        self._stream.copy(self.address(plane, row), values.ctypes.data, values.nbytes)
        self._stream.synchronize()  # before `values` is freed

    def read(self, plane: int, row: int) -> Array:
        values: Array = np.empty(self.shape[2:], self.dtype)
        self._stream.copy(values.ctypes.data, self.address(plane, row), values.nbytes)
        self._stream.synchronize()
        return values


class MirroredArrays:
    """Arrays that exist both on the device and in pinned host memory, each side in one block: one copy moves all.

    Args:
        arrays: Type and shape by name, the largest types first so that each array is aligned.

    Attributes:
        arrays: The host arrays, by name.
        addresses: The device addresses, by name.
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
        """Enqueues the copy from host to device."""
        self._stream.copy(self._device, self._host.ctypes.data, self._host.nbytes)

    def to_host(self) -> None:
        """Enqueues the copy from device to host."""
        self._stream.copy(self._host.ctypes.data, self._device, self._host.nbytes)


def allocate(shape: tuple[int, ...], dtype: np.dtype[Any], stream: Stream | None) -> Memory:
    """Allocates zeroed memory on the stream's device, or on the host if there is no stream.

    Raises:
        MemoryError: The device is out of memory.
    """
    return HostMemory(shape, dtype) if stream is None else StreamMemory(shape, dtype, stream)


def zeroed(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Returns a zeroed array, of which pages are in use only once they are written.

    NumPy asks for huge pages, so that the first row of each plane of a cache would take as much memory, and as much
    time to zero it, as many rows. For smaller arrays it may use memory that was freed, and must zero it at once.

    Raises:
        MemoryError: The address space, or what the process may use of it, is too small.
    """
    try:
        pages = mmap.mmap(-1, prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(str(error)) from None
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # Linux
        with suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    _mapped.add(pages)
    array: Array = np.frombuffer(pages, dtype).reshape(shape)
    return array


def unwritten_bytes() -> int:
    """Returns the bytes of all arrays from `zeroed` that are not in use yet."""
    resident = getattr(ctypes.CDLL(None), "mincore", None)
    return sum(_unwritten(pages, resident) for pages in list(_mapped)) if resident else 0


def _unwritten(pages: mmap.mmap, mincore: Any) -> int:
    flags = np.ones(-(-len(pages) // mmap.PAGESIZE), np.uint8)  # bit 0: resident
    start = np.frombuffer(pages, np.uint8).ctypes.data
    mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(pages)), ctypes.c_void_p(flags.ctypes.data))
    return mmap.PAGESIZE * int(np.count_nonzero(flags & 1 == 0))
