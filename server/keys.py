"""Makes an API key: `python -m server.keys FILE NAME`. The file gets its hash, standard output the key itself, once."""

import argparse
import os
import sys
from pathlib import Path

from server.security.files import FileError
from server.security.keys import NAME, Entry, digest_of, new_key, read_entries

HEADER = "# API keys of dragoman-serve --api-keys: name, hash, limits. Whoever has no line here is not let in.\n"


def add(path: Path, name: str, per_second: str | None = None, at_once: str | None = None, admin: bool = False) -> str:
    """Appends a line to the file, which is made where there is none; gives the key.

    The file is replaced as a whole: a server that watches it never sees half a line.

    Raises:
        FileError: the name is taken, a value makes no sense, or the file can't be read or written.
    """
    if not NAME.fullmatch(name):
        raise FileError("NAME must be at most 64 letters, digits, dots, dashes and underscores, the first no sign")
    key = new_key()
    words = [Entry(name, digest_of(key), admin=admin).line()]
    words += [f"{limit}={value}" for limit, value in (("per_second", per_second), ("at_once", at_once)) if value]
    try:
        before = path.read_text() if path.exists() else HEADER
        if before and not before.endswith("\n"):
            before += "\n"
        content = before + "  ".join(words) + "\n"
        read_entries(content.encode(), str(path))
        target = path.resolve()
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(content)
        beside.replace(target)
    except OSError as error:
        raise FileError(f"{path} can't be changed: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FileError(f"{path} is not UTF-8") from None
    return key


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m server.keys",
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
    except FileError as error:
        print(f"server.keys: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
