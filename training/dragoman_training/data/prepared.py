"""Prepared data: a folder with the corpus as token ids, made once for a recipe and its files."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dragoman_training.data.corpus import missing
from dragoman_training.data.epochs import Corpus
from dragoman_training.data.packed import BYTES, MappedRows
from dragoman_training.data.shards import text_files, token_files
from dragoman_training.errors import DataError
from dragoman_training.files import IMPORTED_FILE, SOURCE_TOKENIZER, TARGET_TOKENIZER, read_json, write_text
from dragoman_training.recipe import PairsFile, Recipe, file_paths, flatten, source_language, target_language

MANIFEST = "prepared.json"  # written last: a folder that has it is complete
INPUTS = "inputs.json"  # of a preparation that is not complete yet
FORMAT = 1
# Keys of a recipe that do not matter to the prepared data.
_FREE = {"data.train", "data.dev", "data.test", "data.temperature", "data.prepared"}
_SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Inputs:
    """What prepared data is made from.

    Attributes:
        format: Version of the files.
        recipe: Values of the recipe that matter, by dotted key.
        files: Name and sha256 of the files of each split.
        texts: Whether the texts are kept, for a recipe that changes pairs in each epoch.
    """

    format: int
    recipe: dict[str, Any]
    files: dict[str, list[dict[str, str]]]
    texts: bool

    @classmethod
    def of(cls, recipe: Recipe, texts: bool) -> "Inputs":
        """Reads the files of a recipe.

        Raises:
            DataError: A file is missing or cannot be read.
        """
        values = {
            key: value
            for key, value in flatten(recipe.model_dump(mode="json")).items()
            if (key.startswith(("data.", "tokenizers.", "model.max_")) and key not in _FREE)
            and not key.endswith(("bpe_dropout", "byte_dropout"))
        }
        if recipe.data.dev_held_out_sources:
            values["seed"] = recipe.seed
        files: dict[str, list[dict[str, str]]] = {}
        for split in _SPLITS:
            entries = getattr(recipe.data, split) or []
            values[f"data.{split}.columns"] = [
                None if not isinstance(entry, PairsFile) or entry.columns is None else entry.columns.model_dump()
                for entry in entries
            ]
            values[f"data.{split}.target_language"] = [target_language(entry) for entry in entries]
            sources = [source_language(entry) for entry in entries]
            if any(sources):  # data of older versions does not record that there are none
                values[f"data.{split}.source_language"] = sources
            paths = [path for entry in entries for path in file_paths(entry)]
            files[f"data.{split}"] = [{"name": path.name, "sha256": _sha256(path)} for path in paths]
        return cls(FORMAT, values, files, texts)

    def differences(self, found: dict[str, Any]) -> list[str]:
        """Describes how these inputs differ from those that the data was prepared from; empty if they do not."""
        if found.get("format") != self.format:
            return [f"its format is {found.get('format')}, expected {self.format}"]
        differences = []
        for split, files in self.files.items():
            before = found["files"].get(split, [])
            if len(before) != len(files):
                differences.append(f"{split} had {len(before)} file(s) and has {len(files)}")
            else:
                changed = [
                    new["name"] for old, new in zip(before, files, strict=True) if old["sha256"] != new["sha256"]
                ]
                differences += [f"the content of {name} ({split}) has changed" for name in changed]
        for key in sorted(self.recipe.keys() | found["recipe"].keys()):
            old, new = found["recipe"].get(key), self.recipe.get(key)
            if old != new:
                differences.append(f"{key} was {json.dumps(old)} and is {json.dumps(new)}")
        if self.texts and not found["texts"]:
            differences.append("it holds no texts, which augmentation, bpe_dropout and byte_dropout need")
        return differences


@dataclass(frozen=True)
class Prepared:
    """A complete folder of prepared data.

    Attributes:
        inputs: What it was made from, as `Inputs`.
        tokenizers: sha256 of the tokenizers of source and target.
        given_tokenizers: Whether they come from the run that this one started from, not from this corpus.
        shards: Name and number of pairs of each shard.
        token_type: NumPy type of the token ids.
        files: Number of training pairs of each entry of data.train.
        rare: Rare characters of sources and targets, if there are texts.
        seen: Source ids that occur in the training data.
        record: Counts and fingerprints, for RUN/data.json.
        notes: Lines about the data for the user.
        skipped: Lines about those that were skipped; none if no line was.
    """

    inputs: dict[str, Any]
    tokenizers: list[str]
    given_tokenizers: bool
    shards: list[tuple[str, int]]
    token_type: str
    files: list[int]
    rare: tuple[str, str]
    seen: list[int]
    record: dict[str, Any]
    notes: list[str]
    skipped: list[str]

    @classmethod
    def load(cls, folder: Path) -> "Prepared | None":
        """Reads the manifest of a folder; None if it holds no complete data.

        Raises:
            TrainingError: The manifest is damaged.
        """
        document = read_json(folder / MANIFEST)
        if document is None:
            return None
        try:
            return cls(**document)
        except TypeError:
            raise DataError(f"{folder / MANIFEST}: made by another version of dragoman; delete {folder}") from None

    def save(self, folder: Path) -> None:
        """Writes the manifest."""
        write_text(folder / MANIFEST, json.dumps(asdict(self), indent=1) + "\n")

    def corpus(self, folder: Path) -> Corpus:
        """Opens the training pairs.

        Raises:
            DataError: A file is missing or damaged.
        """
        shards = [(folder / name, pairs) for name, pairs in self.shards]
        tokens = MappedRows([token_files(path, pairs) for path, pairs in shards], np.dtype(self.token_type))
        texts = MappedRows([text_files(path, pairs) for path, pairs in shards], BYTES) if self.inputs["texts"] else None
        return Corpus(tokens, texts, (self.rare[0], self.rare[1]), self.files)


def check_place(folder: Path) -> None:
    """Checks that a folder holds prepared data, or that nothing is lost if it is made there.

    Raises:
        DataError: It holds other files, or is no folder.
    """
    try:
        taken = folder.exists() and not (folder / MANIFEST).exists() and next(folder.iterdir(), None) is not None
    except OSError as error:
        raise DataError(f"data.prepared: {folder} cannot be read as a folder ({error.strerror})") from None
    if taken:
        raise DataError(
            f"data.prepared: {folder} holds other files and no prepared data; name a folder that does not exist yet"
        )


def tokenizer_digests(folder: Path) -> list[str] | None:
    """Returns the sha256 of the tokenizers in a folder, with the rules of an imported model; None if one is missing."""
    files = [folder / name for name in (SOURCE_TOKENIZER, TARGET_TOKENIZER)]
    if not all(file.exists() for file in files):
        return None
    rules = folder / IMPORTED_FILE
    return [_sha256(file) for file in ([*files, rules] if rules.exists() else files)]


@contextmanager
def unfinished_folder(folder: Path, echo: Callable[[str], None]) -> Iterator[Path]:
    """Keeps other processes from preparing the same data, and yields the folder to prepare it in.

    Raises:
        DataError: It cannot be created, or could not take the place of `folder`.
    """
    if folder.is_mount():
        raise DataError(f"{folder} is a mount point and holds no prepared data; name a folder in it as data.prepared")
    partial = folder.with_name(f".{folder.name}.partial")
    while True:
        try:
            partial.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(partial, os.O_RDONLY)
        except OSError as error:
            raise DataError(f"{partial}: cannot be created or read ({error.strerror})") from None
        try:
            _lock(descriptor, folder, echo)
            try:
                current = os.path.samestat(os.fstat(descriptor), partial.stat())
            except FileNotFoundError:
                current = False
            if current:
                yield partial
                return
        finally:
            os.close(descriptor)
        # Another process finished meanwhile, and renamed the folder that was locked here.


def _lock(descriptor: int, folder: Path, echo: Callable[[str], None]) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        echo(f"another process is preparing {folder}; waiting for it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:  # the file system has no locks
        pass


def begin(partial: Path, document: dict[str, Any]) -> bool:
    """Empties the folder of a preparation, unless it was interrupted with the same inputs; returns whether it was."""
    try:
        same = bool(json.loads((partial / INPUTS).read_text()) == json.loads(json.dumps(document)))
    except (OSError, ValueError):
        same = False
    if not same:
        for path in partial.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        write_text(partial / INPUTS, json.dumps(document), durable=False)
    return same


def _sha256(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: expected a regular file, which can be read several times")
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise missing(path) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
