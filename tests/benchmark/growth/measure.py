"""One unit of work at every size in turn, round after round."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from server.runtime.model import Runtime
from tests.benchmark.growth.curve import Point

Work = Callable[[], object]


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: samples of each point.
        seconds: one sample, about.
    """

    rounds: int
    seconds: float


@dataclass(frozen=True)
class Task:
    """A point to be measured.

    Attributes:
        prepare: not timed; before each sample.
        work: one unit.
        items: of what throughput counts, in it.
    """

    size: int
    items: float
    work: Work
    prepare: Work = lambda: None


def sample(tasks: Sequence[Task], effort: Effort) -> list[Point]:
    """Measures each task in turn; every other round goes backwards."""
    points = [Point(task.size, task.items) for task in tasks]
    repeats = [_repeats(task, effort) for task in tasks]
    turns = list(zip(tasks, points, repeats, strict=True))
    for number in range(effort.rounds):
        for task, point, count in turns if number % 2 == 0 else reversed(turns):
            task.prepare()
            started = time.perf_counter()
            for _ in range(count):
                task.work()
            point.seconds.append((time.perf_counter() - started) / count)
    return points


def _repeats(task: Task, effort: Effort) -> int:
    """Warms up, and tells how many units make a sample."""
    task.prepare()
    task.work()
    started = time.perf_counter()
    task.work()
    return max(1, round(effort.seconds / (time.perf_counter() - started)))


class Model:
    """A runtime whose rows can be put into any state.

    Args:
        runtime: its rows are overwritten.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        vocabulary = runtime.manifest.shape.source_vocabulary
        draw = np.random.default_rng(0).integers(4, vocabulary, (runtime.slots, runtime.source_capacity))
        self.sources: list[list[int]] = draw.tolist()

    def encode(self, rows: int, source: int) -> None:
        """Encodes so many sources of that length."""
        self.runtime.encode([ids[:source] for ids in self.sources[:rows]], 0)

    def stand(self, rows: int, position: int) -> None:
        """Puts rows at a position; what stands in their caches does not matter to the time of a step."""
        self.runtime.positions[:rows] = position

    def step(self, rows: int) -> None:
        """One greedy step, which can be repeated."""
        self.runtime.top(rows, 1)

    def answer(self, rows: int, source: int, tokens: int) -> None:
        """Encodes sources and decodes so many tokens of each."""
        self.encode(rows, source)
        for _ in range(tokens):
            self.runtime.tokens[:rows] = self.runtime.top(rows, 1).ids
            self.runtime.positions[:rows] += 1
