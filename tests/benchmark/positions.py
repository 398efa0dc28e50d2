"""`python -m tests.benchmark.positions`: what relative positions cost in a decode step, on one thread.

Models of T5-small's size with random weights: with sinusoidal positions, with one table of relative ones (T5), and
with one a layer (umT5).
"""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from dragoman_server.bundle.manifest import Precision
from tests.benchmark import results
from tests.benchmark.growth import Model, Task, median_times
from tests.benchmark.machine import describe
from tests.benchmark.random_bundle import BASE, VOCABULARY, random_bundle

KINDS = ("sinusoidal", "relative", "relative_per_layer")
PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")
ROWS = (1, 8, 32)
LONGEST, SOURCE, POSITION = 256, 16, 100  # tokens


def measure(precision: Precision, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Returns milliseconds of a step by kind of positions, for each number of rows."""
    models = []
    for kind in KINDS:
        config = BASE.model_copy(update={"positions": kind, "max_source_length": LONGEST, "max_target_length": LONGEST})
        models.append(Model(random_bundle(f"positions-{kind}", config, VOCABULARY, precision, "float"), ROWS[-1]))
    found = []
    for rows in ROWS:
        tasks: list[Task] = [
            (rows, partial(model.ready, rows, SOURCE, POSITION), partial(model.step, rows)) for model in models
        ]
        milliseconds = dict(zip(KINDS, median_times(tasks, rounds, seconds), strict=True))
        found.append({"precision": precision, "rows": rows, "ms": milliseconds})
    return found


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Samples of each model.")] = 15,
    seconds: Annotated[float, typer.Option(min=0.0, help="Length of a sample, about.")] = 0.2,
    output: Annotated[Path, typer.Option(help="Folder of positions.json.")] = results.RESULTS,
) -> None:
    """Measures steps; the random models are made the first time, which takes minutes."""
    rows = [row for precision in PRECISIONS for row in measure(precision, rounds, seconds)]
    machine = describe("tests.benchmark.positions")
    results.write("positions", {"machine": machine, "position": POSITION, "steps": rows}, output)
    for row in rows:
        times = ", ".join(f"{kind} {value:.3f} ms" for kind, value in row["ms"].items())
        print(f"{row['precision']}, {row['rows']} rows: {times}")


if __name__ == "__main__":
    typer.run(main)
