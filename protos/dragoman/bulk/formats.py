"""Formats of files, known by their names."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dragoman.bulk.errors import BulkError

Format = Literal["text", "tsv", "jsonl", "parquet"]
GZIP = ".gz"
_SUFFIXES: dict[str, Format] = {".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_SUFFIX_OF: dict[Format, str] = {"text": ".txt", "tsv": ".tsv", "jsonl": ".jsonl", "parquet": ".parquet"}


@dataclass(frozen=True, slots=True)
class FileFormat:
    """How a file is written.

    Attributes:
        kind: Its format.
        gzipped: Whether it is compressed with gzip.
    """

    kind: Format
    gzipped: bool


def format_of(path: Path, chosen: Format | None = None) -> FileFormat:
    """Returns the format of a file.

    Args:
        chosen: The user's choice; None to go by the name: .tsv, .jsonl, .ndjson or .parquet, and text otherwise.

    Raises:
        BulkError: A Parquet file is called .gz.
    """
    gzipped = path.suffix == GZIP
    kind = chosen or _SUFFIXES.get(path.with_suffix("").suffix if gzipped else path.suffix, "text")
    if kind == "parquet" and gzipped:
        raise BulkError(f"{path}: Parquet files have a compression of their own; leave out .gz")
    return FileFormat(kind, gzipped)


def renamed(name: str, kind: Format) -> str:
    """Returns the name of a file's output in another format: "a.tsv.gz" and jsonl make "a.jsonl.gz"."""
    path = Path(name)
    gzipped = path.suffix == GZIP and kind != "parquet"
    path = path.with_suffix("") if path.suffix == GZIP else path
    if path.suffix in {".txt", *_SUFFIXES}:
        path = path.with_suffix("")
    return f"{path}{_SUFFIX_OF[kind]}{GZIP if gzipped else ''}"
