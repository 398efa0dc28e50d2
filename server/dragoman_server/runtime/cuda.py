"""Bindings of the CUDA runtime library that ONNX Runtime uses, and a CUDA stream."""

import ctypes
import threading
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

_NON_BLOCKING = 1  # cudaStreamNonBlocking
_ANY_DIRECTION = 4  # cudaMemcpyDefault: inferred from the addresses
_THREAD_LOCAL = 1  # cudaStreamCaptureModeThreadLocal
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation

_ADDRESS, _SIZE, _NUMBER = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "cudaSetDevice": (_NUMBER,),
    "cudaMemGetInfo": (_ADDRESS, _ADDRESS),
    "cudaMalloc": (_ADDRESS, _SIZE),
    "cudaFree": (_ADDRESS,),
    "cudaMallocHost": (_ADDRESS, _SIZE),
    "cudaFreeHost": (_ADDRESS,),
    "cudaMemset": (_ADDRESS, _NUMBER, _SIZE),
    "cudaMemcpyAsync": (_ADDRESS, _ADDRESS, _SIZE, _NUMBER, _ADDRESS),
    "cudaMemcpy2DAsync": (_ADDRESS, _SIZE, _ADDRESS, _SIZE, _SIZE, _SIZE, _NUMBER, _ADDRESS),
    "cudaStreamCreateWithFlags": (_ADDRESS, ctypes.c_uint),
    "cudaStreamSynchronize": (_ADDRESS,),
    "cudaDeviceSynchronize": (),
    "cudaThreadExchangeStreamCaptureMode": (_ADDRESS,),
}
_thread = threading.local()


@cache
def _library() -> Any:
    """Loads the newest major version of libcudart that is installed.

    Raises:
        OSError: None is installed.
    """
    for major in (13, 12):
        try:
            library = ctypes.CDLL(f"libcudart.so.{major}")
            break
        except OSError as error:
            reason = error
    else:
        raise reason
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, _NUMBER
    library.cudaGetErrorString.argtypes, library.cudaGetErrorString.restype = (_NUMBER,), ctypes.c_char_p
    return library


def enter_thread() -> None:
    """Prepares the calling thread for CUDA; required before ONNX Runtime or this module uses CUDA in it.

    NOTE: while a thread captures a graph, CUDA forbids other threads anything that might interfere, such as allocating,
    and invalidates the capture if they do it, unless they have opted for thread-local capture. Thread-local is right
    here: every engine has its own stream, on which no other thread enqueues work.
    """
    if not getattr(_thread, "entered", False):
        mode = _NUMBER(_THREAD_LOCAL)
        _check(_library().cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode)))
        _thread.entered = True


def free_memory(index: int) -> tuple[int, int]:
    """Returns the free and the total bytes of a GPU."""
    free, total = _SIZE(), _SIZE()
    _call("cudaSetDevice", index)
    _call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


class CudaStream:
    """A Stream on a GPU.

    NOTE: the CUDA stream is never destroyed, since sessions that work on it may outlive this object; it takes a few
    kilobytes.
    """

    kind: Literal["cpu", "cuda"] = "cuda"

    def __init__(self, index: int) -> None:
        self.index = index
        handle = _ADDRESS()
        _call("cudaSetDevice", index)
        _call("cudaStreamCreateWithFlags", ctypes.byref(handle), _NON_BLOCKING)
        self.handle = handle.value or 0

    def allocate(self, size: int) -> int:
        pointer = _ADDRESS()
        _call("cudaSetDevice", self.index)
        _call("cudaMalloc", ctypes.byref(pointer), size)
        _call("cudaMemset", pointer, 0, size)
        _call("cudaDeviceSynchronize")  # cudaMemset is asynchronous, and runs on another stream
        return pointer.value or 0

    def free(self, address: int) -> None:
        enter_thread()
        _library().cudaFree(address)  # errors are ignored: this also runs while Python exits

    def host_block(self, size: int) -> NDArray[np.uint8]:
        return _PinnedBlock(size).array

    def copy(self, target: int, source: int, size: int) -> None:
        _call("cudaMemcpyAsync", target, source, size, _ANY_DIRECTION, self.handle)

    def copy_lines(self, target: int, source: int, pitch: int, width: int, height: int) -> None:
        _call("cudaMemcpy2DAsync", target, pitch, source, pitch, width, height, _ANY_DIRECTION, self.handle)

    def synchronize(self) -> None:
        _call("cudaStreamSynchronize", self.handle)


class _PinnedBlock:
    """Zeroed pinned host memory, kept alive by the arrays that view it."""

    def __init__(self, size: int) -> None:
        pointer = _ADDRESS()
        _call("cudaMallocHost", ctypes.byref(pointer), size)
        self._address = pointer.value or 0
        ctypes.memset(self._address, 0, size)
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (self._address, False), "version": 3}

    def __del__(self) -> None:
        if getattr(self, "_address", 0):
            enter_thread()
            _library().cudaFreeHost(self._address)

    @property
    def array(self) -> NDArray[np.uint8]:
        return np.asarray(self)


def _call(name: str, *arguments: Any) -> None:
    enter_thread()
    _check(getattr(_library(), name)(*arguments))


def _check(code: int) -> None:
    if code:
        message = _library().cudaGetErrorString(code).decode()
        raise MemoryError(message) if code == _OUT_OF_MEMORY else RuntimeError(f"CUDA: {message}")
