"""The bad lines of a corpus: counted, described and listed as they are found."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, NamedTuple

from dragoman_training.errors import DataError

SHOWN = 10  # bad lines that are remembered if all are listed in a file


class BadLine(NamedTuple):
    """A skipped line: its position, the kind of fault it is counted under, and a description."""

    file: Path
    line: int
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


@dataclass
class Tally:
    """Numbers of bad lines by file and kind, and the first one of each kind."""

    counts: Counter[tuple[Path, str]] = field(default_factory=Counter)
    first: dict[str, BadLine] = field(default_factory=dict)

    def add(self, bad: BadLine) -> None:
        """Counts a line."""
        self.counts[bad.file, bad.kind] += 1
        self.first.setdefault(bad.kind, bad)

    @property
    def kinds(self) -> Counter[str]:
        """The number of lines of each kind, the most common first."""
        kinds: Counter[str] = Counter()
        for (_, kind), count in self.counts.items():
            kinds[kind] += count
        return Counter(dict(kinds.most_common()))

    def summary(self) -> str:
        """Summarises the lines, with an example of the most common kind; empty if there are none."""
        if not self.counts:
            return ""
        files: Counter[Path] = Counter()
        for (file, _), count in self.counts.items():
            files[file] += count
        others = f" and {len(files) - 1} other file(s)" if len(files) > 1 else ""
        kind = next(iter(self.kinds))
        first = self.first[kind]
        return (
            f"{self.counts.total():,} line(s) of {files.most_common(1)[0][0]}{others} are skipped "
            f"({', '.join(f'{kind} {count:,}' for kind, count in self.kinds.items())}); the first {kind} is "
            f"line {first.line}{f' of {first.file}' if others else ''}: {first.message}"
        )


class BadLines:
    """The bad lines of a corpus.

    Args:
        policy: Whether bad lines are collected (skip) or the first one raises DataError (refuse).
        listing: Text file to which every line is written, so that only the first ones stay in memory; None to keep all.

    Attributes:
        lines: Bad lines in the order they were found.
        all_bad_files: Files that contain bad lines only.
        tally: Counts of all lines.
        recent: Counts of the lines since `begin`.
    """

    def __init__(self, policy: Literal["skip", "refuse"], listing: IO[str] | None = None) -> None:
        self.policy = policy
        self.listing = listing
        self.lines: list[BadLine] = []
        self.all_bad_files: list[Path] = []
        self.tally = Tally()
        self.recent = Tally()

    def begin(self) -> None:
        """Starts counting those of another split in `recent`."""
        self.recent = Tally()

    def add(self, file: Path, line: int, kind: str, message: str) -> None:
        """Records a bad line.

        Args:
            kind: Kind of fault that the line is counted under.
            message: Description of what is wrong and what was expected.

        Raises:
            DataError: The policy is refuse.
        """
        if self.policy == "refuse":
            raise DataError(f"{file}:{line}: {message} (set data.on_bad_line: skip to skip such lines)")
        bad = BadLine(file, line, kind, message)
        self.tally.add(bad)
        self.recent.add(bad)
        if self.listing is not None:
            self.listing.write(f"{bad}\n")
        if self.listing is None or len(self.lines) < SHOWN:
            self.lines.append(bad)

    @property
    def counts(self) -> Counter[str]:
        """The number of lines of each kind, the most common first."""
        return self.tally.kinds
