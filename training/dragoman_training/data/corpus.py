"""Pairs of texts from files, and a strict look at every line."""

import codecs
import gzip
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

from dragoman_training.data import characters
from dragoman_training.data.pairs import Pair
from dragoman_training.data.tokenizers import SPECIAL_TOKENS
from dragoman_training.errors import DataError
from dragoman_training.recipe import ParallelFiles

HEAD = 4096  # bytes of a file by which its encoding is detected
_WIDE = {
    # In this order: the mark of UTF-32LE begins with that of UTF-16LE.
    "UTF-32LE": codecs.BOM_UTF32_LE,
    "UTF-32BE": codecs.BOM_UTF32_BE,
    "UTF-16LE": codecs.BOM_UTF16_LE,
    "UTF-16BE": codecs.BOM_UTF16_BE,
}


class BadLine(NamedTuple):
    """Where a line that was left out stands, a name to count it under, and what is wrong with it."""

    file: Path
    line: int
    kind: str
    message: str


@dataclass
class BadLines:
    """What was wrong with which line; with the policy `refuse` the first one raises DataError."""

    policy: Literal["skip", "refuse"]
    found: list[BadLine] = field(default_factory=list)
    emptied: list[Path] = field(default_factory=list)  # files of which every line was bad

    def report(self, file: Path, line: int, kind: str, message: str) -> None:
        """Notes one bad line.

        Args:
            kind: a name to count it under.
            message: what is wrong and what was expected.
        """
        if self.policy == "refuse":
            raise DataError(f"{file}:{line}: {message} (data.on_bad_line: skip would leave such lines out)")
        self.found.append(BadLine(file, line, kind, message))

    @property
    def messages(self) -> list[str]:
        """One for each line, naming file and number."""
        return [f"{bad.file}:{bad.line}: {bad.message}" for bad in self.found]

    @property
    def counts(self) -> Counter[str]:
        """Lines of each kind, the commonest first."""
        return Counter(dict(Counter(bad.kind for bad in self.found).most_common()))

    def account(self, since: int = 0) -> str:
        """What was skipped of which file, with the commonest reason first; empty where nothing was.

        Args:
            since: of how many bad lines, the oldest ones, not to speak.
        """
        found = self.found[since:]
        if not found:
            return ""
        files = Counter(bad.file for bad in found)
        others = f" and {len(files) - 1} other file(s)" if len(files) > 1 else ""
        kinds = Counter(bad.kind for bad in found).most_common()
        first = next(bad for bad in found if bad.kind == kinds[0][0])
        return (
            f"{len(found):,} line(s) of {files.most_common(1)[0][0]}{others} are skipped "
            f"({', '.join(f'{kind} {count:,}' for kind, count in kinds)}), the first of the commonest kind being "
            f"line {first.line}{f' of {first.file}' if others else ''}: {first.message}"
        )


def read_pairs(files: Sequence[Path | ParallelFiles], bad: BadLines) -> list[Pair]:
    """Reads tab-separated or parallel files.

    Raises:
        DataError: a file is missing, cannot be unpacked or is shorter than its partner; or a line is bad and refused.
    """
    pairs: list[Pair] = []
    for entry in files:
        before, reported = len(pairs), len(bad.found)
        read = _tab_separated(entry, bad) if isinstance(entry, Path) else _parallel(entry, bad)
        pairs.extend(pair for pair in read if _sound(pair, bad))
        if len(pairs) == before and len(bad.found) > reported:
            bad.emptied.append(bad.found[reported].file)
    return pairs


def _lines(file: Path) -> Iterator[bytes]:
    """Lines without their ends, LF or CR LF, and without a byte order mark before the first."""
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as stream:
            _check_form(file, stream.peek(HEAD)[:HEAD])
            for number, line in enumerate(stream):
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                yield line.removeprefix(codecs.BOM_UTF8) if number == 0 else line
    except FileNotFoundError:
        raise DataError(
            f"{file}: no such data file (paths are relative to the current directory or to the recipe's)"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: cannot be read ({error})") from None


def _check_form(file: Path, head: bytes) -> None:
    """Refuses a file that as a whole is not lines of UTF-8, by how it begins.

    Raises:
        DataError: it seems to be UTF-16 or UTF-32, or its lines end in CR alone.
    """
    ends = sum(map(head.count, (b"\n", b"\t")))
    for encoding, mark in _WIDE.items():
        read = head.decode(encoding, "ignore")
        if head.startswith(mark) or 2 * sum(map(read.count, "\n\t")) > ends:
            raise DataError(
                f"{file}: seems to be {encoding}, expected UTF-8; `iconv -f {encoding} -t UTF-8` converts such a file"
            )
    inner = head[:-1].count(b"\r")
    if b"\n" not in head and inner > (len(head) == HEAD):
        raise DataError(
            f"{file}: its lines end in CR alone, expected LF or CR LF; `tr '\\r' '\\n'` converts such a file"
        )


def _decode(raw: bytes, file: Path, line: int, bad: BadLines) -> str | None:
    """A line as text; None where it is bad, which is reported."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        bad.report(file, line, "bad_utf8", f"not valid UTF-8 at byte {error.start + 1} of the line")
        return None
    found = characters.broken(text)
    if found:
        bad.report(file, line, "bad_character", f"holds {found}")
        return None
    return text


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
        target = None if source is None else _decode(right, files.target, number, bad)
        if source is not None and target is not None:
            yield Pair(source, target, files.source, number)


def _sound(pair: Pair, bad: BadLines) -> bool:
    for name in ("source", "target"):
        text: str = getattr(pair, name)
        nothing = characters.unseen(text)
        if nothing is not None:
            bad.report(
                pair.file, pair.line, "empty_side", f"the {name} is empty" + (nothing and f": it holds only {nothing}")
            )
            return False
        for token in SPECIAL_TOKENS:
            if token in text:
                bad.report(pair.file, pair.line, "reserved_token", f"the {name} holds the reserved token {token}")
                return False
    return True
