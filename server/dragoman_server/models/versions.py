"""Names of models and versions, and the order of versions."""

import re
from collections.abc import Iterable

from dragoman_server.bundle.manifest import NAME_PATTERN

LATEST = "latest"  # every model has this alias: the version that requests without one get

_NAME = re.compile(NAME_PATTERN)


def is_name(text: str) -> bool:
    """Returns whether a directory of this name may hold a model or a version; "..data" may not."""
    return _NAME.match(text) is not None and len(text) <= 255


def split(name: str) -> tuple[str, str | None]:
    """Splits NAME, NAME@VERSION or NAME@ALIAS into the model and the version or alias."""
    model, at, version = name.partition("@")
    return model, version if at else None


def is_number(version: str) -> bool:
    return version.isascii() and version.isdigit()


def rank(version: str) -> tuple[bool, int, str]:
    """Returns a sort key: whole numbers by value, above all other names, which sort alphabetically.

    "10" is newer than "9", and a directory called "candidate" is never the latest while a numbered one exists.
    """
    return (True, int(version), version) if is_number(version) else (False, 0, version)


def newest_first(versions: Iterable[str]) -> list[str]:
    return sorted(versions, key=rank, reverse=True)
