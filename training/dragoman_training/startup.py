"""Settings that libraries read only when a process starts or first loads them."""

import os
import sys

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
    """Configures OpenMP and the C library for training; to be called before PyTorch is imported.

    glibc reads its settings when a process starts, so the process then starts itself again, with the same arguments.
    What the user has set stays.
    """
    # By default PyTorch's threads spin while they wait for each other; with other load on the same cores, that makes
    # the steps of a small model a hundred times slower. The results are the same.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    tunables, settings = os.environ.get("GLIBC_TUNABLES", ""), allocator_settings()
    if "glibc.malloc." in tunables or not settings:
        return
    os.environ["GLIBC_TUNABLES"] = f"{tunables}:{settings}" if tunables else settings
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def allocator_settings() -> str:
    """Returns what GLIBC_TUNABLES should contain; empty with another C library."""
    try:
        library, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (ValueError, OSError):
        return ""
    if library != "glibc":
        return ""
    merges = tuple(map(int, version.split(".")[:2])) >= MERGING_GLIBC
    return HUGE_PAGES if merges else f"{HUGE_PAGES}:{MERGE_FREED_BLOCKS}"
