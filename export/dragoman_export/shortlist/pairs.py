"""The pairs that a shortlist is made from."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from dragoman_export.bundle.options import ExportOptions
from dragoman_export.errors import ExportError
from dragoman_export.original import Original
from dragoman_training.data.bad_lines import BadLines
from dragoman_training.data.corpus import read_pairs
from dragoman_training.data.pairs import Pair
from dragoman_training.errors import DataError

SMALLEST = 4096  # target tokens for a shortlist of training pairs to be worth its trouble
HELD_OUT_SHARE, MOST_HELD_OUT = 0.1, 1000


class ShortlistPairs(NamedTuple):
    """Pairs to align, and others to measure on, which may be none."""

    aligned: list[Pair]
    held_out: list[Pair]


def shortlist_pairs(
    original: Original, options: ExportOptions, vocabulary: int, say: Callable[[str], None]
) -> ShortlistPairs | None:
    """Returns the pairs of the options' file, or those of the training; None if there is to be no shortlist.

    Args:
        original: The model.
        options: Options of the export.
        vocabulary: Number of target tokens.
        say: Prints a line for the user.

    Raises:
        ExportError: The file cannot be read, or has no pairs.
    """
    if not options.shortlist:
        return None
    if options.shortlist_from is not None:
        return _of_file(options.shortlist_from)
    if original.training_pairs is None or vocabulary < SMALLEST:
        return None
    try:
        return ShortlistPairs(list(original.training_pairs()), [])
    except ExportError as error:
        say(f"there is no shortlist, since the training pairs cannot be read: {error}")
        return None


def _of_file(path: Path) -> ShortlistPairs:
    """Holds out evenly spaced pairs, whose sources do not occur elsewhere in the file."""
    try:
        pairs = read_pairs([path], BadLines("skip"))
    except DataError as error:
        raise ExportError(f"--shortlist-from: {error}") from None
    if not pairs:
        raise ExportError(f"--shortlist-from {path}: has no pair; expected source<TAB>target in each line")
    count = min(MOST_HELD_OUT, int(len(pairs) * HELD_OUT_SHARE))
    held_out = {pairs[len(pairs) * place // count].source for place in range(count)}
    return ShortlistPairs(
        [pair for pair in pairs if pair.source not in held_out], [pair for pair in pairs if pair.source in held_out]
    )
