"""`python -m tests.scale`: simulates the plan of docs/scale.md from measured costs; a few minutes on one core."""

from pathlib import Path
from typing import Annotated

import typer

from tests.benchmark import results
from tests.benchmark.machine import ROOT
from tests.scale.picture import draw
from tests.scale.plan import Plan
from tests.scale.service import load
from tests.scale.simulate import simulate
from tests.scale.tables import Facts, queue_tables


def main(
    output: Annotated[Path, typer.Option(help="Folder for queue.json and scale.webp.")] = ROOT / "build" / "scale",
) -> None:
    """Simulates queues and autoscaling, prints their percentiles and draws them."""
    measured, plan = load(), Plan()
    found = simulate(measured, plan, lambda what: print(what, flush=True))
    results.write("queue", found.model_dump(), output)
    draw(found, output / "scale.webp")
    print(*queue_tables(Facts(measured, found, plan)).values(), sep="\n\n")
    print(f"Written to {output / 'queue.json'} and {output / 'scale.webp'}.")


if __name__ == "__main__":
    typer.run(main)
