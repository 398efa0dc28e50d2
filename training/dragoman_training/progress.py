"""Progress of a run on the terminal: a progress bar, or without a terminal a line from time to time."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

CLOSING = 0.3  # seconds
LINE_EVERY = 10.0  # seconds between two lines of an evaluation


class _TimeLeft(ProgressColumn):
    """The time until a task's `end`, a time of the monotonic clock; None if nobody knows."""

    max_refresh = 0.5  # seconds

    def render(self, task: Task) -> Text:
        end = task.fields["end"]
        return Text("" if end is None else f"{_duration(max(0.0, end - time.monotonic()))} left")


class ProgressBar:
    """Shows loss, tokens per second, learning rate, memory and time left, and how far an evaluation has come.

    Args:
        steps: Steps of the whole run.
        console: Where it is shown.
    """

    def __init__(self, steps: int, console: Console) -> None:
        self.console = console
        self.steps = steps
        self.bar = Progress(
            TextColumn("{task.description}"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[numbers]}"),
            _TimeLeft(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("step", total=steps, numbers="", end=None)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def closed_before(self, end: Callable[[int | None], object]) -> Callable[[int | None], object]:
        """Returns a function that gives the terminal its cursor back and then does the same, in whatever thread."""

        def close_and_end(step: int | None) -> None:
            closing = threading.Thread(target=self.bar.stop, daemon=True)  # the other thread may be printing forever
            closing.start()
            closing.join(CLOSING)
            end(step)

        return close_and_end

    def begin(self, step: int) -> None:
        """Starts at the step of a resumed run."""
        self.bar.reset(self.task, completed=step)

    def advance(self, step: int) -> None:
        """Moves to a step."""
        self.bar.update(self.task, completed=step)

    def report(
        self, step: int, loss: float, tokens_per_second: float, rate: float, memory: str, seconds_left: float
    ) -> None:
        """Shows new numbers; prints a line if there is no terminal."""
        numbers = f"loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s  lr {rate:.2e}  {memory}"
        self.bar.update(self.task, numbers=numbers, end=time.monotonic() + seconds_left)
        if not self.console.is_terminal:
            self.echo(f"step {step}/{self.steps}  {numbers}  {_duration(seconds_left)} left")

    @contextmanager
    def answering(self, name: str) -> Iterator[Callable[[int, int], None]]:
        """Shows how many sources of a data set are answered, on a bar or in a line every ten seconds.

        Args:
            name: Name of the data set.

        Yields:
            A callback for the number of sources that are answered, and that of all.
        """
        task = self.bar.add_task(name, total=None, numbers="answered", end=None)
        begin = shown = time.monotonic()

        def answered(count: int, total: int) -> None:
            nonlocal shown
            now = time.monotonic()
            self.bar.update(task, completed=count, total=total, end=now + (now - begin) * (total - count) / count)
            if not self.console.is_terminal and now - shown >= LINE_EVERY and count < total:
                shown = now
                self.echo(f"{name}  {count:,} of {total:,} sources answered")

        try:
            yield answered
        finally:
            self.bar.remove_task(task)

    @contextmanager
    def preparing(self) -> Iterator[Callable[[str, int, int | None], None]]:
        """Shows how far the preparation of data has come, on bars or in a line every ten seconds.

        Yields:
            A callback for what is counted, how many there are so far, and how many in all, None if nobody knows.
        """
        tasks: dict[str, TaskID] = {}
        shown = time.monotonic()

        def counted(what: str, count: int, total: int | None) -> None:
            nonlocal shown
            if what not in tasks:
                tasks[what] = self.bar.add_task(what, total=total, numbers="", end=None)
            self.bar.update(tasks[what], completed=count, total=total)
            now = time.monotonic()
            if not self.console.is_terminal and now - shown >= LINE_EVERY:
                shown = now
                numbers = f"{count:,} " if total is None else f"{count:,} of {total:,} "
                self.echo(f"{numbers if count else ''}{what}")

        try:
            yield counted
        finally:
            for task in tasks.values():
                self.bar.remove_task(task)

    def warn(self, message: str) -> None:
        """Prints a warning above the bar."""
        self.echo(f"warning: {message}")

    def echo(self, line: str) -> None:
        """Prints a line above the bar."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds > 5400 else f"{seconds / 60:.1f} min"


class Window:
    """Loss, largest gradient norm, tokens and time since the last report."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.gradient_norm = 0.0
        self.tokens = 0
        self.steps = 0
        self.start = time.monotonic()

    def add(self, loss: float, gradient_norm: float, tokens: int) -> None:
        """Adds a step; `loss` is its mean over the tokens."""
        self.loss += loss * tokens
        self.gradient_norm = max(self.gradient_norm, gradient_norm)
        self.tokens += tokens
        self.steps += 1

    def seconds(self) -> float:
        """Returns the time since the start, without pauses."""
        return time.monotonic() - self.start

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the time spent inside the context."""
        before = time.monotonic()
        yield
        self.start += time.monotonic() - before
