"""Writes log lines in a thread of its own, so that no caller waits for a slow reader."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TextIO

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

MAX_WAITING = 10_000  # lines; further ones are dropped
LINES_PER_WRITE = 256
WRITE_SECONDS = 0.02  # between two writes: a busy server wakes the thread fifty times a second, not for each line

DRAIN_SECONDS = 1.0  # that an ending process waits for its last lines to be written

# A line with its newline, or a function that makes it in the thread; "" writes nothing.
Line = str | Callable[[], str]


class LineWriter(Collector):
    """Writes lines in order. Thread-safe.

    If the stream is too slow, such as a pipe that nobody reads, lines are dropped and counted. The count is a metric,
    and is logged as soon as lines can be written again.

    Args:
        stream: The stream to write to.
        max_waiting: Lines that may wait to be written.

    Attributes:
        format_dropped: Makes a line from the number of dropped lines.
    """

    def __init__(self, stream: TextIO, max_waiting: int = MAX_WAITING) -> None:
        self.format_dropped: Callable[[int], str] = lambda dropped: f"{dropped} log lines were dropped\n"
        self._stream = stream
        self._max_waiting = max_waiting
        self._lines: deque[Line | threading.Event] = deque()
        self._wake = threading.Event()
        self._dropping = threading.Lock()
        self._dropped = 0
        self._reported = 0
        threading.Thread(target=self._run, name="log", daemon=True).start()

    @property
    def dropped(self) -> int:
        """Lines dropped so far."""
        return self._dropped

    def put(self, line: Line) -> None:
        if len(self._lines) >= self._max_waiting:
            self._drop(1)
            return
        self._lines.append(line)
        if not self._wake.is_set():
            self._wake.set()

    def write(self, text: str) -> int:
        """Puts a whole line; lets `logging` use this as a file."""
        self.put(text)
        return len(text)

    def flush(self) -> None:
        """Does nothing, as part of the file interface; `drain` waits."""

    def drain(self, seconds: float) -> bool:
        """Waits until all previous lines are written; returns False if that takes longer than `seconds`."""
        written = threading.Event()
        self._lines.append(written)
        self._wake.set()
        return written.wait(seconds)

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(
            "dragoman_log_lines_dropped", "Log lines and traces dropped because standard error was too slow"
        )
        family.add_metric([], self._dropped)
        yield family

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._lines:
                self._write_some()
            time.sleep(WRITE_SECONDS)

    def _write_some(self) -> None:
        texts: list[str] = []
        written: list[threading.Event] = []
        for _ in range(min(len(self._lines), LINES_PER_WRITE)):
            line = self._lines.popleft()
            if isinstance(line, threading.Event):
                written.append(line)
            else:
                texts.append(self._text(line))
        if (dropped := self._dropped) > self._reported:
            texts.append(self.format_dropped(dropped - self._reported))
            self._reported = dropped
        try:
            if text := "".join(texts):
                self._stream.write(text)
                self._stream.flush()
        except (OSError, ValueError):  # the reader is gone
            self._drop(len(texts))
        for event in written:
            event.set()

    def _text(self, line: Line) -> str:
        try:
            return line if isinstance(line, str) else line()
        except Exception:  # a bug in one line must not stop the thread
            self._drop(1)
            return ""

    def _drop(self, count: int) -> None:
        with self._dropping:
            self._dropped += count
