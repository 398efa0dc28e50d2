"""Writes answers in the format of an output, as bytes to append."""

import gzip
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from dragoman.bulk.backend import Answer
from dragoman.bulk.formats import FileFormat
from dragoman.bulk.rows import Input, Row
from dragoman.one_line import one_line

GZIP_LEVEL = 6
Encode = Callable[[Sequence[Row], Sequence[Answer]], bytes]
Line = Callable[[Row, str | None, bool], bytes]


def encoder(source: Input, output: FileFormat, answer_column: str) -> Encode:
    """Returns a function that writes the answers to rows, each row as one row.

    An output in the format of its input keeps all that the input has, and adds the answers. One in another format
    has the sources and the answers; a text has only the answers. Rows without an answer get an empty one, or null.

    Args:
        source: The input.
        output: Format of the output.
        answer_column: Name of the answers in jsonl and parquet.

    Raises:
        BulkError: The format needs a package that is not installed.
    """
    if output.kind == "parquet":
        from dragoman.bulk.parquet import parquet_encoder

        return parquet_encoder(source, answer_column)
    lines: dict[str, Line] = {
        "text": _text,
        "tsv": _columns,
        "jsonl": partial(_object, source.name, answer_column),
    }
    line = lines[output.kind]
    same = source.format.kind == output.kind

    def encode(rows: Sequence[Row], answers: Sequence[Answer]) -> bytes:
        written = [line(row, answer.text, same) for row, answer in zip(rows, answers, strict=True)]
        return b"\n".join([*written, b""])

    if not output.gzipped:
        return encode
    # Concatenated members are a gzip file. Without times in them, the same answers give the same bytes.
    return lambda rows, answers: gzip.compress(encode(rows, answers), GZIP_LEVEL, mtime=0)


def converter(output: FileFormat) -> Callable[[Path, Path], None] | None:
    """Returns a function that makes an output of what an encoder has written; None if that is the output."""
    if output.kind != "parquet":
        return None
    from dragoman.bulk.parquet import convert

    return convert


def _text(row: Row, answer: str | None, same: bool) -> bytes:
    return one_line(answer or "").encode()


def _columns(row: Row, answer: str | None, same: bool) -> bytes:
    before = row.original or b"" if same else one_line(row.source).encode()
    return before + b"\t" + one_line(answer or "").encode()


def _object(name: str, answer_column: str, row: Row, answer: str | None, same: bool) -> bytes:
    added = f"{_json(answer_column)}: {_json(answer)}}}".encode()
    if not same:
        return f"{{{_json(name)}: {_json(None if row.problem else row.source)}, ".encode() + added
    if row.original is None:
        return b"{" + added
    fields: bytes = row.original.rstrip().removesuffix(b"}").rstrip()
    return fields + (b"" if fields.endswith(b"{") else b", ") + added


def _json(value: str | None) -> str:
    return json.dumps(value, ensure_ascii=False)
