"""Measures how training scales over processes on this machine: `python -m tests.benchmark.training.scaling`.

The same recipe with the same batches in a step is trained by one process and by several, each with one thread, as
`torchrun` starts them. Gradients travel over Gloo.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer
import yaml

from dragoman_server.machine import usable_cpus
from tests.benchmark import results
from tests.benchmark.machine import describe
from tests.benchmark.training.work import Work, small_work

STEPS, WINDOW = 18, 6  # the first window is not counted


def measure(work: Work, processes: int, accumulate: int, folder: Path) -> float:
    """Trains a new run for some steps.

    Args:
        work: Shape, optimizer and pairs.
        processes: Number of processes, each with one thread.
        accumulate: Batches in a step, which the processes share.
        folder: Empty folder for corpus and run.

    Returns:
        Target tokens per second of all processes together.

    Raises:
        CalledProcessError: Training failed.
    """
    corpus, recipe, run = folder / "corpus.tsv", folder / "recipe.yaml", folder / "run"
    with corpus.open("w", encoding="utf-8") as file:
        file.writelines(f"{_text(pair.source)}\t{_text(pair.target)}\n" for pair in work.pairs)
    settings: dict[str, Any] = work.recipe().model_dump(mode="json", exclude_unset=True)
    settings["data"] = {"train": [str(corpus)]}
    settings["training"] |= {"steps": STEPS, "accumulate": accumulate, "log_every": WINDOW, "warmup_steps": 1}
    recipe.write_text(yaml.safe_dump(settings), encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = ["-m", "dragoman_training", str(recipe), "--out", str(run), "--device", "cpu", "--threads", "1"]
    subprocess.run([sys.executable, *launcher, *command], check=True, capture_output=True, text=True)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rates: list[float] = [record["tokens_per_second"] for record in records if record["kind"] == "train"]
    return mean(rates[1:])


def _text(tokens: list[int]) -> str:
    return " ".join(f"s{token}" for token in tokens[:-1])


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Runs with each number of processes.")] = 3,
    output: Annotated[Path, typer.Option(help="Folder of scaling.json.")] = results.RESULTS,
) -> None:
    """Measures target tokens a second with one process and with one per core, in turn."""
    machine = describe("tests.benchmark.training.scaling", ("torch", "numpy"))
    most = usable_cpus()
    rates: dict[int, list[float]] = {1: [], most: []}
    for _ in range(rounds):
        for processes, found in rates.items():
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found.append(measure(small_work("fp32"), processes, most, Path(folder)))
                except subprocess.CalledProcessError as error:
                    typer.echo(f"benchmark: training in {processes} processes failed:\n{error.stderr}", err=True)
                    raise typer.Exit(1) from None
            typer.echo(f"{processes} processes: {found[-1]:,.0f} target tokens/s")
    series = [{"processes": processes, "rates": found} for processes, found in rates.items()]
    results.write("scaling", {"machine": machine, "batches": most, "series": series}, output)


if __name__ == "__main__":
    typer.run(main)
