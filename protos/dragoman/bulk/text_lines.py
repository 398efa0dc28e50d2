"""Lines of text files, gzip-compressed or not, good and bad ones."""

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from dragoman.bulk.errors import BulkError, StoppedError

BOM = b"\xef\xbb\xbf"
MAX_LINE = 2**20  # bytes; more is not a line of text, and could fill the memory
BLOCK = 2**20

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class FileDigest:
    """SHA-256 and number of lines of a file, decompressed."""

    path: Path
    sha256: str
    lines: int


def never() -> bool:
    """Says that the work should not stop, ever."""
    return False


def opened(path: Path) -> BinaryIO:
    """Opens a file to read its decompressed bytes.

    Raises:
        BulkError: The file can't be read, or can be read only once.
    """

    def open_() -> BinaryIO:
        if path.exists() and not path.is_file():
            raise BulkError(f"{path} is not a regular file, so it can't be read again after a stop")
        return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]

    return guarded(path, open_)


def guarded(path: Path, read: Callable[[], Value]) -> Value:
    """Returns what a function reads from a file.

    Raises:
        BulkError: It can't be read.
    """
    try:
        return read()
    except FileNotFoundError:
        raise BulkError(f"{path}: there is no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise BulkError(f"{path}: can't be read: {reason}") from None


def digest_of(path: Path, should_stop: Callable[[], bool] = never) -> FileDigest:
    """Reads a file once.

    Raises:
        BulkError: The file can't be read.
        StoppedError: `should_stop` returned True.
    """
    digest, lines, last = hashlib.sha256(), 0, b"\n"
    with opened(path) as stream:
        while block := guarded(path, lambda: stream.read(BLOCK)):
            digest.update(block)
            lines += block.count(b"\n")
            last = block
            if should_stop():
                raise StoppedError
    return FileDigest(path, digest.hexdigest(), lines + (not last.endswith(b"\n")))


def raw_lines(path: Path) -> Iterator[bytes | None]:
    """Yields lines without their ends, LF or CR LF, and None for one that is far too long.

    Raises:
        BulkError: The file can't be read.
    """
    first = True
    with opened(path) as stream:
        while line := guarded(path, lambda: stream.readline(MAX_LINE)):
            ended = line.endswith(b"\n")
            if len(line) == MAX_LINE and not ended:
                while (rest := guarded(path, lambda: stream.readline(MAX_LINE))) and not rest.endswith(b"\n"):
                    pass
                yield None
            else:
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                yield line.removeprefix(BOM) if first else line
            first = False


def decoded(raw: bytes | None) -> tuple[str, str]:
    """Returns a line's text and what is wrong with it, one of them empty."""
    if raw is None:
        return "", f"has more than {MAX_LINE:,} bytes"
    try:
        return raw.decode(), ""
    except UnicodeDecodeError as error:
        return "", f"is not valid UTF-8 at byte {error.start + 1}"


def counted(number: int, unit: str) -> str:
    """Returns a number with its unit: "1 column", "2 columns"."""
    return f"{number:,} {unit}{'' if number == 1 else 's'}"
