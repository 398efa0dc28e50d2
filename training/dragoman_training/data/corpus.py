"""Reads data files and checks every line."""

import codecs
import gzip
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

from dragoman_training.data.characters import find_bad_character, invisible_content
from dragoman_training.data.languages import language_token, with_language
from dragoman_training.data.pairs import Pair
from dragoman_training.data.tokenizers import SPECIAL_TOKENS
from dragoman_training.errors import DataError
from dragoman_training.recipe import Columns, DataFile, PairsFile, ParallelFiles, target_language

HEAD = 4096  # bytes at the start of a file that its encoding is detected from
_WIDE_ENCODINGS = {
    # In this order: the byte order mark of UTF-32LE starts with that of UTF-16LE.
    "UTF-32LE": codecs.BOM_UTF32_LE,
    "UTF-32BE": codecs.BOM_UTF32_BE,
    "UTF-16LE": codecs.BOM_UTF16_LE,
    "UTF-16BE": codecs.BOM_UTF16_BE,
}


class BadLine(NamedTuple):
    """A skipped line: its position, the kind of fault it is counted under, and a description."""

    file: Path
    line: int
    kind: str
    message: str


@dataclass
class BadLines:
    """The bad lines of a corpus.

    Attributes:
        policy: Whether bad lines are collected (skip) or the first one raises DataError (refuse).
        lines: Bad lines in the order they were read.
        all_bad_files: Files that contain bad lines only.
    """

    policy: Literal["skip", "refuse"]
    lines: list[BadLine] = field(default_factory=list)
    all_bad_files: list[Path] = field(default_factory=list)

    def add(self, file: Path, line: int, kind: str, message: str) -> None:
        """Records a bad line.

        Args:
            kind: Kind of fault that the line is counted under.
            message: Description of what is wrong and what was expected.

        Raises:
            DataError: The policy is refuse.
        """
        if self.policy == "refuse":
            raise DataError(f"{file}:{line}: {message} (set data.on_bad_line: skip to skip such lines)")
        self.lines.append(BadLine(file, line, kind, message))

    @property
    def messages(self) -> list[str]:
        """One message per line, with file and line number."""
        return [f"{bad.file}:{bad.line}: {bad.message}" for bad in self.lines]

    @property
    def counts(self) -> Counter[str]:
        """The number of lines of each kind, the most common first."""
        return Counter(dict(Counter(bad.kind for bad in self.lines).most_common()))

    def summary(self, since: int = 0) -> str:
        """Summarises the skipped lines, with an example of the most common kind; empty if none were skipped.

        Args:
            since: Number of lines to leave out, the oldest ones.
        """
        lines = self.lines[since:]
        if not lines:
            return ""
        files = Counter(bad.file for bad in lines)
        others = f" and {len(files) - 1} other file(s)" if len(files) > 1 else ""
        kinds = Counter(bad.kind for bad in lines).most_common()
        kind = kinds[0][0]
        first = next(bad for bad in lines if bad.kind == kind)
        return (
            f"{len(lines):,} line(s) of {files.most_common(1)[0][0]}{others} are skipped "
            f"({', '.join(f'{kind} {count:,}' for kind, count in kinds)}); the first {kind} is "
            f"line {first.line}{f' of {first.file}' if others else ''}: {first.message}"
        )


def read_pairs(files: Sequence[DataFile], bad: BadLines, columns: Columns | None = None) -> list[Pair]:
    """Reads tab-separated or parallel files; bad lines go to `bad`.

    Sources of files with a target language start with its token, see `with_language`.

    Args:
        columns: Columns of tab-separated files that name none of their own; None for source<TAB>target.

    Raises:
        DataError: A file is missing, cannot be decompressed, lacks a named column or has fewer lines than its partner;
            or a line is bad and the policy is refuse.
    """
    pairs: list[Pair] = []
    reserved = [*SPECIAL_TOKENS, *(language_token(code) for code in map(target_language, files) if code is not None)]
    for entry in files:
        pairs_before, bad_before = len(pairs), len(bad.lines)
        read, language = _read(entry, bad, columns), target_language(entry)
        valid = (pair for pair in read if _is_valid(pair, reserved, bad))
        pairs.extend(pair._replace(source=with_language(pair.source, language)) for pair in valid)
        if len(pairs) == pairs_before and len(bad.lines) > bad_before:
            bad.all_bad_files.append(bad.lines[bad_before].file)
    return pairs


