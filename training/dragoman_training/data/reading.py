"""The first pass over a corpus: its lines are checked, and the texts of valid pairs written to shards."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from dragoman_training.data.bad_lines import BadLine, BadLines
from dragoman_training.data.corpus import Chunk, chunks, reserved_tokens, valid_pairs
from dragoman_training.data.encode import Bounds
from dragoman_training.data.languages import split_language
from dragoman_training.data.normalization import canonical_of_normal, normalized
from dragoman_training.data.packed import BYTES, ENDS, join, pack, write_rows
from dragoman_training.data.pairs import Pair
from dragoman_training.data.tokenizers import empty_tokenizer, load_tokenizer
from dragoman_training.data.workers import Work, ordered_map
from dragoman_training.errors import DataError
from dragoman_training.files import write
from dragoman_training.recipe import DataFile, Recipe, file_paths

Hashes = NDArray[np.uint64]
Mask = NDArray[np.bool_]


class ReadTask(NamedTuple):
    """A chunk of lines, and the path without suffix that its shard is written to."""

    chunk: Chunk
    path: Path


@dataclass(frozen=True)
class TextShard:
    """The valid pairs of a chunk.

    Attributes:
        entry: Number of its file in data.train.
        lines: Line number of each pair [pairs].
        source, target: Hash of the canonical form of each side [pairs]; those of targets only if the recipe compares
            them, else zeros.
        different: Whether one side is too long for the other, by data.max_length_ratio [pairs].
        order: Numbers of the pairs by ascending source text, for the draw of dev; empty for recipes that draw none.
        bad: The bad lines of the chunk.
    """

    path: Path
    entry: int
    lines: NDArray[np.uint32]
    source: Hashes
    target: Hashes
    different: Mask
    order: NDArray[np.uint32]
    bad: list[BadLine]

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def rows(self) -> tuple[Path, Path, int]:
        """The shard as `MappedRows` take it."""
        return self.path.with_suffix(".text"), self.path.with_suffix(".ends"), 2 * len(self)

    def file(self, files: Sequence[DataFile]) -> Path:
        """Returns the file of its lines; of parallel files, that of the sources."""
        return file_paths(files[self.entry])[0]

    def pairs(self, files: Sequence[DataFile], chosen: Mask) -> Iterator[Pair]:
        """Yields some of the pairs.

        Args:
            files: Those of data.train.
            chosen: Which ones [pairs].
        """
        rows = np.flatnonzero(chosen).tolist()
        if not rows:
            return
        text_file, ends_file, _ = self.rows
        file, texts, lines = self.file(files), text_file.read_bytes(), self.lines.tolist()
        bounds = [0, *np.fromfile(ends_file, ENDS).tolist()]
        for row in rows:
            start, middle, end = bounds[2 * row : 2 * row + 3]
            yield Pair(texts[start:middle].decode(), texts[middle:end].decode(), file, lines[row])


@dataclass(frozen=True)
class PairReader:
    """Checks the lines of chunks and compares texts, in whatever process.

    Attributes:
        recipe: Recipe of the run.
        given: Files of the tokenizers, of a recipe that does not train any.
    """

    recipe: Recipe
    given: tuple[Path, Path] | None = None

    @cached_property
    def _bounds(self) -> Bounds:
        return Bounds(self.recipe)

    @cached_property
    def _tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        if self.given is not None:
            return load_tokenizer(self.given[0]), load_tokenizer(self.given[1])
        config = self.recipe.tokenizers
        return empty_tokenizer(config.source), empty_tokenizer(config.target or config.source)

    @cached_property
    def _reserved(self) -> list[str]:
        return reserved_tokens(self.recipe.data.train)

    def __call__(self, task: ReadTask) -> Path:
        """Writes the shard of a chunk, unless it exists; returns its path."""
        if not task.path.with_suffix(".npz").exists():
            bad = BadLines("skip")
            self._write(task.path, [*self.keyed(valid_pairs(task.chunk, self._reserved, bad), bad)], bad)
        return task.path

    def keyed(self, pairs: Iterable[Pair], bad: BadLines) -> Iterator["KeyedPair"]:
        """Yields the pairs that may fit the model with hashes of their canonical forms; the others go to `bad`.

        The hash of the target is 0 if the recipe does not compare targets.
        """
        data = self.recipe.data
        compared = data.overlap_by == "either" or data.duplicates == "drop"
        source_tokenizer, target_tokenizer = self._tokenizers
        for pair in pairs:
            language, rest = split_language(pair.source, data.languages)
            source, target = normalized(source_tokenizer, rest), normalized(target_tokenizer, pair.target)
            problem = self._bounds.problem(language, source, target)
            if problem is not None:
                bad.add(pair.file, pair.line, "too_long", problem)
                continue
            whole = normalized(source_tokenizer, pair.source) if language else source
            yield KeyedPair(
                pair,
                _hash(canonical_of_normal(source_tokenizer, whole)),
                _hash(canonical_of_normal(target_tokenizer, target)) if compared else 0,
            )

    def _write(self, path: Path, keyed: list["KeyedPair"], bad: BadLines) -> None:
        data = self.recipe.data
        ratio = data.max_length_ratio
        pairs = [one.pair for one in keyed]
        sides = [side.encode() for pair in pairs for side in (pair.source, pair.target)]
        write_rows(*join([pack(sides, BYTES)]), path.with_suffix(".text"), path.with_suffix(".ends"), durable=False)
        order = sorted(range(len(pairs)), key=lambda i: pairs[i].source) if data.dev_held_out_sources else []
        arrays: dict[str, Any] = {
            "lines": np.array([pair.line for pair in pairs], np.uint32),
            "source": np.array([one.source for one in keyed], np.uint64),
            "target": np.array([one.target for one in keyed], np.uint64),
            "different": np.array([ratio is not None and _length_ratio(pair) > ratio for pair in pairs], np.bool_),
            "order": np.array(order, np.uint32),
            "bad": np.frombuffer(json.dumps([[str(one.file), *one[1:]] for one in bad.lines]).encode(), BYTES),
        }
        # Last: it makes the shard complete.
        write(path.with_suffix(".npz"), lambda file: np.savez(file, **arrays), durable=False)


class KeyedPair(NamedTuple):
    """A pair with hashes of the canonical forms of its sides, which are equal for texts that are so to the model."""

    pair: Pair
    source: int
    target: int


def read_corpus(reader: PairReader, folder: Path, bad: BadLines, work: Work) -> list[TextShard]:
    """Reads data.train into shards of texts; those that exist are kept.

    Args:
        folder: Where the shards are.

    Raises:
        DataError: See `read_pairs`; or no pair is left.
    """
    files, columns = reader.recipe.data.train, reader.recipe.data.columns
    entries: list[int] = []

    def tasks() -> Iterator[ReadTask]:
        for number, entry in enumerate(files):
            for chunk in chunks(entry, columns):
                entries.append(number)
                yield ReadTask(chunk, folder / f"read-{len(entries) - 1:05}")

    shards: list[TextShard] = []
    read = 0
    for path in ordered_map(reader, tasks(), work.workers):
        shard = _load(path, entries[len(shards)])
        for line in shard.bad:
            bad.add(*line)
        shards.append(shard)
        read += len(shard)
        work.progress("pairs read", read, None)
    for number, entry in enumerate(files):
        own = [shard for shard in shards if shard.entry == number]
        if not sum(map(len, own)) and any(line.kind != "too_long" for shard in own for line in shard.bad):
            bad.all_bad_files.append(file_paths(entry)[0])
    return shards


def _load(path: Path, entry: int) -> TextShard:
    try:
        with np.load(path.with_suffix(".npz")) as arrays:
            loaded = {name: arrays[name] for name in arrays.files}
        bad = [BadLine(Path(file), *rest) for file, *rest in json.loads(loaded.pop("bad").tobytes())]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        raise DataError(f"{path}.npz: damaged; the same command prepares the data from the start") from None
    return TextShard(path=path, entry=entry, bad=bad, **loaded)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _length_ratio(pair: Pair) -> float:
    """Returns how many times as many characters the longer side has."""
    lengths = sorted((len(pair.source.strip()), len(pair.target.strip())))
    return lengths[1] / max(1, lengths[0])
