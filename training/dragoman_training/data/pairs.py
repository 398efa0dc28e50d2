"""Pairs of source and target, their files in a run directory, and which sources are the same to the model."""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from dragoman_training.data.normalization import canonical
from dragoman_training.errors import DataError
from dragoman_training.files import write_text

_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_UNESCAPED = {escape: character for character, escape in _ESCAPES.items()}


class Pair(NamedTuple):
    """A source and its target, with their file and line (counted from 1)."""

    source: str
    target: str
    file: Path
    line: int


def distinct_sources(pairs: Iterable[Pair], tokenizer: Tokenizer) -> dict[str, str]:
    """Returns the sources that the model can tell apart, in the order of the data.

    Returns:
        The first spelling of each source by its canonical form.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        found.setdefault(canonical(tokenizer, pair.source), pair.source)
    return found


def references(pairs: Iterable[Pair], source_tokenizer: Tokenizer, target_tokenizer: Tokenizer) -> dict[str, list[str]]:
    """Returns each distinct source in its first spelling with all its targets in canonical form, in data order."""
    first: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    for pair in pairs:
        source = first.setdefault(canonical(source_tokenizer, pair.source), pair.source)
        found.setdefault(source, []).append(canonical(target_tokenizer, pair.target))
    return found


def pairs_digest(pairs: Iterable[Pair]) -> str:
    """Returns a digest of the texts, with which export checks that a split is the one that the run measured."""
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(f"{pair.source}\0{pair.target}\0".encode())
    return digest.hexdigest()


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    r"""Writes source<TAB>target lines in UTF-8; tab, line feed, carriage return and backslash as \t, \n, \r and \\."""
    write_text(path, "".join(f"{_escape(pair.source)}\t{_escape(pair.target)}\n" for pair in pairs))


def read_pairs_file(path: Path) -> list[Pair]:
    """Reads a file of `write_pairs`.

    Raises:
        DataError: The file is missing or damaged.
    """
    try:
        lines = path.read_bytes().decode().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    if lines.pop():
        raise DataError(f"{path}:{len(lines) + 1}: the last line is incomplete, so the file is truncated")
    pairs: list[Pair] = []
    for number, line in enumerate(lines, 1):
        fields = line.split("\t")
        if len(fields) != 2:
            raise DataError(f"{path}:{number}: expected source<TAB>target, found {len(fields)} field(s)")
        source, target = (_unescape(field, path, number) for field in fields)
        pairs.append(Pair(source, target, path, number))
    return pairs


def _escape(text: str) -> str:
    return re.sub(r"[\\\t\n\r]", lambda match: _ESCAPES[match[0]], text)


def _unescape(text: str, path: Path, number: int) -> str:
    def replace(match: re.Match[str]) -> str:
        if match[0] not in _UNESCAPED:
            raise DataError(f"{path}:{number}: {match[0]} is not an escape; write a backslash as \\\\")
        return _UNESCAPED[match[0]]

    return re.sub(r"\\.?", replace, text, flags=re.DOTALL)
