"""Reads data files and checks every line."""

import codecs
import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from dragoman_training.data.bad_lines import BadLines
from dragoman_training.data.characters import find_bad_character, invisible_content
from dragoman_training.data.languages import language_token, source_token, with_language
from dragoman_training.data.pairs import Pair
from dragoman_training.data.tokenizers import SPECIAL_TOKENS
from dragoman_training.errors import DataError
from dragoman_training.recipe import (
    Columns,
    DataFile,
    PairsFile,
    ParallelFiles,
    file_paths,
    source_language,
    target_language,
)

HEAD = 4096  # bytes at the start of a file that its encoding is detected from
CHUNK_LINES = 2**16
CHUNK_BYTES = 2**26
_WIDE_ENCODINGS = {
    # In this order: the byte order mark of UTF-32LE starts with that of UTF-16LE.
    "UTF-32LE": codecs.BOM_UTF32_LE,
    "UTF-32BE": codecs.BOM_UTF32_BE,
    "UTF-16LE": codecs.BOM_UTF16_LE,
    "UTF-16BE": codecs.BOM_UTF16_BE,
}


@dataclass(frozen=True)
class Chunk:
    """Consecutive lines of a data file, not yet checked.

    Attributes:
        entry: The data file.
        places: Places of source and target among the fields of a line; None for exactly two fields.
        first: Number of the first line, from 1 on.
        lines: The lines; of parallel files, those of the source.
        others: Those of the target, of parallel files.
    """

    entry: DataFile
    places: tuple[int, int] | None
    first: int
    lines: list[bytes]
    others: list[bytes] | None


def read_pairs(files: Sequence[DataFile], bad: BadLines, columns: Columns | None = None) -> list[Pair]:
    """Reads tab-separated or parallel files; bad lines go to `bad`.

    Sources of files that name languages start with them, see `with_language`.

    Args:
        columns: Columns of tab-separated files that name none of their own; None for source<TAB>target.

    Raises:
        DataError: A file is missing, cannot be decompressed, lacks a named column or has fewer lines than its partner;
            or a line is bad and the policy is refuse.
    """
    pairs: list[Pair] = []
    reserved = reserved_tokens(files)
    for entry in files:
        before, bad_before = len(pairs), bad.tally.counts.total()
        for chunk in chunks(entry, columns):
            pairs.extend(valid_pairs(chunk, reserved, bad))
        if len(pairs) == before and bad.tally.counts.total() > bad_before:
            bad.all_bad_files.append(file_paths(entry)[0])
    return pairs


def reserved_tokens(files: Sequence[DataFile]) -> list[str]:
    """Returns the tokens that no text of the files may contain."""
    codes = dict.fromkeys(code for code in map(target_language, files) if code is not None)
    sources = dict.fromkeys(code for code in map(source_language, files) if code is not None)
    return [*SPECIAL_TOKENS, *map(language_token, codes), *map(source_token, sources)]


def chunks(entry: DataFile, columns: Columns | None = None) -> Iterator[Chunk]:
    """Reads a data file in chunks of CHUNK_LINES lines, or fewer if they are long.

    Raises:
        DataError: See `read_pairs`; lines are not checked yet.
    """
    if isinstance(entry, ParallelFiles):
        numbered: Iterator[tuple[bytes, bytes | None]] = _parallel(entry)
        places, first = None, 1
    else:
        file = entry if isinstance(entry, Path) else entry.file
        raw = _lines(file)
        places, first = _places(file, (isinstance(entry, PairsFile) and entry.columns) or columns, raw)
        numbered = ((line, None) for line in raw)
    for part in _parts(numbered):
        others = [other for _, other in part if other is not None]
        yield Chunk(entry, places, first, [line for line, _ in part], others or None)
        first += len(part)


def valid_pairs(chunk: Chunk, reserved: Sequence[str], bad: BadLines) -> Iterator[Pair]:
    """Yields the pairs of a chunk; bad lines go to `bad`."""
    languages = target_language(chunk.entry), source_language(chunk.entry)
    read = _tab_separated(chunk, bad) if chunk.others is None else _side_by_side(chunk, chunk.others, bad)
    for pair in read:
        if _is_valid(pair, reserved, bad):
            yield pair._replace(source=with_language(pair.source, *languages))


def _parts(lines: Iterator[tuple[bytes, bytes | None]]) -> Iterator[list[tuple[bytes, bytes | None]]]:
    part: list[tuple[bytes, bytes | None]] = []
    size = 0
    for line, other in lines:
        part.append((line, other))
        size += len(line) + len(other or b"")
        if len(part) == CHUNK_LINES or size >= CHUNK_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def missing(file: Path) -> DataError:
    """Returns the error for a data file that does not exist."""
    return DataError(f"{file}: no such data file (paths are relative to the current directory or to the recipe's)")


def _lines(file: Path) -> Iterator[bytes]:
    """Yields lines without their ends, LF or CR LF, and without a byte order mark at the start of the file."""
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as stream:
            _check_encoding(file, stream.peek(HEAD)[:HEAD])
            for number, line in enumerate(stream):
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                yield line.removeprefix(codecs.BOM_UTF8) if number == 0 else line
    except FileNotFoundError:
        raise missing(file) from None
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


def _places(file: Path, columns: Columns | None, lines: Iterator[bytes]) -> tuple[tuple[int, int] | None, int]:
    """Returns the places of source and target in a line, and the number of the first line of pairs.

    Takes the first line if it names the columns.
    """
    if columns is None:
        return None, 1
    if isinstance(columns.source, int) and isinstance(columns.target, int):
        return (columns.source - 1, columns.target - 1), 1
    names = [name.strip() for name in next(lines, b"").decode("utf-8", "replace").split("\t")]
    for column in (columns.source, columns.target):
        if names.count(str(column)) != 1:
            problem = "several columns are" if column in names else "no column is"
            raise DataError(f"{file}:1: {problem} called {column}; the first line names {', '.join(names)}")
    return (names.index(str(columns.source)), names.index(str(columns.target))), 2


def _parallel(files: ParallelFiles) -> Iterator[tuple[bytes, bytes]]:
    for number, (left, right) in enumerate(zip_longest(_lines(files.source), _lines(files.target)), 1):
        if left is None or right is None:
            short, long = (files.source, files.target) if left is None else (files.target, files.source)
            raise DataError(
                f"{short} ends after {number - 1} lines but {long} goes on; parallel files must have equally many lines"
            )
        yield left, right


def _tab_separated(chunk: Chunk, bad: BadLines) -> Iterator[Pair]:
    (file,), places = file_paths(chunk.entry), chunk.places
    source, target = places or (0, 1)
    least = max(source, target) + 1
    for number, raw in enumerate(chunk.lines, chunk.first):
        text = _decode(raw, file, number, bad)
        if text is None:
            continue
        fields = text.split("\t")
        if len(fields) == least or (places is not None and len(fields) > least):
            yield Pair(fields[source], fields[target], file, number)
        elif places is None:
            bad.add(file, number, "wrong_fields", f"expected source<TAB>target, found {len(fields)} field(s)")
        else:
            bad.add(file, number, "wrong_fields", f"expected at least {least} fields, found {len(fields)}")


def _side_by_side(chunk: Chunk, others: Sequence[bytes], bad: BadLines) -> Iterator[Pair]:
    source_file, target_file = file_paths(chunk.entry)
    for number, (left, right) in enumerate(zip(chunk.lines, others, strict=True), chunk.first):
        source = _decode(left, source_file, number, bad)
        target = None if source is None else _decode(right, target_file, number, bad)
        if source is not None and target is not None:
            yield Pair(source, target, source_file, number)


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
