"""Files that are whole or not there: written beside their place, synced, then renamed into it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Lets `fill` write a file and puts it in place once it is on the disk.

    A kill before the rename leaves the old file, or none, and a `.NAME.partial` that the next write replaces.
    """
    temporary = path.with_name(f".{path.name}.partial")
    with temporary.open("wb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself
    finally:
        os.close(folder)


def write_text(path: Path, text: str) -> None:
    """`write` for a text in UTF-8."""
    write(path, lambda file: file.write(text.encode()))
