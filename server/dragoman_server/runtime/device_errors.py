"""What goes wrong on a device, told apart."""

# As ONNX Runtime, CUDA, cuBLAS and the C++ library put it.
_OUT_OF_MEMORY = ("failed to allocate memory", "out of memory", "bad_alloc", "alloc_failed", "available memory of")


class WorkerLostError(Exception):
    """The process in which a model runs has ended; the message says why."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether less work at once might have done; ONNX Runtime has no exception of its own for that."""
    if isinstance(error, MemoryError):
        return True
    # Runs with bound buffers raise a plain RuntimeError.
    raised_there = type(error) is RuntimeError or type(error).__module__.startswith("onnxruntime")
    return raised_there and any(words in str(error).lower() for words in _OUT_OF_MEMORY)


def first_line(error: BaseException) -> str:
    """What an exception says, in one line."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
