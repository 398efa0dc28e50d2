"""Files that are read again when they change, as secrets do while the server runs."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog

log = structlog.get_logger()

POLL_SECONDS = 1.0
MOST_BYTES = 16 * 2**20

Value = TypeVar("Value")


class FileError(Exception):
    """A file can't be used; the message names it and says why, and quotes nothing of its content."""


class WatchedFiles(Generic[Value]):
    """What is made of some files, always of all of them at one moment.

    Files are told apart by what they are, not by their names: Kubernetes swaps the directory that a link leads to.
    Files that can't be read or used leave what was made of those before.

    Args:
        name: what they are, for the log.
        paths: of the files.
        parse: makes the value of their contents; raises FileError.

    Attributes:
        name: as given.
        value: what was made last.
        complaint: why they can't be used as they are now; None where they are in use.

    Raises:
        FileError: they can't be used now.
    """

    def __init__(self, name: str, paths: Sequence[Path], parse: Callable[[list[bytes]], Value]) -> None:
        self.name, self._paths, self._parse = name, paths, parse
        self.complaint: str | None = None
        self._seen = self._signature()
        self.value = parse(self._read())

    def refresh(self) -> bool:
        """Reads the files again if they have changed; whether there is a new value."""
        try:
            signature = self._signature()
            if signature == self._seen:
                self.complaint = None
                return False
            contents = self._read()
            if self._signature() != signature:
                return False  # they are being changed: the next look will tell
            value = self._parse(contents)
        except FileError as error:
            self._complain(str(error))
            return False
        self._seen, self.value = signature, value
        self.complaint = None
        log.info("read anew", files=self.name)
        return True

    def _complain(self, complaint: str) -> None:
        """Says what is wrong, once."""
        if complaint != self.complaint:
            self.complaint = complaint
            log.error(
                "changed files can't be used; what was read before stays in force", files=self.name, why=complaint
            )

    def _signature(self) -> list[tuple[int, int, int, int]]:
        found = []
        for path in self._paths:
            try:
                status = path.stat()
            except OSError as error:
                raise FileError(f"{path} can't be read: {error.strerror}") from None
            found.append((status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size))
        return found

    def _read(self) -> list[bytes]:
        contents = []
        for path in self._paths:
            try:
                with path.open("rb") as file:
                    content = file.read(MOST_BYTES + 1)
            except OSError as error:
                raise FileError(f"{path} can't be read: {error.strerror}") from None
            if len(content) > MOST_BYTES:
                raise FileError(f"{path} is far too large")
            contents.append(content)
        return contents


async def watch(files: Sequence[WatchedFiles[object]], seconds: float = POLL_SECONDS) -> None:
    """Looks at them for ever. Polling works on every file system, and with links to links."""
    while True:
        await asyncio.sleep(seconds)
        for each in files:
            try:
                await asyncio.to_thread(each.refresh)
            except Exception as error:  # whatever it is, it must not end the watch
                log.error("changed files can't be read", files=each.name, exc_info=error)
