"""How models and their versions are named, and how versions are ordered."""

import re
from collections.abc import Iterable

from dragoman_server.bundle.manifest import NAME_PATTERN

LATEST = "latest"  # an alias that every model has: what a request without a version gets

_NAME = re.compile(NAME_PATTERN)


def is_name(text: str) -> bool:
    """Whether a directory of that name may hold a model, or a version of one; "..data" and the like do not."""
    return _NAME.match(text) is not None and len(text) <= 255


def split(name: str) -> tuple[str, str | None]:
    """NAME, or NAME@VERSION, or NAME@alias, in its two parts."""
    model, at, version = name.partition("@")
    return model, version if at else None


def is_number(version: str) -> bool:
    return version.isascii() and version.isdigit()


def rank(version: str) -> tuple[bool, int, str]:
    """The key by which versions are sorted: whole numbers by value, all of them above texts, which go by their letters.

    So "10" is later than "9", and a directory called "candidate" is never the latest while there is one with a number.
    """
    return (True, int(version), version) if is_number(version) else (False, 0, version)


def newest_first(versions: Iterable[str]) -> list[str]:
    return sorted(versions, key=rank, reverse=True)
