"""Reads source texts line by line: plain text, tab-separated or parallel files, gzip-compressed or not."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import yaml

from dragoman.bulk.errors import BulkError
from dragoman.bulk.text_lines import FileDigest, counted, decoded, digest_of, guarded, opened, raw_lines

Layout = Literal["auto", "text", "tsv"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
RECIPES = (".yaml", ".yml")
HEAD = 2**16  # bytes that the layout is recognized from


class SourceLine(NamedTuple):
    """One line of the input.

    Attributes:
        file, line: Where it is, counted from 1.
        source: The source text.
        reference: Its translation in the file; None if there is none.
        problem: What is wrong with the line; empty if nothing is.
    """

    file: Path
    line: int
    source: str
    reference: str | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of sources.

    Attributes:
        layout: One source per line, or tab-separated columns.
        references: Parallel file of references, if there is one.
    """

    path: Path
    layout: Literal["text", "tsv"]
    references: Path | None = None

    @property
    def paths(self) -> list[Path]:
        return [self.path] if self.references is None else [self.path, self.references]


@dataclass(frozen=True, slots=True)
class Sources:
    """All lines of some files, in order.

    Attributes:
        source_column, reference_column: Columns of tab-separated files, counted from 1.
    """

    files: tuple[SourceFile, ...]
    source_column: int = 1
    reference_column: int = 2

    @property
    def paths(self) -> list[Path]:
        return [path for file in self.files for path in file.paths]

    def digests(self, should_stop: Callable[[], bool]) -> list[FileDigest]:
        """Reads all files once.

        Raises:
            BulkError: A file can't be read, or parallel files differ in length.
            StoppedError: `should_stop` returned True.
        """
        digests: list[FileDigest] = []
        for file in self.files:
            digests += [digest_of(path, should_stop) for path in file.paths]
            if file.references is not None:
                source, reference = digests[-2:]
                if source.lines != reference.lines:
                    raise _unequal(*sorted((source, reference), key=lambda digest: digest.lines))
        return digests

    def lines(self) -> Iterator[SourceLine]:
        """Yields every line, bad ones too.

        Raises:
            BulkError: A file can't be read, or parallel files differ in length.
        """
        for file in self.files:
            if file.references is not None:
                yield from _parallel(file.path, file.references)
            elif file.layout == "tsv":
                yield from self._tab_separated(file.path)
            else:
                for number, raw in enumerate(raw_lines(file.path), 1):
                    text, problem = decoded(raw)
                    yield SourceLine(file.path, number, text, None, problem)

    def _tab_separated(self, path: Path) -> Iterator[SourceLine]:
        for number, raw in enumerate(raw_lines(path), 1):
            text, problem = decoded(raw)
            columns = text.split("\t")
            if not problem and len(columns) < self.source_column:
                problem = f"has {counted(len(columns), 'column')}, so there is no column {self.source_column}"
            if problem:
                yield SourceLine(path, number, "", None, problem)
                continue
            reference = columns[self.reference_column - 1] if len(columns) >= self.reference_column else None
            yield SourceLine(path, number, columns[self.source_column - 1], reference)


def find_sources(path: Path, layout: Layout = "auto", source_column: int = 1, reference_column: int = 2) -> Sources:
    """Finds the files that SOURCES names: a file of sources, or a training recipe's `data.train`.

    Args:
        layout: Layout of a file; "auto" takes it for tab-separated if it is called .tsv, or if all its first lines
            have tabs.

    Raises:
        BulkError: A file is missing, or the recipe has no training files.
    """
    files = _recipe_files(path) if path.suffix in RECIPES else [SourceFile(path, _layout(path, layout))]
    return Sources(tuple(files), source_column, reference_column)


def _recipe_files(recipe: Path) -> list[SourceFile]:
    """Returns the training files of a recipe; relative paths are of the current directory, then of the recipe's."""
    try:
        document = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    except OSError as error:
        raise BulkError(f"{recipe}: can't be read: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BulkError(f"{recipe} is not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise BulkError(f"{recipe}: its values are nested too deeply; expected a training recipe") from None
    data = document.get("data") if isinstance(document, dict) else None
    entries = data.get("train") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not entries:
        raise BulkError(f"{recipe}: expected a training recipe with the files of data.train")

    def resolve(name: object) -> Path:
        if not isinstance(name, str):
            raise BulkError(f"{recipe}: data.train: expected file names, or {{source: FILE, target: FILE}}")
        path = Path(name)
        return recipe.parent / path if not path.exists() and (recipe.parent / path).exists() else path

    for key in ("columns", "target_language"):
        if (isinstance(data, dict) and data.get(key)) or any(
            isinstance(entry, dict) and entry.get(key) for entry in entries
        ):
            raise BulkError(
                f"{recipe}: data.{key} of a recipe is not applied here; name the file with the sources itself"
            )
    files = []
    for entry in entries:
        if isinstance(entry, dict) and "file" in entry:
            files.append(SourceFile(resolve(entry["file"]), "tsv"))
        elif isinstance(entry, dict):
            files.append(SourceFile(resolve(entry.get("source")), "text", resolve(entry.get("target"))))
        else:
            files.append(SourceFile(resolve(entry), "tsv"))
    return files


def _layout(path: Path, layout: Layout) -> Literal["text", "tsv"]:
    if layout != "auto":
        return layout
    if path.name.removesuffix(".gz").endswith(".tsv"):
        return "tsv"
    with opened(path) as stream:
        *complete, rest = guarded(path, lambda: stream.read(HEAD)).split(b"\n")
    lines = [line for line in complete or [rest] if line]
    return "tsv" if lines and all(b"\t" in line for line in lines) else "text"


def _parallel(sources: Path, references: Path) -> Iterator[SourceLine]:
    done = object()
    for number, (left, right) in enumerate(zip_longest(raw_lines(sources), raw_lines(references), fillvalue=done), 1):
        if left is done or right is done:
            raise BulkError(f"{sources} or {references} has changed: one of them ends after {number - 1} lines")
        (source, problem), (reference, bad) = decoded(left), decoded(right)  # type: ignore[arg-type]
        yield SourceLine(sources, number, source, None if bad else reference, problem)


def _unequal(short: FileDigest, long: FileDigest) -> BulkError:
    lengths = f"{short.path} has {short.lines:,} lines, but {long.path} {long.lines:,}"
    return BulkError(f"{lengths}: parallel files need equally many")
