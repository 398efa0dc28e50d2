"""Pairs of source and target: the type, its files in a run directory, and which sources are the same to the model."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from dragoman_training.data.normalization import canonical
from dragoman_training.errors import DataError
from dragoman_training.files import write_text

_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_MEANT = {escape: character for character, escape in _ESCAPES.items()}


class Pair(NamedTuple):
    """A source, its target, and where they stand (line numbers start at 1)."""

    source: str
    target: str
    file: Path
    line: int


def distinct_sources(pairs: Iterable[Pair], tokenizer: Tokenizer) -> dict[str, str]:
    """Sources as `canonical` has them, of which the tokenizer's model can tell one from another, in the data's order.

    Returns:
        each with its first spelling.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        found.setdefault(canonical(tokenizer, pair.source), pair.source)
    return found


def references(pairs: Iterable[Pair], source_tokenizer: Tokenizer, target_tokenizer: Tokenizer) -> dict[str, list[str]]:
    """Each distinct source with all its targets, in the order of the data.

    Sources that are the same to the model are one, written as the first of them; targets are as `canonical` has them.
    """
    first: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    for pair in pairs:
        source = first.setdefault(canonical(source_tokenizer, pair.source), pair.source)
        found.setdefault(source, []).append(canonical(target_tokenizer, pair.target))
    return found


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    r"""Writes source<TAB>target lines in UTF-8; tab, line feed, carriage return and backslash as \t, \n, \r and \\."""
    write_text(path, "".join(f"{_escaped(pair.source)}\t{_escaped(pair.target)}\n" for pair in pairs))


def read_pairs_file(path: Path) -> list[Pair]:
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
