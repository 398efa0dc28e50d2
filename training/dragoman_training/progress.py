"""Progress of a run on the terminal: a progress bar, or without a terminal a line from time to time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressBar:
    """Shows loss, tokens per second, learning rate, memory and time left.

    Args:
        steps: Steps of the whole run.
        console: Where it is shown.
    """

    def __init__(self, steps: int, console: Console) -> None:
        self.console = console
        self.steps = steps
        self.bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("step", total=steps, numbers="")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def begin(self, step: int) -> None:
        """Starts at the step of a resumed run, so that the time left is estimated from the steps of this process."""
        self.bar.reset(self.task, completed=step)

    def advance(self, step: int) -> None:
        """Moves to a step."""
        self.bar.update(self.task, completed=step)

    def report(
        self, step: int, loss: float, tokens_per_second: float, rate: float, memory: str, seconds_left: float
    ) -> None:
        """Shows new numbers; prints a line if there is no terminal."""
        numbers = f"loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s  lr {rate:.2e}  {memory}"
        self.bar.update(self.task, numbers=numbers)
        if not self.console.is_terminal:
            left = f"{seconds_left / 3600:.1f} h" if seconds_left > 5400 else f"{seconds_left / 60:.1f} min"
            self.echo(f"step {step}/{self.steps}  {numbers}  {left} left")

    def echo(self, line: str) -> None:
        """Prints a line above the bar."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


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
