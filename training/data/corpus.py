"""Pairs of texts from files, and a strict look at every line."""

import gzip
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

from tokenizers import Tokenizer

from training.data.normalization import comparable
from training.data.tokenizers import SPECIAL_TOKENS
from training.errors import DataError
from training.recipe import ParallelFiles


class Pair(NamedTuple):
    """A source, its target, and where they stand (line numbers start at 1)."""

    source: str
    target: str
    file: Path
    line: int


@dataclass
class BadLines:
    """What was wrong with which line; with the policy `refuse` the first one raises DataError."""

    policy: Literal["skip", "refuse"]
    messages: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def report(self, file: Path, line: int, kind: str, message: str) -> None:
        """Notes one bad line.

        Args:
            kind: a name to count it under.
            message: what is wrong and what was expected.
        """
        text = f"{file}:{line}: {message}"
        if self.policy == "refuse":
            raise DataError(f"{text} (data.on_bad_line: skip would leave such lines out)")
        self.messages.append(text)
        self.counts[kind] += 1


def read_pairs(files: Sequence[Path | ParallelFiles], bad: BadLines) -> list[Pair]:
    """Reads tab-separated or parallel files.

    Raises:
        DataError: a file is missing, cannot be unpacked or is shorter than its partner; or a line is bad and refused.
    """
    pairs: list[Pair] = []
    for entry in files:
        read = _tab_separated(entry, bad) if isinstance(entry, Path) else _parallel(entry, bad)
        pairs.extend(pair for pair in read if _sound(pair, bad))
    return pairs


def _lines(file: Path) -> Iterator[bytes]:
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as stream:
            for number, line in enumerate(stream):
                line = line.rstrip(b"\r\n")
                yield line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line
    except FileNotFoundError:
        raise DataError(
            f"{file}: no such data file (paths are relative to the current directory or to the recipe's)"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: cannot be read ({error})") from None


def _decode(raw: bytes, file: Path, line: int, bad: BadLines) -> str | None:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        bad.report(file, line, "bad_utf8", f"not valid UTF-8 at byte {error.start + 1} of the line")
        return None


def _tab_separated(file: Path, bad: BadLines) -> Iterator[Pair]:
    for number, raw in enumerate(_lines(file), 1):
        text = _decode(raw, file, number, bad)
        if text is None:
            continue
        fields = text.split("\t")
        if len(fields) == 2:
            yield Pair(fields[0], fields[1], file, number)
        else:
            bad.report(file, number, "wrong_fields", f"expected source<TAB>target, found {len(fields)} field(s)")


def _parallel(files: ParallelFiles, bad: BadLines) -> Iterator[Pair]:
    for number, (left, right) in enumerate(zip_longest(_lines(files.source), _lines(files.target)), 1):
        if left is None or right is None:
            short, long = (files.source, files.target) if left is None else (files.target, files.source)
            raise DataError(
                f"{short} ends after {number - 1} lines but {long} goes on; their lines must belong together"
            )
        source = _decode(left, files.source, number, bad)
        target = _decode(right, files.target, number, bad)
        if source is not None and target is not None:
            yield Pair(source, target, files.source, number)


def _sound(pair: Pair, bad: BadLines) -> bool:
    for name in ("source", "target"):
        text: str = getattr(pair, name)
        if not text.strip():
            bad.report(pair.file, pair.line, "empty_side", f"the {name} is empty")
            return False
        for token in SPECIAL_TOKENS:
            if token in text:
                bad.report(pair.file, pair.line, "reserved_token", f"the {name} holds the reserved token {token}")
                return False
    return True


def distinct_sources(pairs: Iterable[Pair], tokenizer: Tokenizer) -> dict[str, str]:
    """Sources as `comparable` has them, of which the tokenizer's model can tell one from another, in the data's order.

    Returns:
        each with its first spelling.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        found.setdefault(comparable(tokenizer, pair.source), pair.source)
    return found


def references(pairs: Iterable[Pair], source_tokenizer: Tokenizer, target_tokenizer: Tokenizer) -> dict[str, list[str]]:
    """Each distinct source with all its targets, in the order of the data.

    Sources that are the same to the model are one, written as the first of them; targets are as `comparable` has them.
    """
    first: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    for pair in pairs:
        source = first.setdefault(comparable(source_tokenizer, pair.source), pair.source)
        found.setdefault(source, []).append(comparable(target_tokenizer, pair.target))
    return found
