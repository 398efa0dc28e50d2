"""The weights move to huge pages; memory that is not in use, is told not to, or belongs to a file does not."""

import ctypes
import mmap
import tempfile
from pathlib import Path

import numpy as np
import pytest

from dragoman_server.runtime import huge_pages
from dragoman_server.runtime.buffers import zeroed
from dragoman_server.runtime.huge_pages import MAPPINGS, Mapping, move_to_huge_pages, parse_mappings, ranges
from tests.support.memory import has_huge_pages

SIZE = 16 << 20
SMAPS = """56123c23d000-56123d879000 rw-p 00000000 00:00 0                          [heap]
Size:              22768 kB
Rss:               22612 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me ac sd
7f15f0ce9000-7f15f28b5000 r-xp 00000000 fe:00 123                        /a/path: of/a library.so
Size:              28464 kB
Rss:               17088 kB
AnonHugePages:         0 kB
VmFlags: rd ex mr mw me nh
"""


needs_huge_pages = pytest.mark.skipif(not has_huge_pages(), reason="needs Linux 6.1 with transparent huge pages")


def huge_bytes(array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> int:
    """Returns the bytes in huge pages of the mapping that an array lies in."""
    [mapping] = [m for m in parse_mappings(MAPPINGS.read_text()) if m.start <= array.ctypes.data < m.stop]
    return mapping.huge


def test_mappings_are_read() -> None:
    heap, library = parse_mappings(SMAPS)
    flags = frozenset("rd wr mr mw me ac sd".split())
    assert heap == Mapping(0x56123C23D000, 0x56123D879000, True, 22612 << 10, 2048 << 10, flags)
    assert not library.anonymous
    assert "nh" in library.flags


@needs_huge_pages
def test_memory_in_use_is_moved_and_keeps_its_content() -> None:
    pages = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_NOHUGEPAGE)  # whatever the system's default
    array = np.frombuffer(pages, np.uint8)
    array[:] = np.arange(SIZE, dtype=np.uint32).astype(np.uint8)
    before = array.copy()
    move_to_huge_pages()
    assert huge_bytes(array) == 0, "it was told not to"
    ctypes.CDLL(None).madvise(ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(SIZE), mmap.MADV_HUGEPAGE)
    move_to_huge_pages(but=ranges())
    assert huge_bytes(array) == 0, "it was there before"
    assert move_to_huge_pages() >= SIZE - (4 << 20)
    assert huge_bytes(array) >= SIZE - (4 << 20)
    assert np.array_equal(array, before)
    huge = huge_bytes(array)
    move_to_huge_pages()
    assert huge_bytes(array) == huge


@needs_huge_pages
def test_caches_and_files_stay_as_they_are() -> None:
    cache = zeroed((SIZE,), np.dtype(np.uint8))
    cache[:] = 1
    sparse = np.frombuffer(mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    ctypes.CDLL(None).madvise(ctypes.c_void_p(sparse.ctypes.data), ctypes.c_size_t(SIZE), mmap.MADV_HUGEPAGE)
    sparse[: SIZE // 2] = 1
    before = huge_bytes(sparse)
    with tempfile.TemporaryFile() as file:
        file.write(bytes(SIZE))
        mapped = np.frombuffer(mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_COPY), np.uint8)
        mapped[:] = 1
        move_to_huge_pages()
        assert huge_bytes(cache) == huge_bytes(mapped) == 0
    assert huge_bytes(sparse) == before, "half of it is not in use"


def test_what_can_not_be_moved_at_once_is_left_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "MADV_COLLAPSE", 9999)  # as before Linux 6.1
    array = np.frombuffer(mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    array[:] = 1
    known = ranges() - {m[:2] for m in parse_mappings(MAPPINGS.read_text()) if m.start <= array.ctypes.data < m.stop}
    assert move_to_huge_pages(but=known) == 0
    inside = array.ctypes.data + SIZE // 2
    [mapping] = [m for m in parse_mappings(MAPPINGS.read_text()) if m.start <= inside < m.stop]
    assert "hg" in mapping.flags


def test_a_system_without_huge_pages_is_left_alone(tmp_path: Path) -> None:
    assert move_to_huge_pages(page_size=tmp_path / "missing") == 0
    assert move_to_huge_pages(mappings=tmp_path / "missing") == 0
    assert ranges(tmp_path / "missing") == frozenset()
