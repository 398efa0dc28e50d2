"""Progress on the terminal: a bar, or without a terminal a line from time to time."""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

LINE_SECONDS = 10.0  # between two lines without a terminal
BAR_SECONDS = 0.25


class Meter:
    """Shows lines done, their rate, tokens per second and time left.

    Args:
        total: Lines of the whole input.
        done: Lines that an earlier run has done; they do not count for rates.
        measure: Returns the lines done so far by this run, and its target tokens. Called in a thread.
    """

    def __init__(self, total: int, done: int, measure: Callable[[], tuple[int, int]]) -> None:
        self._total, self._before, self._measure = total, done, measure
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.completed:,}/{task.total:,} lines"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=self._console,
            auto_refresh=False,
        )
        self._task = self._bar.add_task("", total=total, completed=done, numbers="")
        self._started = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        if self._console.is_terminal:
            self._bar.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._console.is_terminal:
            self._show()
            self._bar.stop()

    def numbers(self) -> str:
        """Returns rates and time left: "812 lines/s  6,211 tokens/s  1.5 min left"."""
        lines, tokens = self._measure()
        seconds = max(time.monotonic() - self._started, 1e-9)
        numbers = f"{_rate(lines / seconds)} lines/s  {_rate(tokens / seconds)} tokens/s"
        left = self._total - self._before - lines
        return f"{numbers}  {describe_seconds(left * seconds / lines)} left" if lines and left > 0 else numbers

    def _run(self) -> None:
        terminal = self._console.is_terminal
        while not self._ended.wait(BAR_SECONDS if terminal else LINE_SECONDS):
            if terminal:
                self._show()
            else:
                lines = min(self._before + self._measure()[0], self._total)
                print(f"{lines:,}/{self._total:,} lines  {self.numbers()}", file=sys.stderr, flush=True)

    def _show(self) -> None:
        lines = min(self._before + self._measure()[0], self._total)
        self._bar.update(self._task, completed=lines, numbers=self.numbers())
        self._bar.refresh()


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


def describe_seconds(seconds: float) -> str:
    """Returns a duration as people say it: "42 s", "3.5 min", "2.1 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
