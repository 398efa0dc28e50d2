"""Generates an API key: `python -m dragoman_server.new_key FILE NAME`.

Prints the key, once, and adds its hash to the file.
"""

import argparse
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman_server.security.keys import NAME, Entry, digest_of, new_key, read_entries, read_entry
from dragoman_server.security.watched_files import FileError

HEADER = "# API keys of dragoman-serve --api-keys: name, hash, limits. Calls with any other key are refused.\n"
FAILED, WRONG_USAGE = 1, 2


class UsageError(Exception):
    """The arguments are invalid; the message says why."""


def add(path: Path, name: str, per_second: str | None = None, at_once: str | None = None, admin: bool = False) -> str:
    """Generates a key and appends its line to the file, which is created if it does not exist. Returns the key.

    The file is replaced atomically: a server that watches it never reads half a line.

    Raises:
        UsageError: the name is taken, or a value is invalid.
        FileError: the file can't be read or written, or has an invalid line.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            "NAME must be at most 64 letters, digits, dots, dashes and underscores, starting with a letter or digit"
        )
    key = new_key()
    words = [Entry(name, digest_of(key), admin=admin).line()]
    words += [f"{limit}={value}" for limit, value in (("per_second", per_second), ("at_once", at_once)) if value]
    line = "  ".join(words)
    try:
        read_entry(line.split())
    except ValueError as error:
        raise UsageError(f"the new line {error}") from None
    try:
        with _locked(path.resolve().parent):
            before = path.read_text() if path.exists() else HEADER
            if before and not before.endswith("\n"):
                before += "\n"
            if any(entry.name == name for entry in read_entries(before.encode(), str(path))):
                raise UsageError(
                    f"{path} already has a key named {name}; delete its line first, or choose another name"
                )
            _replace(path.resolve(), f"{before}{line}\n")
    except OSError as error:
        raise FileError(f"{path} can't be changed: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FileError(f"{path} is not UTF-8") from None
    return key


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps two of these commands from changing a file at once, when the second one would undo what the first did."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, content: str) -> None:
    """Replaces a file atomically; its mode and, if this user may set it, its owner stay. A new one is private."""
    old = path.stat() if path.exists() else None
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    mode = 0o600 if old is None else old.st_mode & 0o777
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(content)
            if old is not None:  # of the server's user, who must be able to read it
                with suppress(PermissionError):
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
                os.fchmod(file.fileno(), mode)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog="python -m dragoman_server.new_key",
        description="Generate an API key for `dragoman-serve --api-keys FILE`. The key is printed once; FILE keeps its "
        "hash. A running server accepts it within seconds. To revoke it, delete its line.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the file of keys; created if it does not exist")
    parser.add_argument("name", metavar="NAME", help="name of the key's owner, for metrics and logs")
    parser.add_argument("--per-second", metavar="N", help="maximum requests per second; each input of a batch counts")
    parser.add_argument("--at-once", metavar="N", help="maximum concurrent calls")
    parser.add_argument("--admin", action="store_true", help="allow loading and unloading models")
    arguments = parser.parse_args()
    try:
        print(add(arguments.file, arguments.name, arguments.per_second, arguments.at_once, arguments.admin))
    except (FileError, UsageError) as error:
        print(f"dragoman_server.new_key: {error}", file=sys.stderr)
        raise SystemExit(FAILED if isinstance(error, FileError) else WRONG_USAGE) from None


if __name__ == "__main__":
    main()
