"""The files of a run directory: their names, and writing that survives a kill.

Every file is written under a temporary name, synced and renamed, so it is either complete or absent.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from dragoman_training.errors import TrainingError

RECIPE_FILE = "recipe.yaml"
BEGUN_FILE = ".recipe.yaml"  # the same: what a run was begun or last resumed with, whatever users make of recipe.yaml
SOURCE_TOKENIZER, TARGET_TOKENIZER = "source_tokenizer.json", "target_tokenizer.json"
IMPORTED_FILE = "imported.json"  # the rules of an imported model, see `data.imported`
SOURCE_PIECES, TARGET_PIECES = "source.spm", "target.spm"  # SentencePiece models of an imported model
TOKENIZER_FILES = SOURCE_TOKENIZER, TARGET_TOKENIZER, IMPORTED_FILE, SOURCE_PIECES, TARGET_PIECES  # any may be missing
START_FILE = "start.json"  # the run that a run started from
DATA_FILE = "data.json"  # counts and fingerprints
DEV_FILE = "dev.tsv"  # the dev pairs
DEV_ANSWERS_FILE, TEST_ANSWERS_FILE = "dev_answers.tsv", "test_answers.tsv"  # of the final model
LONGEST_FILE = "longest.tsv"  # the training pairs with the longest sources
BAD_LINES_FILE = "bad_lines.txt"
PREPARED_FOLDER = "prepared"  # the corpus as token ids, see `data.prepare`
METRICS_FILE = "metrics.jsonl"
CURVES_FILE = "curves.png"
REPORT_FILE = "report.json"
MODEL_FILE = "model.pt"  # written last: a run that has it is finished


def write(path: Path, fill: Callable[[BinaryIO], object], *, durable: bool = True) -> None:
    """Writes a file atomically: `fill` writes it under a temporary name, and it is renamed once it is on disk.

    A kill before the rename leaves the old file, or none, and a `.NAME.partial` that the next write replaces. An error
    leaves none, so that a full disk has room again for what the next try writes.

    Args:
        durable: Whether it must survive a power cut; a file that is needed for minutes need not wait for the disk.
    """
    temporary = path.with_name(f".{path.name}.partial")
    with removed_on_error(temporary):
        with temporary.open("wb") as file:
            fill(file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    if not durable:
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # makes the rename durable
    finally:
        os.close(folder)


@contextmanager
def removed_on_error(path: Path) -> Iterator[None]:
    """Deletes a file if an error leaves the context; one of the system that names no file then names this one."""
    try:
        yield
    except Exception as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Writes a text file in UTF-8 atomically, see `write`."""
    write(path, lambda file: file.write(text.encode()), durable=durable)


def read_json(path: Path) -> dict[str, Any] | None:
    """Reads a JSON object that a run wrote; None if there is no such file.

    Raises:
        TrainingError: The file cannot be read or holds something else.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(document, dict):
        raise TrainingError(f"{path}: expected a JSON object as dragoman-train writes it")
    return document
