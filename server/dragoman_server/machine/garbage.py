"""What becomes of memory that is not used any more."""

import ctypes
import gc


def keep() -> None:
    """What there is now stays: the garbage collector need not look through it, which takes tens of milliseconds."""
    gc.collect()
    gc.freeze()


def release() -> None:
    """Frees what is not used any more, and gives it back.

    What `keep` set aside is looked through too, since it holds the objects of models that are gone; and the C library
    is asked for the pages that it has free, most of which it would keep in the arenas of threads that have ended.
    """
    gc.unfreeze()
    keep()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc alone
    if trim is not None:
        trim(0)
