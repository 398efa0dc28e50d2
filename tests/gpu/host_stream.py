"""A fake GPU on the CPU: memory of its own, which only ordered, deferred copies can reach."""

import ctypes
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dragoman_server.runtime.sessions import Sessions


class HostStream:
    """A fake of dragoman_server.runtime.buffers.Stream.

    Copies are deferred until someone waits or a graph is about to run. Code that changes or reads memory too early sees
    the wrong values, as on a GPU.

    Attributes:
        waits: Number of `synchronize` calls.
    """

    kind: Literal["cpu", "cuda"] = "cpu"
    index = 0

    def __init__(self) -> None:
        self.waits = 0
        self._memory: dict[int, NDArray[np.uint8]] = {}
        self._pending: deque[tuple[int, int, int]] = deque()

    @property
    def allocated(self) -> int:
        """Bytes of device memory in use."""
        return sum(block.nbytes for block in self._memory.values())

    def allocate(self, size: int) -> int:
        block = np.zeros(size, np.uint8)
        self._memory[block.ctypes.data] = block
        return block.ctypes.data

    def free(self, address: int) -> None:
        del self._memory[address]

    def host_block(self, size: int) -> NDArray[np.uint8]:
        return np.zeros(size, np.uint8)

    def copy(self, target: int, source: int, size: int) -> None:
        self._pending.append((target, source, size))

    def copy_lines(self, target: int, source: int, pitch: int, width: int, height: int) -> None:
        for line in range(height):
            self.copy(target + line * pitch, source + line * pitch, width)

    def synchronize(self) -> None:
        self.waits += 1
        self.flush()

    def flush(self) -> None:
        """Makes the pending copies."""
        while self._pending:
            ctypes.memmove(*self._pending.popleft())


def run_on(stream: HostStream, sessions: Sessions) -> None:
    """Makes runtimes that are created from these CPU sessions afterwards work as on a GPU with this stream."""
    sessions.stream, sessions.max_cuda_graphs = stream, 128
    for session in (sessions.encoder, sessions.decoder):
        session.run_with_iobinding = _in_order(stream, session.run_with_iobinding)


def _in_order(stream: HostStream, run: Callable[..., None]) -> Callable[..., None]:
    def run_after_copies(*arguments: Any) -> None:
        stream.flush()
        run(*arguments)

    return run_after_copies
