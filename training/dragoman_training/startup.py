"""Settings that libraries read only when a process starts or first loads them."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes.util import find_library

# Allocators that find room for the ever-changing shapes of batches faster than glibc, whose list of free blocks gets
# long: a step takes 0.68 and 0.86 of the time (the shipped translator's shape, Intel, two threads, interleaved).
ALLOCATORS = ("tcmalloc_minimal", "jemalloc")
INSTALL = "apt-get install libtcmalloc-minimal4 (Debian, Ubuntu)"
# Freed memory is kept for the steps to come, in huge pages, also that of large tensors. Kept forever, it would grow.
JEMALLOC_CONF = "oversize_threshold:0,dirty_decay_ms:30000,muzzy_decay_ms:30000,thp:always"
# NOTE: Up to glibc 2.37, a freed block does not serve the next aligned allocation of its size, which is how PyTorch
# allocates tensors, unless it merges with the slivers around it; and caches of small blocks keep these apart
# (https://sourceware.org/bugzilla/show_bug.cgi?id=14581). So each step would touch new memory: it takes a sixth longer,
# and the process grows.
MERGING_GLIBC = 2, 38
MERGE_FREED_BLOCKS = "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0"
# Where the system grants huge pages on request, as most do: a step of the base shape takes 0.96 of the time (Intel, two
# threads, medians of 4 interleaved rounds). Versions before 2.35 ignore it.
HUGE_PAGES = "glibc.malloc.hugetlb=1"


def configure_process() -> None:
    """Configures OpenMP and the allocator for training; to be called before PyTorch is imported.

    An allocator is chosen when a process starts, so the process then starts itself again, with the same arguments. What
    the user has set stays.
    """
    # By default PyTorch's threads spin while they wait for each other; with other load on the same cores, that makes
    # the steps of a small model a hundred times slower. The results are the same.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if variables := allocator_settings():
        os.environ.update(variables)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


@contextmanager
def importing() -> Iterator[None]:
    """Imports without garbage collection, which takes a fifth of the time it takes to import PyTorch.

    Imports make hardly any garbage. What exists at the end is exempt from collection.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def allocator_settings() -> dict[str, str]:
    """Returns the environment variables to set; empty where an allocator is configured, or with another C library."""
    preloaded, tunables = os.environ.get("LD_PRELOAD", ""), os.environ.get("GLIBC_TUNABLES", "")
    version = glibc_version()
    if version is None or "malloc" in preloaded or "glibc.malloc." in tunables:
        return {}
    for name in ALLOCATORS:
        if library := find_library(name):
            conf = os.environ.get("MALLOC_CONF", JEMALLOC_CONF)  # others than jemalloc ignore it
            return {"LD_PRELOAD": _joined(preloaded, library), "MALLOC_CONF": conf}
    settings = HUGE_PAGES if version >= MERGING_GLIBC else f"{HUGE_PAGES}:{MERGE_FREED_BLOCKS}"
    return {"GLIBC_TUNABLES": _joined(tunables, settings)}


def allocates_with_glibc() -> bool:
    """Returns whether memory comes from glibc, while another allocator would be faster."""
    return glibc_version() is not None and "malloc" not in os.environ.get("LD_PRELOAD", "")


def glibc_version() -> tuple[int, ...] | None:
    """Returns the version of the C library if it is glibc."""
    try:
        library, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (ValueError, OSError):
        return None
    return tuple(map(int, version.split(".")[:2])) if library == "glibc" else None


def _joined(given: str, added: str) -> str:
    return f"{given}:{added}" if given else added
