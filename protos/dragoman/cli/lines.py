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

    Raises:
        OSError: it can't be read, or not to its end.
    """
    parts: list[bytes] = []  # of a line whose end has not come; joined once, however long it is
    async for chunk in _chunks(STDIN):
        first, *others = chunk.split(b"\n")
        parts.append(first)
        for other in others:
            yield _decoded(b"".join(parts))
            parts = [other]
    if rest := b"".join(parts):
        yield _decoded(rest)


async def _chunks(descriptor: int) -> AsyncIterator[bytes]:
    """What a file descriptor gives, read ahead by a thread: event loops cannot wait for regular files.

    NOTE: os.read and a daemon thread, because a thread that waits inside sys.stdin (for a person to type) would keep
    the interpreter from ending.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(_CHUNKS_AHEAD)

    def read() -> None:
        chunk: bytes | OSError = b"more"
        while chunk and not isinstance(chunk, OSError):
            room.acquire()
            try:
                chunk = os.read(descriptor, _CHUNK_BYTES)
            except OSError as error:
                chunk = OSError(error.errno, f"standard input can't be read: {error.strerror}")
            try:
                loop.call_soon_threadsafe(queue.put_nowait, chunk)
            except RuntimeError:  # the loop is closed: nobody reads any more
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while chunk := await queue.get():
        if isinstance(chunk, OSError):
            raise chunk
        room.release()
        yield chunk


def _decoded(line: bytes) -> str:
    return line.removesuffix(b"\r").decode(errors="surrogateescape")
