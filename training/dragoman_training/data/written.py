"""Pairs as a run writes them down: a line each, and whatever they hold comes back as it was."""

import re
from collections.abc import Iterable
from pathlib import Path

from dragoman_training.data.corpus import Pair
from dragoman_training.errors import DataError
from dragoman_training.files import write_text

_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_MEANT = {escape: character for character, escape in _ESCAPES.items()}


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    r"""Writes source<TAB>target lines in UTF-8; tab, line feed, carriage return and backslash as \t, \n, \r and \\."""
    write_text(path, "".join(f"{_escaped(pair.source)}\t{_escaped(pair.target)}\n" for pair in pairs))


def read_written(path: Path) -> list[Pair]:
    """Reads what `write_pairs` wrote.

    Raises:
        DataError: the file is missing, or a line of it is not one of those.
    """
    try:
        lines = path.read_bytes().decode().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    if lines.pop():
        raise DataError(f"{path}:{len(lines) + 1}: the line has no end, so the file is cut off")
    pairs: list[Pair] = []
    for number, line in enumerate(lines, 1):
        fields = line.split("\t")
        if len(fields) != 2:
            raise DataError(f"{path}:{number}: expected source<TAB>target, found {len(fields)} field(s)")
        source, target = (_meant(field, path, number) for field in fields)
        pairs.append(Pair(source, target, path, number))
    return pairs


def _escaped(text: str) -> str:
    return re.sub(r"[\\\t\n\r]", lambda found: _ESCAPES[found[0]], text)


def _meant(text: str, path: Path, number: int) -> str:
    def meant(found: re.Match[str]) -> str:
        if found[0] not in _MEANT:
            raise DataError(f"{path}:{number}: {found[0]} stands for nothing; a backslash is written \\\\")
        return _MEANT[found[0]]

    return re.sub(r"\\.?", meant, text, flags=re.DOTALL)
