"""Answers every row of some files, and writes each file's answers in the order of its rows."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman.bulk.backend import Answer, Backend
from dragoman.bulk.encoders import converter, encoder
from dragoman.bulk.errors import BulkError, StoppedError
from dragoman.bulk.formats import FileFormat
from dragoman.bulk.output import BAD_LINES, Output, check_input
from dragoman.bulk.progress import Meter
from dragoman.bulk.rows import Input, Row
from dragoman.bulk.text_lines import FileDigest, counted, never

WINDOW = 4096


@dataclass(slots=True)
class Counts:
    """What became of rows.

    Attributes:
        lines: Rows that are done.
        answered: Rows with an answer.
        listed: Rows in the list of bad lines: those without an answer, and those whose answer is incomplete.
    """

    lines: int = 0
    answered: int = 0
    listed: int = 0

    def summary(self, out: Path) -> str:
        """Returns one sentence for the user."""
        text = f"{out}: {counted(self.answered, 'answer')} to {counted(self.lines, 'row')}"
        if not self.listed:
            return text
        where = f"{out}/*{BAD_LINES}" if out.is_dir() else f"{out}{BAD_LINES}"
        return f"{text}; {counted(self.listed, 'bad row')} in {where}"

    def add(self, other: "Counts") -> None:
        self.lines += other.lines
        self.answered += other.answered
        self.listed += other.listed


class FileWork:
    """One input and its output.

    Args:
        source: The input.
        out: File to write.
        output_format: Its format.
        answer_column: Name of the answers in jsonl and parquet.

    Raises:
        BulkError: The input or the formats can't be used.
    """

    def __init__(self, source: Input, out: Path, output_format: FileFormat, answer_column: str) -> None:
        if out.exists() and source.path.exists() and source.path.samefile(out):
            raise BulkError(f"{out} is the input itself; name another file to write")
        check_input(source.path, out)
        source.check()
        self.source, self.out = source, out
        self._encode = encoder(source, output_format, answer_column)
        self._format, self._answer_column = output_format, answer_column
        self._digest = FileDigest(source.path, "", 0)
        self._output: Output | None = None
        self.counts = Counts()

    @property
    def rows(self) -> int:
        """Number of rows of the input, once it is read."""
        return self._digest.lines

    def read(self, should_stop: Callable[[], bool]) -> None:
        """Reads the input once, for its digest and its number of rows.

        Raises:
            BulkError: It can't be read.
            StoppedError: `should_stop` returned True.
        """
        self._digest = self.source.digest(should_stop)

    def look(self, configuration: Mapping[str, Any], restart: bool) -> bool:
        """Returns whether there is something left to do. Arguments and errors are those of `open`."""
        self.open(configuration, restart)
        assert self._output is not None
        finished = self._output.finished
        self.close()
        return not finished

    def open(self, configuration: Mapping[str, Any], restart: bool) -> None:
        """Opens the output, to continue where it ends.

        Args:
            configuration: What the output depends on beside the input and its format.
            restart: Whether to start over.

        Raises:
            BulkError: See Output.
        """
        own = {
            "the input": f"{self.source.path.name} with digest {self._digest.sha256}",
            "--column": self.source.column,
            "--answer-column": self._answer_column,
            "the formats": " and ".join(
                f"{each.kind}{' with gzip' if each.gzipped else ''}" for each in (self.source.format, self._format)
            ),
        }
        self._output = Output(self.out, {**configuration, **own}, restart, converter(self._format))
        if self._output.state:
            self.counts = Counts(**self._output.state)

    def windows(self, size: int) -> Iterator[list[Row]]:
        """Yields the rows that are not done, by windows."""
        assert self._output is not None
        rows = self.source.rows(self._output.lines)
        while window := list(islice(rows, size)):
            yield window

    def save(self, rows: Sequence[Row], found: Sequence[Answer]) -> None:
        """Writes a window.

        Args:
            found: Answers to the rows without a problem.

        Raises:
            BulkError: The output can't be written.
        """
        assert self._output is not None
        unread = iter(found)
        answers = [Answer(None, row.problem) if row.problem else next(unread) for row in rows]
        listed = [
            f"{self.source.path}:{row.number}: {answer.complaint}\n"
            for row, answer in zip(rows, answers, strict=True)
            if answer.problem
        ]
        counts = self.counts
        counts.lines += len(rows)
        counts.answered += sum(answer.text is not None for answer in answers)
        counts.listed += len(listed)
        bad = "".join(listed).encode(errors="backslashreplace")
        self._output.commit(counts.lines, self._encode(rows, answers), bad, asdict(counts))

    def finish(self) -> None:
        """Gives the output its name."""
        assert self._output is not None
        if not self.counts.lines:
            self.save([], [])  # an empty file has a header in some formats
        self._output.finish()
        self._output = None

    def close(self) -> None:
        """Closes the output; the work can continue later."""
        if self._output is not None:
            self._output.close()
            self._output = None


class BulkWork:
    """The work on some files, which follow each other without a pause.

    Args:
        files: The files, in order.
        options: What the answers depend on beside the model and the sources, by the names that users know.
        window: Rows that are sorted by length together, and saved together.
        restart: Whether to start over.
        should_stop: Whether the work should stop.
    """

    def __init__(
        self,
        files: Sequence[FileWork],
        options: Mapping[str, Any],
        window: int = WINDOW,
        restart: bool = False,
        should_stop: Callable[[], bool] = never,
    ) -> None:
        self._files, self._window, self._restart, self._should_stop = files, window, restart, should_stop
        self._configuration = {**options, "--window": window}
        # Windows that the backend has read, and None at the end of each file.
        self._read: deque[tuple[FileWork, list[Row] | None]] = deque()
        self._without_source = 0  # rows that the backend never sees

    def run(self, backend: Backend) -> Counts:
        """Does what an earlier, stopped or killed call has not done.

        Returns:
            What became of all rows, those of earlier calls included.

        Raises:
            BulkError: A file can't be read or written, or the backend can't continue.
            StoppedError: The work should stop; what is saved stays.
        """
        for file in self._files:
            file.read(self._should_stop)
        total = sum(file.rows for file in self._files)
        try:
            configuration = {"the model": backend.model, **self._configuration}
            left = [file for file in self._files if file.look(configuration, self._restart)]
            done = total - sum(file.rows - file.counts.lines for file in left)
            with Meter(total, done, lambda: self._measure(backend)):
                for answers in backend.answers(self._sources(left, configuration)):
                    self._finish_files()
                    file, rows = self._read.popleft()
                    assert rows is not None
                    if self._should_stop():
                        raise StoppedError
                    file.save(rows, answers)
                self._finish_files()
        finally:
            for file in self._files:
                file.close()
        counts = Counts()
        for file in self._files:
            counts.add(file.counts)
        return counts

    def _sources(self, files: Sequence[FileWork], configuration: Mapping[str, Any]) -> Iterator[list[str]]:
        for file in files:
            file.open(configuration, self._restart)  # not before: a process may only open so many files
            for rows in file.windows(self._window):
                self._read.append((file, rows))
                sources = [row.source for row in rows if not row.problem]
                self._without_source += len(rows) - len(sources)
                yield sources
            self._read.append((file, None))

    def _finish_files(self) -> None:
        """Finishes the files whose windows are all saved."""
        while self._read and self._read[0][1] is None:
            self._read.popleft()[0].finish()

    def _measure(self, backend: Backend) -> tuple[int, int]:
        lines, tokens = backend.measure()
        return lines + self._without_source, tokens
