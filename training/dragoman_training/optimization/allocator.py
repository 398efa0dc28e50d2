"""Memory of the process: the C library's allocator on a CPU, and how much is in use."""

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from dragoman_training.errors import TrainingError

MAX_KEPT_BLOCK = 2**30  # bytes of the largest freed block that the process keeps
# Kernels that oneDNN caches. A step has up to fifty; those of attention rarely fit another batch, but others soon do.
ONEDNN_KERNELS = 512
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h


@cache
def _glibc() -> ctypes.CDLL | None:
    """Returns the C library if it is glibc."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


def keep_freed_memory() -> None:
    """Makes this process keep freed memory, so that the next step does not request it from the system again.

    Older versions of glibc need more for that, see `startup.configure_process`. Requesting it took a tenth of a step.
    Other allocators keep it by themselves.
    The kept memory grows over hundreds of steps, since every batch has another shape and leaves holes that others do
    not fit into: call `release_memory` from time to time. oneDNN by default caches 1,024 kernels, one per shape, of
    half a megabyte each; the smaller cache takes effect only if oneDNN has not been used yet.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(ONEDNN_KERNELS))
    if (library := _glibc()) is not None:
        library.mallopt(_MMAP_THRESHOLD, MAX_KEPT_BLOCK)
        library.mallopt(_TRIM_THRESHOLD, 2 * MAX_KEPT_BLOCK - 1)


def release_memory() -> None:
    """Returns kept memory that is not in use to the system."""
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


@contextmanager
def finding_lack_of_memory() -> Iterator[None]:
    """Turns what is raised where memory ends into TrainingError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        size = re.search(r"ried to allocate ([\d.]+ \w+)", str(error))
        raise TrainingError(
            f"there is not enough memory{f' for another {size[1]}' if size else ''}; choose a smaller model, or a "
            "lower training.batch_tokens with a higher training.accumulate"
        ) from None


def memory_in_use(device: torch.device) -> str:
    """Describes the memory that this process holds now, and the most of the GPU's that it ever held."""
    text = f"memory {resident_bytes() / 1e9:.1f} GB"
    if device.type == "cuda":
        text += f", GPU {torch.cuda.max_memory_reserved(device) / 1e9:.1f} GB"
    return text


def resident_bytes() -> int:
    """Returns the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