def _lines(file: Path) -> Iterator[bytes]:
    """Yields lines without their ends, LF or CR LF, and without a byte order mark at the start of the file."""
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as stream:
            _check_encoding(file, stream.peek(HEAD)[:HEAD])
            for number, line in enumerate(stream):
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                yield line.removeprefix(codecs.BOM_UTF8) if number == 0 else line
    except FileNotFoundError:
        raise DataError(
            f"{file}: no such data file (paths are relative to the current directory or to the recipe's)"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: cannot be read ({error})") from None


def _check_encoding(file: Path, head: bytes) -> None:
    """Checks from the first bytes that a file consists of lines of UTF-8.

    Raises:
        DataError: The file looks like UTF-16 or UTF-32, or its lines end in CR alone.
    """
    separators = sum(map(head.count, (b"\n", b"\t")))
    for encoding, mark in _WIDE_ENCODINGS.items():
        decoded = head.decode(encoding, "ignore")
        if head.startswith(mark) or 2 * sum(map(decoded.count, "\n\t")) > separators:
            raise DataError(
                f"{file}: looks like {encoding}, expected UTF-8; convert it with `iconv -f {encoding} -t UTF-8`"
            )
    inner = head[:-1].count(b"\r")
    if b"\n" not in head and inner > (len(head) == HEAD):
        raise DataError(f"{file}: its lines end in CR alone, expected LF or CR LF; convert it with `tr '\\r' '\\n'`")


def _decode(raw: bytes, file: Path, line: int, bad: BadLines) -> str | None:
    """Decodes a line; returns None if it is bad."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        bad.add(file, line, "bad_utf8", f"not valid UTF-8 at byte {error.start + 1} of the line")
        return None
    found = find_bad_character(text)
    if found:
        bad.add(file, line, "bad_character", f"contains {found}")
        return None
    return text


def _read(entry: DataFile, bad: BadLines, columns: Columns | None) -> Iterator[Pair]:
    if isinstance(entry, ParallelFiles):
        return _parallel(entry, bad)
    file = entry if isinstance(entry, Path) else entry.file
    if isinstance(entry, PairsFile):
        columns = entry.columns or columns
    return _tab_separated(file, bad) if columns is None else _columns(file, columns, bad)


def _tab_separated(file: Path, bad: BadLines) -> Iterator[Pair]:
    for number, raw in enumerate(_lines(file), 1):
        text = _decode(raw, file, number, bad)
        if text is None:
            continue
        fields = text.split("\t")
        if len(fields) == 2:
            yield Pair(fields[0], fields[1], file, number)
        else:
            bad.add(file, number, "wrong_fields", f"expected source<TAB>target, found {len(fields)} field(s)")


def _columns(file: Path, columns: Columns, bad: BadLines) -> Iterator[Pair]:
    lines = enumerate(_lines(file), 1)
    places = [column - 1 for column in (columns.source, columns.target) if isinstance(column, int)]
    if not places:
        places = _named_columns(file, columns, next(lines, (1, b""))[1])
    last = max(places) + 1
    for number, raw in lines:
        text = _decode(raw, file, number, bad)
        if text is None:
            continue
        fields = text.split("\t")
        if len(fields) >= last:
            yield Pair(fields[places[0]], fields[places[1]], file, number)
        else:
            bad.add(file, number, "wrong_fields", f"expected at least {last} fields, found {len(fields)}")


def _named_columns(file: Path, columns: Columns, header: bytes) -> list[int]:
    """Returns the places of source and target in a line."""
    names = [name.strip() for name in header.decode("utf-8", "replace").split("\t")]
    for column in (columns.source, columns.target):
        if names.count(str(column)) != 1:
            problem = "several columns are" if column in names else "no column is"
            raise DataError(f"{file}:1: {problem} called {column}; the first line names {', '.join(names)}")
    return [names.index(str(column)) for column in (columns.source, columns.target)]


def _parallel(files: ParallelFiles, bad: BadLines) -> Iterator[Pair]:
    for number, (left, right) in enumerate(zip_longest(_lines(files.source), _lines(files.target)), 1):
        if left is None or right is None:
            short, long = (files.source, files.target) if left is None else (files.target, files.source)
            raise DataError(
                f"{short} ends after {number - 1} lines but {long} goes on; parallel files must have equally many lines"
            )
        source = _decode(left, files.source, number, bad)
        target = None if source is None else _decode(right, files.target, number, bad)
        if source is not None and target is not None:
            yield Pair(source, target, files.source, number)


def _is_valid(pair: Pair, reserved: Sequence[str], bad: BadLines) -> bool:
    for name in ("source", "target"):
        text: str = getattr(pair, name)
        invisible = invisible_content(text)
        if invisible is not None:
            message = f"the {name} is empty" + (invisible and f": it contains only {invisible}")
            bad.add(pair.file, pair.line, "empty_side", message)
            return False
        for token in reserved:
            if token in text:
                bad.add(pair.file, pair.line, "reserved_token", f"the {name} contains the reserved token {token}")
                return False
    return True
