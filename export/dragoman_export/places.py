"""Where bundles and runs can be made. Imports nothing heavy: a bad place is refused before any work."""

import os
from pathlib import Path

from dragoman_export.errors import ExportError


def check_place(place: Path) -> bool:
    """Returns whether a place is taken.

    Raises:
        ExportError: A directory can't be made there.
    """
    try:
        exists = place.exists()
        parent = next(folder for folder in place.absolute().parents if folder.exists())
    except OSError as error:
        raise ExportError(f"{place} can't be made: {error.strerror}") from None
    if place.is_symlink() and not exists:
        raise ExportError(f"{place} can't be made: it is a link to {place.readlink()}, which is missing")
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ExportError(f"{place} can't be made: {parent} is not a directory that can be written")
    return exists


def last_part(place: Path) -> str:
    """Returns the name of a directory: with links resolved, unless they form a loop."""
    try:
        return place.resolve().name
    except RuntimeError:  # Python before 3.13
        return place.name
