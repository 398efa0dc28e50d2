"""Huge pages for the weights of a model on a CPU."""

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from typing import NamedTuple

ADDRESSES, MAPPINGS = Path("/proc/self/maps"), Path("/proc/self/smaps")
PAGE_SIZE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
MADV_COLLAPSE = 25  # since Linux 6.1; Python does not name it
START_SECONDS = 1.0  # before memory is moved: a start should not have to share the cores
FILLED = 0.9  # share of a mapping that must be in use, so that huge pages take hardly more memory

Ranges = frozenset[tuple[int, int]]


class Mapping(NamedTuple):
    """A mapping of this process.

    Attributes:
        start, stop: Its addresses.
        anonymous: Whether it is writable memory without a file.
        resident, huge: Bytes in use, and those in huge pages.
        flags: Flags of the kernel, such as "nh" for one that should have no huge pages.
    """

    start: int
    stop: int
    anonymous: bool
    resident: int
    huge: int
    flags: frozenset[str]


def ranges(mappings: Path = ADDRESSES) -> Ranges:
    """Returns the addresses of the mappings that this process has now."""
    try:
        lines = mappings.read_text().splitlines()
    except OSError:  # not Linux
        return frozenset()
    return frozenset(_addresses(line.split(maxsplit=1)[0]) for line in lines)


def move_soon(but: Ranges) -> None:
    """Moves what this process has allocated meanwhile to huge pages, in a thread of its own, when it has started.

    Args:
        but: Mappings from before, see `move_to_huge_pages`.
    """
    timer = Timer(START_SECONDS, move_to_huge_pages, (but,))
    timer.name, timer.daemon = "huge-pages", True
    timer.start()


def move_to_huge_pages(but: Ranges = frozenset(), mappings: Path = MAPPINGS, page_size: Path = PAGE_SIZE) -> int:
    """Moves large mappings of this process, those with the weights among them, to huge pages.

    A step reads all weights. In pages of 4 KiB they are scattered over the memory of a machine that has worked for a
    while, and a processor looks up thousands of addresses for each step: with scattered pages, de-en generated a fifth
    more tokens a second after this, with free memory in one piece 2 %. Linux would wait for a program to ask for huge
    pages, and ONNX Runtime does not.

    Args:
        but: Mappings that stay as they are if they have not grown.
        mappings: The kernel's list of the mappings of this process, with the memory in use.
        page_size: The file with the size of a huge page in bytes.

    Returns:
        The bytes that have been moved; 0 where the system has no huge pages.
    """
    try:
        size = int(page_size.read_text())
        found = list(parse_mappings(mappings.read_text()))
    except (OSError, ValueError):  # not Linux, or without huge pages
        return 0
    moved = 0
    for mapping in found:
        start, stop = -(-mapping.start // size) * size, mapping.stop // size * size
        filled = mapping.resident >= FILLED * (mapping.stop - mapping.start)
        left = stop > start and mapping.resident - mapping.huge >= size
        if mapping.anonymous and filled and left and "nh" not in mapping.flags and mapping[:2] not in but:
            moved += _collapse(start, stop - start)
    return moved


def _collapse(start: int, size: int) -> int:
    """Moves a range to huge pages; returns its size, or 0 if the kernel could not do all of it now."""
    libc = ctypes.CDLL(None)
    arguments = ctypes.c_void_p(start), ctypes.c_size_t(size)
    if libc.madvise(*arguments, MADV_COLLAPSE) == 0:
        return size
    # An older kernel, or no free memory in large enough blocks: the kernel does it within minutes, when there is some.
    libc.madvise(*arguments, mmap.MADV_HUGEPAGE)
    return 0


def parse_mappings(text: str) -> Iterator[Mapping]:
    """Reads the mappings of /proc/PID/smaps, see proc_pid_smaps(5)."""
    head: list[str] = []
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and " " not in name:
            values[name] = value
            if name == "VmFlags":  # the last one
                start, stop = _addresses(head[0])
                anonymous = head[1].startswith("rw-p") and head[5:] in ([], ["[heap]"])
                resident, huge = (int(values[key].split()[0]) * 1024 for key in ("Rss", "AnonHugePages"))
                yield Mapping(start, stop, anonymous, resident, huge, frozenset(value.split()))
        else:
            head = line.split()


def _addresses(text: str) -> tuple[int, int]:
    start, _, stop = text.partition("-")
    return int(start, 16), int(stop, 16)
