"""Files that are reloaded when they change, such as secrets that are rotated while the server runs."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog

log = structlog.get_logger()

POLL_SECONDS = 1.0
MAX_BYTES = 16 * 2**20

Value = TypeVar("Value")


class FileError(Exception):
    """A file can't be used. The message names the file and the reason, but does not quote its content."""


class WatchedFiles(Generic[Value]):
    """A value parsed from one or more files, always from all of them at the same moment.

    Files are identified by inode, not by name: Kubernetes swaps the directory behind a symbolic link. If changed files
    can't be read or parsed, the value stays as it is.

    Args:
        name: Name of the files, for logs and metrics.
        paths: Paths of the files.
        parse: Parses their contents; raises FileError.

    Attributes:
        name: Name of the files.
        value: The latest value.
        problem: Why the files can't be used in their present state; None if they are in use.

    Raises:
        FileError: the files can't be used.
    """

    def __init__(self, name: str, paths: Sequence[Path], parse: Callable[[list[bytes]], Value]) -> None:
        self.name, self._paths, self._parse = name, paths, parse
        self.problem: str | None = None
        self._seen = self._signature()
        self.value = parse(self._read())

    def refresh(self) -> bool:
        """Reloads the files if they have changed. Returns whether there is a new value."""
        try:
            signature = self._signature()
            if signature == self._seen:
                self.problem = None
                return False
            contents = self._read()
            if self._signature() != signature:
                return False  # they are being changed: wait for the next refresh
            value = self._parse(contents)
        except FileError as error:
            self._report(str(error))
            return False
        self._seen, self.value = signature, value
        self.problem = None
        log.info("files reloaded", files=self.name)
        return True

    def _report(self, problem: str) -> None:
        """Logs a problem, once."""
        if problem != self.problem:
            self.problem = problem
            log.error("changed files can't be used; the previous ones stay in use", files=self.name, why=problem)

    def _signature(self) -> list[tuple[int, int, int, int]]:
        """Returns device, inode, modification time and size of each file."""
        signatures = []
        for path in self._paths:
            try:
                status = path.stat()
            except OSError as error:
                raise FileError(f"{path} can't be read: {error.strerror}") from None
            signatures.append((status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size))
        return signatures

    def _read(self) -> list[bytes]:
        contents = []
        for path in self._paths:
            try:
                with path.open("rb") as file:
                    content = file.read(MAX_BYTES + 1)
            except OSError as error:
                raise FileError(f"{path} can't be read: {error.strerror}") from None
            if len(content) > MAX_BYTES:
                raise FileError(f"{path} is far too large")
            contents.append(content)
        return contents


async def watch(files: Sequence[WatchedFiles[object]], seconds: float = POLL_SECONDS) -> None:
    """Refreshes files periodically, forever. Polling works on every file system and with nested symbolic links."""
    while True:
        await asyncio.sleep(seconds)
        for watched in files:
            try:
                await asyncio.to_thread(watched.refresh)
            except Exception as error:  # must not end the watch
                log.error("changed files can't be read", files=watched.name, exc_info=error)
