"""Tatoeba's German-English sentences as training data: `python -m dragoman_training.data.tatoeba DIRECTORY`.

The archive is the deck of sentence pairs that manythings.org publishes for Anki, under CC BY 2.0. Every edition has
the English sentence first and the German one second, separated by tabs; newer ones name the authors in a third column.
"""

import argparse
import gzip
import hashlib
import io
import shutil
import sys
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from dragoman_training.data.number_sentences import number_sentences
from dragoman_training.errors import DataError, TrainingError

ARCHIVE = "https://www.manythings.org/anki/deu-eng.zip"
ATTRIBUTION = """Sentence pairs of the Tatoeba Project, https://tatoeba.org, as published by https://www.manythings.org/anki,
under CC BY 2.0, https://creativecommons.org/licenses/by/2.0/fr/
"""
HELD_OUT = 2000  # English sentences of dev, and of test
NUMBER_SENTENCES = 24_000


def read_archive(path: Path) -> list[tuple[str, str]]:
    """Reads the pairs (German, English) of an archive: .zip, .gz or plain text.

    Raises:
        DataError: The file is not such an archive.
    """
    pairs: list[tuple[str, str]] = []
    try:
        for number, line in enumerate(_lines(path), 1):
            fields = line.rstrip("\r\n").split("\t")
            if len(fields) not in (2, 3):
                raise DataError(f"{path}:{number}: expected English<TAB>German, found {len(fields)} field(s)")
            pairs.append((fields[1], fields[0]))
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as an archive of sentence pairs ({error})") from None
    return pairs


def _lines(path: Path) -> Iterator[str]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".txt") and not name.startswith("_")]
            if len(names) != 1:
                raise DataError(f"{path}: expected one file of sentence pairs, such as deu.txt, found {names}")
            with archive.open(names[0]) as file:
                yield from io.TextIOWrapper(file, encoding="utf-8", newline="\n")
    else:
        with (
            gzip.open(path, "rt", encoding="utf-8", newline="\n")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8", newline="\n") as text
        ):
            yield from text


def split(pairs: list[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """Splits pairs by distinct English sentence.

    The hash of a sentence decides, so that editions of the archive agree about all but the few sentences at the edge.
    Dev and test have one pair for each of their English sentences, the first; the other translations of these
    sentences are in no split.

    Returns:
        The pairs of test, dev and train.
    """
    hashes = {english: hashlib.sha256(english.encode()).digest() for _, english in pairs}
    order = sorted(hashes, key=hashes.__getitem__)
    if len(order) <= 2 * HELD_OUT:
        raise DataError(
            f"there are {len(order):,} distinct English sentences; expected more than {2 * HELD_OUT:,}, "
            "of which dev and test take that many"
        )
    first = {english: german for german, english in reversed(pairs)}
    held_out = set(order[: 2 * HELD_OUT])
    return {
        "test": [(first[english], english) for english in order[:HELD_OUT]],
        "dev": [(first[english], english) for english in order[HELD_OUT : 2 * HELD_OUT]],
        "train": [pair for pair in pairs if pair[1] not in held_out],
    }


def write_splits(archive: Path, folder: Path) -> dict[str, int]:
    """Writes train.tsv, dev.tsv, test.tsv, numbers.tsv and ATTRIBUTION.txt to a directory.

    Returns:
        The number of pairs in each file.
    """
    splits = split(read_archive(archive)) | {"numbers": number_sentences(NUMBER_SENTENCES, seed=1)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in splits.items():
        text = "".join(f"{german}\t{english}\n" for german, english in pairs)
        (folder / f"{name}.tsv").write_text(text, encoding="utf-8")
    (folder / "ATTRIBUTION.txt").write_text(ATTRIBUTION, encoding="utf-8")
    return {name: len(pairs) for name, pairs in splits.items()}


def download(folder: Path) -> Path:
    """Downloads the current archive to a directory, unless it is there, and returns its path.

    Raises:
        DataError: It cannot be downloaded.
    """
    path = folder / ARCHIVE.rsplit("/", 1)[1]
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    request = urllib.request.Request(ARCHIVE, headers={"User-Agent": "dragoman"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response, partial.open("wb") as file:
            shutil.copyfileobj(response, file)
    except (urllib.error.URLError, OSError) as error:
        partial.unlink(missing_ok=True)
        raise DataError(
            f"{ARCHIVE} cannot be downloaded ({error}); download it in a browser and name it with --archive"
        ) from None
    return partial.rename(path)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dragoman_training.data.tatoeba", description=__doc__.splitlines()[0]
    )
    parser.add_argument("directory", type=Path, help="where train.tsv, dev.tsv, test.tsv and numbers.tsv are written")
    parser.add_argument("--archive", type=Path, help=f"deu-eng.zip, deu.txt or deu.txt.gz (default: from {ARCHIVE})")
    options = parser.parse_args(arguments)
    folder: Path = options.directory
    try:
        counts = write_splits(options.archive or download(folder), folder)
    except (TrainingError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name, pairs in counts.items():
        print(f"{folder / name}.tsv  {pairs:,} pairs")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
