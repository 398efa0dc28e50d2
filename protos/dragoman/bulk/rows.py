"""Reads the rows of an input: lines of text, columns, JSON objects or Parquet records, good and bad ones."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.bulk.errors import BulkError
from dragoman.bulk.formats import FileFormat
from dragoman.bulk.text_lines import FileDigest, counted, decoded, digest_of, never, raw_lines
from dragoman.requests import text

DEFAULT_COLUMN = "text"


class Row(NamedTuple):
    """One row of an input.

    Attributes:
        number: Where it is, counted from 1.
        source: The source text; empty if there is none.
        problem: What is wrong with it; empty if nothing is.
        original: The row itself, for an output of the same format: the bytes of a line, None if nothing can be added
            to it; or of a Parquet file the record batch and the row in it.
    """

    number: int
    source: str
    problem: str
    original: Any


@dataclass(frozen=True, slots=True)
class Input:
    """A file of sources.

    Attributes:
        column: Where the sources are: a number counted from 1 for tsv, a name for jsonl and parquet. None for the
            first, or "text".
        taken: Name that no column may have, since the answers get it; None if they do not stand beside the columns.
    """

    path: Path
    format: FileFormat
    column: str | None = None
    taken: str | None = None

    @property
    def name(self) -> str:
        """The name of the column with the sources; the one that it gets where columns have numbers."""
        return DEFAULT_COLUMN if self.column is None or self.format.kind == "tsv" else self.column

    def check(self) -> None:
        """Checks what can be known before reading.

        Raises:
            BulkError: The file, or its column, can't be read.
        """
        if self.format.kind == "text" and self.column is not None:
            raise BulkError(f"{self.path}: --column is for tsv, jsonl and parquet; a text file has one source per line")
        if self.format.kind == "tsv":
            self._number()
        if self.format.kind == "parquet":
            from dragoman.bulk.parquet import check_columns

            check_columns(self.path, self.name, self.taken)

    def digest(self, should_stop: Callable[[], bool] = never) -> FileDigest:
        """Reads the file once.

        Raises:
            BulkError: It can't be read.
            StoppedError: `should_stop` returned True.
        """
        digest = digest_of(self.path, should_stop)
        if self.format.kind != "parquet":
            return digest
        from dragoman.bulk.parquet import number_of_rows

        return FileDigest(self.path, digest.sha256, number_of_rows(self.path))

    def rows(self, start: int = 0) -> Iterator[Row]:
        """Yields every row after the first `start`, bad ones too.

        Raises:
            BulkError: The file can't be read.
        """
        if self.format.kind == "parquet":
            from dragoman.bulk.parquet import parquet_rows

            return parquet_rows(self.path, self.name, start)
        read = {"text": self._text, "tsv": self._columns, "jsonl": self._object}[self.format.kind]
        lines = enumerate(raw_lines(self.path), 1)
        return (read(number, raw) for number, raw in islice(lines, start, None))

    def _text(self, number: int, raw: bytes | None) -> Row:
        source, problem = decoded(raw)
        return Row(number, *_readable(source, problem), raw)

    def _columns(self, number: int, raw: bytes | None) -> Row:
        line, problem = decoded(raw)
        columns, column = line.split("\t"), self._number()
        if not problem and len(columns) < column:
            problem = f"has {counted(len(columns), 'column')}, so there is no column {column}"
        return Row(number, *_readable("" if problem else columns[column - 1], problem), raw)

    def _object(self, number: int, raw: bytes | None) -> Row:
        line, problem = decoded(raw)
        if problem:
            return Row(number, "", problem, None)
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            return Row(number, "", f"is not valid JSON: {' '.join(str(error).split())}", None)
        if not isinstance(value, dict):
            return Row(number, "", f"is {_kind(value)}, not a JSON object", None)
        if self.taken is not None and self.taken in value:
            raise BulkError(
                f'{self.path}:{number} has a field "{self.taken}" already; name another --answer-column for the answers'
            )
        source = value.get(self.name)
        if self.name not in value:
            problem = f'has no field "{self.name}"'
        elif not isinstance(source, str):
            problem = f'has {_kind(source)} as "{self.name}", not a string'
        return Row(number, *_readable(source or "", problem), raw)

    def _number(self) -> int:
        column = self.column or "1"
        if not (column.isascii() and column.isdigit() and int(column)):
            raise BulkError(f"--column: expected the number of a column of a .tsv file, counted from 1, got {column!r}")
        return int(column)


def _readable(source: str, problem: str) -> tuple[str, str]:
    """Returns a source that can be sent, or what is wrong with it."""
    if problem:
        return "", problem
    if not source or source.isspace():
        return "", "is blank" if source else "is empty"
    try:
        return text(source, "the source"), ""
    except ValueError as error:
        return "", str(error).removeprefix("the source: ")


def readable(source: str | None) -> tuple[str, str]:
    """Returns the source of a column that may have none, or what is wrong with it."""
    return ("", "is null") if source is None else _readable(source, "")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    kinds = {dict: "an object", list: "an array", str: "a string"}
    return next((name for kind, name in kinds.items() if isinstance(value, kind)), "a number")
