"""Makes an API key: `python -m dragoman_server.new_key FILE NAME`.

The key is printed once; the file gets its hash.
"""

import argparse
import os
import sys
from pathlib import Path

from dragoman_server.security.keys import NAME, Entry, digest_of, new_key, read_entries, read_entry
from dragoman_server.security.watched_files import FileError

HEADER = "# API keys of dragoman-serve --api-keys: name, hash, limits. Whoever has no line here is not let in.\n"
FAILED, WRONG_USAGE = 1, 2


class UsageError(Exception):
    """What is asked for makes no sense; the message says why."""


def add(path: Path, name: str, per_second: str | None = None, at_once: str | None = None, admin: bool = False) -> str:
    """Appends a line to the file, which is made where there is none; gives the key.

    The file is replaced as a whole: a server that watches it never sees half a line.

    Raises:
        UsageError: the name is taken, or a value makes no sense.
        FileError: the file can't be read or written, or has a line that is wrong.
    """
    if not NAME.fullmatch(name):
        raise UsageError("NAME must be at most 64 letters, digits, dots, dashes and underscores, the first no sign")
    key = new_key()
    words = [Entry(name, digest_of(key), admin=admin).line()]
    words += [f"{limit}={value}" for limit, value in (("per_second", per_second), ("at_once", at_once)) if value]
    line = "  ".join(words)
    try:
        read_entry(line.split())
    except ValueError as error:
        raise UsageError(f"the new line {error}") from None
    try:
        before = path.read_text() if path.exists() else HEADER
        if before and not before.endswith("\n"):
            before += "\n"
        if any(entry.name == name for entry in read_entries(before.encode(), str(path))):
            raise UsageError(f"{path} has a key of {name} already; delete its line first, or choose another name")
        target = path.resolve()
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(f"{before}{line}\n")
        beside.replace(target)
    except OSError as error:
        raise FileError(f"{path} can't be changed: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FileError(f"{path} is not UTF-8") from None
    return key


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m dragoman_server.new_key",
        description="Make an API key for `dragoman-serve --api-keys FILE`. It is printed once; FILE keeps a hash. "
        "A server that runs lets it in within seconds. To revoke it, delete its line.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="made where there is none")
    parser.add_argument("name", metavar="NAME", help="of whoever gets the key")
    parser.add_argument("--per-second", metavar="N", help="requests per second; each input of a batch is one")
    parser.add_argument("--at-once", metavar="N", help="calls at the same time")
    parser.add_argument("--admin", action="store_true", help="may load and unload models")
    given = parser.parse_args()
    try:
        print(add(given.file, given.name, given.per_second, given.at_once, given.admin))
    except (FileError, UsageError) as error:
        print(f"dragoman_server.new_key: {error}", file=sys.stderr)
        raise SystemExit(FAILED if isinstance(error, FileError) else WRONG_USAGE) from None


if __name__ == "__main__":
    main()
