"""Memory use of processes."""

import ctypes
import functools
import mmap
from pathlib import Path

import psutil

from dragoman_server.runtime.huge_pages import MADV_COLLAPSE, PAGE_SIZE, parse_mappings


def peak_megabytes(pid: int) -> float:
    """Returns the sum of the peak resident memory of a process and of each of its children, in MB."""
    processes = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return sum(_peak(process) for process in processes) / 1e6


def _peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


@functools.cache
def has_huge_pages() -> bool:
    """Returns whether this kernel moves memory to huge pages when a program says so."""
    if not PAGE_SIZE.exists():
        return False
    size = int(PAGE_SIZE.read_text())
    pages = mmap.mmap(-1, 2 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.write(b"1" * (2 * size))
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    whole = ctypes.c_void_p(-(-start // size) * size)
    return bool(ctypes.CDLL(None).madvise(whole, ctypes.c_size_t(size), MADV_COLLAPSE) == 0)


def huge_megabytes(pid: int) -> float:
    """Returns the memory of a process that is in huge pages, in MB."""
    mappings = parse_mappings(Path(f"/proc/{pid}/smaps").read_text())
    return sum(mapping.huge for mapping in mappings) / 1e6
