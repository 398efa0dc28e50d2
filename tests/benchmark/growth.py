"""`python -m tests.benchmark.growth`: how the time of decode steps and encoding grows with rows, lengths and
vocabulary, on one thread, with random int8 weights of both shapes."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from dragoman_server.bundle.load import Bundle
from dragoman_server.runtime.device import CPU
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from dragoman_training.model import ModelConfig
from dragoman_training.recipe import SHIPPED_RECIPES, load_recipe
from tests.benchmark import results
from tests.benchmark.machine import describe
from tests.benchmark.random_bundle import BASE, random_bundle

ROWS = tuple(2**power for power in range(9))  # 1 to 256
LENGTHS = tuple(8 << power for power in range(6))  # 8 to 256
VOCABULARIES = (1_000, 4_000, 16_000, 64_000)
TYPICAL_ROWS, SOURCE, POSITION = 8, 16, 16  # the fixed values in the other curves
FEW_TOKENS = 1024  # vocabulary of the length curves, so that the output layer does not dominate

Task = tuple[int, Callable[[], object], Callable[[], object]]
"""A size, its untimed preparation, and one unit of work."""


class Model:
    """A single-threaded runtime whose rows can be put into any state."""

    def __init__(self, bundle: Bundle, max_rows: int) -> None:
        self.runtime = Runtime(Sessions(bundle, CPU, 1), max_rows)
        vocabulary = bundle.manifest.shape.source_vocabulary
        self._sources = np.random.default_rng(0).integers(4, vocabulary, (max_rows, self.runtime.source_capacity))

    def encode(self, rows: int, length: int = SOURCE) -> None:
        self.runtime.encode(self._sources[:rows, :length].tolist(), 0)

    def ready(self, rows: int, length: int = SOURCE, position: int = POSITION) -> None:
        """Moves rows to a position; the contents of their caches do not affect the time of a step."""
        self.encode(rows, length)
        self.runtime.positions[:rows] = position

    def step(self, rows: int) -> None:
        """Runs one greedy step, which can be repeated."""
        self.runtime.top(rows, 1)


def curves(shape: ModelConfig, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Returns the curves of a model shape, each with "work", "over", "sizes" and "ms"."""

    def bundle(vocabulary: int, **changed: int) -> Bundle:
        config = shape.model_copy(update={"norm": "pre", **changed})
        return random_bundle(f"growth-d{shape.d_model}-v{vocabulary}", config, vocabulary, "int8")

    longest = LENGTHS[-1]
    model = Model(bundle(FEW_TOKENS, max_source_length=longest, max_target_length=longest), ROWS[-1])
    step, encode, ready, n = model.step, model.encode, model.ready, TYPICAL_ROWS
    wide = {size: Model(bundle(size, encoder_layers=1), n) for size in VOCABULARIES}  # the encoder does not matter
    tasks: dict[tuple[str, str], list[Task]] = {
        ("a decode step", "rows"): [(r, partial(ready, r), partial(step, r)) for r in ROWS],
        ("encoding", "rows"): [(r, partial(ready, r), partial(encode, r)) for r in ROWS],
        ("encoding", "source tokens"): [(s, partial(ready, n), partial(encode, n, s)) for s in LENGTHS],
        ("a decode step", "source tokens"): [(s, partial(ready, n, s), partial(step, n)) for s in LENGTHS],
        ("a decode step", "target tokens"): [(t, partial(ready, n, SOURCE, t - 1), partial(step, n)) for t in LENGTHS],
        ("a decode step", "vocabulary"): [(v, partial(m.ready, n), partial(m.step, n)) for v, m in wide.items()],
    }
    return [
        {"work": work, "over": over, "sizes": [size for size, _, _ in each], "ms": median_times(each, rounds, seconds)}
        for (work, over), each in tasks.items()
    ]


def median_times(tasks: list[Task], rounds: int, seconds: float) -> list[float]:
    """Returns median milliseconds per unit of each task, measured in turn; every other round runs backwards."""
    turns: list[tuple[Task, int, list[float]]] = []
    for task in tasks:
        _seconds(task, 1)  # warm-up
        turns.append((task, max(1, round(seconds / _seconds(task, 1))), []))
    for number in range(rounds):
        for task, count, found in turns if number % 2 == 0 else reversed(turns):
            found.append(_seconds(task, count))
    return [1000 * median(found) for _, _, found in turns]


def _seconds(task: Task, count: int) -> float:
    _, prepare, work = task
    prepare()
    started = time.perf_counter()
    for _ in range(count):
        work()
    return (time.perf_counter() - started) / count


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Samples of each point.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.0, help="Length of a sample, about.")] = 0.1,
    output: Annotated[Path, typer.Option(help="Folder of growth.json.")] = results.RESULTS,
) -> None:
    """Measures how time grows; the random models are made the first time, which takes minutes."""
    shapes = {"g2p-en": load_recipe(SHIPPED_RECIPES / "g2p-en.yaml").model, "base": BASE}
    document: dict[str, Any] = {"machine": describe("tests.benchmark.growth"), "models": {}}
    for name, shape in shapes.items():
        print(name, flush=True)
        document["models"][name] = curves(shape, rounds, seconds)
    results.write("growth", document, output)


if __name__ == "__main__":
    typer.run(main)
