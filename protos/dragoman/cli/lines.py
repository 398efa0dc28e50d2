"""Standard input as an asynchronous stream of lines."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator

STDIN = 0
_CHUNK_BYTES = 2**16
_CHUNKS_AHEAD = 4


async def stdin_lines() -> AsyncIterator[str]:
    """The lines of standard input without their line ends (LF or CRLF), as they come.

    Bytes that are not UTF-8 become the surrogates of os.fsdecode, which the client refuses by text and position.
    """
    rest = b""
    async for chunk in _chunks(STDIN):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield _decoded(line)
    if rest:
        yield _decoded(rest)


async def _chunks(descriptor: int) -> AsyncIterator[bytes]:
    """What a file descriptor gives, read ahead by a thread: event loops cannot wait for regular files.

    NOTE: os.read and a daemon thread, because a thread that waits inside sys.stdin (for a person to type) would keep
    the interpreter from ending.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(_CHUNKS_AHEAD)

    def read() -> None:
        chunk = b"more"
        while chunk:
            room.acquire()
            try:
                chunk = os.read(descriptor, _CHUNK_BYTES)
            except OSError:
                chunk = b""
            try:
                loop.call_soon_threadsafe(queue.put_nowait, chunk)
            except RuntimeError:  # the loop is closed: nobody reads any more
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while chunk := await queue.get():
        room.release()
        yield chunk


def _decoded(line: bytes) -> str:
    return line.removesuffix(b"\r").decode(errors="surrogateescape")
