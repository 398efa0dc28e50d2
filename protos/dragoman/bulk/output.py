"""An output file that grows by windows of input lines, and survives a kill at any moment.

Beside OUT stand OUT.journal and, until the end, OUT.partial and OUT.bad_lines.partial. The journal has a line of JSON
for the configuration and one for each window that is saved, with the sizes of both files after it. What a kill leaves
beyond those sizes is cut off when the work continues. Formats that can't grow are made from OUT.partial at the end.
"""

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from dragoman.bulk.errors import BulkError

JOURNAL_FORMAT = 1
BAD_LINES = ".bad_lines.txt"  # suffix of an output's name: its list of bad lines
JOURNAL, PARTIAL, BAD_PARTIAL, CONVERTED = ".journal", ".partial", ".bad_lines.partial", ".converted"
BESIDE_OUTPUTS = (JOURNAL, PARTIAL, BAD_PARTIAL, CONVERTED, BAD_LINES)


def check_input(source: Path, out: Path) -> None:
    """Checks that an input is none of the files beside an output, which are written over.

    Raises:
        BulkError: It is.
    """
    for path in (Path(f"{out}{suffix}") for suffix in BESIDE_OUTPUTS):
        if path.exists() and source.exists() and path.samefile(source):
            raise BulkError(f"{source} is where work on {out} keeps its state; name another file to write")


