"""The files that IN and OUT name: one, or those of a folder, of which a shard takes a part."""

import re
from dataclasses import dataclass
from pathlib import Path

from dragoman.bulk.errors import BulkError
from dragoman.bulk.formats import Format, format_of, renamed
from dragoman.bulk.output import BESIDE_OUTPUTS
from dragoman.bulk.rows import Input
from dragoman.bulk.text_lines import guarded
from dragoman.bulk.work import FileWork


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a folder's files.

    Attributes:
        index: Which part, counted from 0.
        count: Number of parts.
    """

    index: int
    count: int


def read_shard(text: str) -> Shard:
    """Reads "I/N".

    Raises:
        ValueError: It does not have this form.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
    shard = Shard(int(match[1]), int(match[2])) if match else Shard(0, 0)
    if shard.index >= shard.count:
        raise ValueError(f"--shard: expected I/N, with I from 0 to N - 1, got {text!r}")
    return shard


def find_work(
    source: Path,
    out: Path,
    *,
    column: str | None = None,
    answer_column: str = "answer",
    input_format: Format | None = None,
    output_format: Format | None = None,
    shard: Shard | None = None,
) -> list[FileWork]:
    """Returns the work that IN and OUT name, in the order of the files' names.

    Args:
        source: A file, or a folder of files. Files that belong to outputs do not count, nor does the folder of
            `out`, nor do names that start with a dot or an underscore.
        out: File to write, or folder to write the answers to each file to, which is made.
        column, answer_column: See Input and FileWork.
        input_format, output_format: Formats; None to go by the names, and in a folder to write what is read.
        shard: Part of the folder's files: of N parts, part I has every N-th file from the I-th on.

    Raises:
        BulkError: A file or a folder can't be used.
    """

    def work(path: Path, target: Path, kind: Format | None) -> FileWork:
        read, written = format_of(path, input_format), format_of(target, kind)
        found = Input(path, read, column, answer_column if read.kind == written.kind else None)
        if read.kind != written.kind and written.kind in ("jsonl", "parquet") and found.name == answer_column:
            raise BulkError(f'the sources of {target} are called "{found.name}"; name another --answer-column')
        return FileWork(found, target, written, answer_column)

    if not source.is_dir():
        if shard is not None:
            raise BulkError(f"--shard: {source} is not a folder of files")
        if not source.exists():
            raise BulkError(f"{source}: there is no such file")
        return [work(source, out, output_format)]
    if out.exists() and not out.is_dir():
        raise BulkError(f"{source} is a folder, but {out} is not")
    if out.exists() and out.samefile(source):
        raise BulkError(f"{out} is the input itself; name another folder to write")
    targets: dict[Path, Path] = {}  # the input of each output
    for path in sorted(guarded(source, lambda: list(source.iterdir()))):
        if path.name[0] in "._" or path.name.endswith(BESIDE_OUTPUTS):
            continue
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):  # made by this command
            continue
        if not path.is_file():
            raise BulkError(f"{path} is not a file; in a folder, only files can be read")
        target = out / (path.name if output_format is None else renamed(path.name, output_format))
        other = targets.setdefault(target, path)
        if other != path:
            raise BulkError(f"the answers to {other} and {path} would both be {target}; rename one of them")
    if not targets:
        raise BulkError(f"{source} has no files")
    chosen = list(targets.items()) if shard is None else list(targets.items())[shard.index :: shard.count]
    files = [work(path, target, output_format or format_of(path, input_format).kind) for target, path in chosen]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BulkError(f"{out}: can't be created: {error.strerror or error}") from None
    return files
