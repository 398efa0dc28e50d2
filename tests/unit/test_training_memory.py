"""What is freed stays with the process until it is given back."""

import subprocess
import sys

import pytest

from dragoman_training.optimization.allocator import _glibc

FREED = """
from pathlib import Path
from dragoman_training.optimization.allocator import release_memory, keep_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

keep_freed_memory()
pieces = [b"x" * 2**20 for _ in range(201)]
held = resident()
last = pieces.pop()  # in the way of what would be cut off the end of the heap
pieces.clear()
kept = resident()
release_memory()
print(held, kept, resident())
"""


@pytest.mark.skipif(_glibc() is None, reason="the C library is not glibc, and keeps memory in its own way")
def test_freed_memory_is_kept_and_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    held, kept, after = map(int, done.stdout.split())
    assert kept > held - 20
    assert after < kept - 150
