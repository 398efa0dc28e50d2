"""Settings that libraries read only when a process starts or first loads them."""

import os
import sys

# NOTE: Up to glibc 2.37, a freed block does not serve the next aligned allocation of its size, which is how PyTorch
# allocates tensors, unless it merges with the slivers around it; and caches of small blocks keep these apart
# (https://sourceware.org/bugzilla/show_bug.cgi?id=14581). So each step would touch new memory: it takes a sixth longer,
# and the process grows.
MERGING_GLIBC = 2, 38
MERGE_FREED_BLOCKS = "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0"


def configure_process() -> None:
    """Configures OpenMP and the C library for training; to be called before PyTorch is imported.

    Older versions of glibc read their settings when a process starts, so the process then starts itself again, with the
    same arguments. What the user has set stays.
    """
    # By default PyTorch's threads spin while they wait for each other; with other load on the same cores, that makes
    # the steps of a small model a hundred times slower. The results are the same.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if "glibc.malloc." in tunables or not _is_older_glibc():
        return
    os.environ["GLIBC_TUNABLES"] = f"{tunables}:{MERGE_FREED_BLOCKS}" if tunables else MERGE_FREED_BLOCKS
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _is_older_glibc() -> bool:
    try:
        library, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (ValueError, OSError):  # another C library
        return False
    return library == "glibc" and tuple(map(int, version.split(".")[:2])) < MERGING_GLIBC