class Output:
    """An output file, its list of bad lines, and their journal.

    Args:
        out: The output file.
        configuration: What the output depends on, as JSON values by the names that users know. Work that was begun
            with another one is not continued.
        restart: Whether to start over instead.
        convert: Writes its second argument, the output, from its first, what was appended; None where they are equal.

    Attributes:
        lines: Input lines that are done.
        finished: Whether all are, and the output is complete.
        state: The state of the last `commit`, empty at the start.

    Raises:
        BulkError: Another process writes the output; or it was begun with another configuration, or is not an output of
            this program; or its files can't be written or were changed.
    """

    def __init__(
        self,
        out: Path,
        configuration: Mapping[str, Any],
        restart: bool = False,
        convert: Callable[[Path, Path], None] | None = None,
    ) -> None:
        self._convert = convert
        self.out, self.bad_lines = out, Path(f"{out}{BAD_LINES}")
        self._journal_path = Path(f"{out}{JOURNAL}")
        self._partial, self._bad_partial = Path(f"{out}{PARTIAL}"), Path(f"{out}{BAD_PARTIAL}")
        self.lines, self.finished = 0, False
        self.state: dict[str, Any] = {}
        self._sizes = {"out": 0, "bad": 0}
        self._files: dict[str, BinaryIO] = {}
        self._begun = False
        if out.is_dir():
            raise BulkError(f"{out} is a directory; name a file")
        if out.exists() and not out.is_file():  # a device, which a file would replace
            raise BulkError(f"{out} is not a regular file; name another file")
        try:
            self._open(json.loads(json.dumps(configuration)), restart)
        except OSError as error:
            self.close()
            raise BulkError(f"{error.filename or out}: can't be written: {error.strerror or error}") from None
        except BulkError:
            self.close()
            raise

    def commit(self, lines: int, output: bytes, bad: bytes, state: Mapping[str, Any]) -> None:
        """Appends the results of the next input lines, and saves them.

        Args:
            lines: Input lines that are done in all.
            output, bad: What to append to the output and to the list of bad lines.
            state: JSON values to continue from.

        Raises:
            BulkError: The disk is full, or can't be written for another reason.
        """
        try:
            for name, content in (("out", output), ("bad", bad)):
                file = self._files[name]
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                self._sizes[name] += len(content)
            self._append({"lines": lines, **self._sizes, "state": state})
        except OSError as error:
            raise BulkError(f"{self.out}: can't be written: {error.strerror or error}") from None
        self.lines, self.state = lines, dict(state)

    def finish(self) -> None:
        """Gives the files their names, and closes the journal."""
        try:
            self._append({"complete": True})
            self._rename()
            self._append({"finished": True})
        except OSError as error:
            raise BulkError(f"{self.out}: can't be written: {error.strerror or error}") from None
        self.finished = True
        self.close()

    def close(self) -> None:
        """Closes the files; the work can continue later. If nothing is saved yet, none of them stays."""
        if self._begun and not self.lines and not self.finished:
            for path in (self._journal_path, self._partial, self._bad_partial):
                path.unlink(missing_ok=True)
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _open(self, configuration: dict[str, Any], restart: bool) -> None:
        self._files["journal"] = journal = self._journal_path.open("a+b")
        try:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BulkError(f"{self.out}: another process is writing it; wait until it ends") from None
        records = [] if restart else self._records()
        if len(records) < 2:  # no window is saved
            if self.out.exists() and not restart:
                if not journal.seek(0, os.SEEK_END):
                    self._journal_path.unlink()
                raise BulkError(
                    f"{self.out} exists, and no journal says how it was made; name another file, or use --restart"
                )
            for path in (self._partial, self._bad_partial):
                path.unlink(missing_ok=True)
            journal.truncate(0)
            self._begun = True
            self._append({"format": JOURNAL_FORMAT, "configuration": configuration})
        else:
            self._continue(records, configuration)
        if not self.finished:
            for name, path in (("out", self._partial), ("bad", self._bad_partial)):
                self._files[name] = self._cut(path, self._sizes[name])

    def _continue(self, records: list[dict[str, Any]], configuration: dict[str, Any]) -> None:
        head, *commits = records
        if head.get("format") != JOURNAL_FORMAT:
            raise BulkError(f"{self._journal_path}: another version of this program wrote it; use --restart")
        self._compare(head["configuration"], configuration)
        complete = False
        for record in commits:
            if record.get("finished"):
                self.finished = True
            elif record.get("complete"):
                complete = True
            else:
                self.lines, self.state = record["lines"], record["state"]
                self._sizes = {name: record[name] for name in self._sizes}
        if self.finished and not self.out.exists():
            raise BulkError(f"{self.out} was finished, but is gone; use --restart to make it again")
        if complete and not self.finished:
            self._rename()
            self._append({"finished": True})
            self.finished = True

    def _compare(self, begun: dict[str, Any], now: dict[str, Any]) -> None:
        for name in {**begun, **now}:
            if begun.get(name) != now.get(name):
                before, after = (_shown(configuration.get(name)) for configuration in (begun, now))
                raise BulkError(
                    f"{self.out} was begun with {name} {before}, not {after}; repeat the first command, name another "
                    "file, or use --restart to start over"
                )

    def _records(self) -> list[dict[str, Any]]:
        """Returns what the journal has, and cuts off a last line that a kill has torn."""
        journal = self._files["journal"]
        journal.seek(0)
        content = journal.read()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            journal.truncate(len(whole))
        try:
            records = [json.loads(line) for line in whole.splitlines()]
        except ValueError:
            raise BulkError(f"{self._journal_path} is damaged; use --restart to start over") from None
        return records

    def _cut(self, path: Path, size: int) -> BinaryIO:
        file = path.open("ab")
        if file.tell() < size:
            file.close()
            raise BulkError(f"{path} is shorter than its journal says; use --restart to start over")
        file.truncate(size)
        return file

    def _append(self, record: Mapping[str, Any]) -> None:
        journal = self._files["journal"]
        journal.write(json.dumps(record).encode() + b"\n")  # ASCII, since file names need not be UTF-8
        journal.flush()
        os.fsync(journal.fileno())

    def _rename(self) -> None:
        """Gives both files their names. May be repeated after a kill in between."""
        if self._bad_partial.exists():
            if self._bad_partial.stat().st_size:
                self._bad_partial.replace(self.bad_lines)
            else:
                self._bad_partial.unlink()
                self.bad_lines.unlink(missing_ok=True)
        if self._partial.exists():
            if self._convert is None:
                self._partial.replace(self.out)
            else:
                self._replace_converted(self._convert)
        folder = os.open(self.out.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # makes the names durable
        finally:
            os.close(folder)

    def _replace_converted(self, convert: Callable[[Path, Path], None]) -> None:
        converted = Path(f"{self.out}{CONVERTED}")
        convert(self._partial, converted)
        with converted.open("rb+") as file:
            os.fsync(file.fileno())
        converted.replace(self.out)
        self._partial.unlink()


def _shown(value: Any) -> str:
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)
