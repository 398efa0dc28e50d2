"""Log lines on their way out, in a thread of their own: whoever has something to say never waits for who reads it."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TextIO

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

ROOM = 10_000  # lines that wait; more are dropped
CHUNK = 256  # lines of one write
GATHER_SECONDS = (
    0.02  # between two writes, so that a busy server wakes the thread fifty times a second and not for each
)

DRAIN_SECONDS = 1.0  # that a process which ends waits for its last lines to be read

# A line with its end, or what makes one in the thread: several, or "" for none.
Line = str | Callable[[], str]


class LineWriter(Collector):
    """Writes lines in order. For use from any thread.

    Where the stream is slower than what is said, as a pipe that nobody reads, lines are dropped and counted; the count
    is a metric, and is told between the lines as soon as there is room.

    Args:
        stream: where they go.
        tell: makes a line of how many were dropped.
        room: lines that may wait.
    """

    def __init__(self, stream: TextIO, tell: Callable[[int], str] | None = None, room: int = ROOM) -> None:
        self.tell = tell or (lambda dropped: f"{dropped} log lines were dropped\n")
        self._stream = stream
        self._room = room
        self._lines: deque[Line | threading.Event] = deque()
        self._wake = threading.Event()
        self._dropping = threading.Lock()
        self._dropped = 0
        self._told = 0
        threading.Thread(target=self._run, name="log", daemon=True).start()

    @property
    def dropped(self) -> int:
        """Lines that were not written."""
        return self._dropped

    def put(self, line: Line) -> None:
        if len(self._lines) >= self._room:
            self._drop(1)
            return
        self._lines.append(line)
        if not self._wake.is_set():
            self._wake.set()

    def write(self, text: str) -> int:
        """As a file has it, for `logging`: a whole line."""
        self.put(text)
        return len(text)

    def flush(self) -> None:
        """As a file has it. It does not wait; `drain` does."""

    def drain(self, seconds: float) -> bool:
        """Waits until all that was put before is written, or for so long; says whether it is."""
        written = threading.Event()
        self._lines.append(written)
        self._wake.set()
        return written.wait(seconds)

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(
            "dragoman_log_lines_dropped", "Log lines and traces not written, since standard error was too slow"
        )
        family.add_metric([], self._dropped)
        yield family

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._lines:
                self._write_some()
            time.sleep(GATHER_SECONDS)

    def _write_some(self) -> None:
        texts: list[str] = []
        written: list[threading.Event] = []
        for _ in range(min(len(self._lines), CHUNK)):
            line = self._lines.popleft()
            if isinstance(line, threading.Event):
                written.append(line)
            else:
                texts.append(self._text(line))
        if (dropped := self._dropped) > self._told:
            texts.append(self.tell(dropped - self._told))
            self._told = dropped
        try:
            if text := "".join(texts):
                self._stream.write(text)
                self._stream.flush()
        except (OSError, ValueError):  # nobody reads it any more
            self._drop(len(texts))
        for event in written:
            event.set()

    def _text(self, line: Line) -> str:
        try:
            return line if isinstance(line, str) else line()
        except Exception:  # a fault in one line must not silence all that come after it
            self._drop(1)
            return ""

    def _drop(self, count: int) -> None:
        with self._dropping:
            self._dropped += count
