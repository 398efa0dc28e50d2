"""What the C library does with memory that a step of training on a CPU sets free."""

import ctypes
import os
from functools import cache

MOST = 2**30  # bytes of one piece of memory that is kept for the next step
PRIMITIVES = 64  # kernels of oneDNN that are kept: about as many as a step has different products
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h of glibc has them


@cache
def _library() -> ctypes.CDLL | None:
    """The C library, where it is glibc."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


def keep_freed() -> None:
    """From now on this process keeps what is freed, so that the next step need not ask the system for it again.

    That took a tenth of a step. What is kept grows over hundreds of steps, since every batch has another shape and
    leaves holes where others do not fit: `give_back` from time to time. oneDNN keeps 1,024 kernels, each for one shape,
    which are hundreds of megabytes for shapes that hardly come again; where it has not begun yet, fewer are kept.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(PRIMITIVES))
    if (library := _library()) is not None:
        library.mallopt(_MMAP_THRESHOLD, MOST)
        library.mallopt(_TRIM_THRESHOLD, 2 * MOST - 1)


def give_back() -> None:
    """Gives the system what is kept and not in use."""
    if (library := _library()) is not None:
        library.malloc_trim(0)
