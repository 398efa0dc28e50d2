"""`python -m tests.benchmark.training`: our training step beside PyTorch's Transformer and Hugging Face's Marian."""

import time
from contextlib import ExitStack, closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console

from server.cpu import usable_cpus
from tests.benchmark.actor import Actor, ActorError
from tests.benchmark.cli import BUILD, UNFINISHED
from tests.benchmark.machine import describe
from tests.benchmark.training.report import Comparison, Piece, Results, Series, markdown
from tests.benchmark.training.trainers import Contender, Marian, OfTorch, Ours, Steps
from tests.benchmark.training.work import Precision, Work, base_work, small_work

PACKAGES = ("torch", "transformers", "numpy")
CONTENDERS: tuple[tuple[str, type[Contender], tuple[str, ...]], ...] = (
    ("dragoman", Ours, ("own",)),
    ("nn.Transformer", OfTorch, ("fused", "plain")),
    ("Marian", Marian, ("fused", "plain")),
)


class Shape(StrEnum):
    """Which shape to train."""

    small = "small"
    base = "base"
    both = "both"


class Arithmetic(StrEnum):
    """What to multiply in."""

    fp32 = "fp32"
    bf16 = "bf16"
    both = "both"


def main(
    shape: Annotated[Shape, typer.Option(help="The shape of the model that ships, the base shape, or both.")] = (
        Shape.both
    ),
    precision: Annotated[Arithmetic, typer.Option(help="32-bit floats, matrix products in bfloat16, or both.")] = (
        Arithmetic.both
    ),
    rounds: Annotated[int, typer.Option(min=1, help="Samples of each series.")] = 3,
    threads: Annotated[int, typer.Option(min=0, help="Of PyTorch in every trainer; 0 for all cores.")] = 0,
    add: Annotated[bool, typer.Option("--add", help="Go on from what was measured before.")] = False,
    stop_after: Annotated[
        float | None, typer.Option(help=f"Begin nothing new after so many seconds, and exit with {UNFINISHED}.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Where training.md and training.json go.")] = BUILD,
) -> None:
    """Measures tokens a second and peak memory of a training step, all trainers on the same batches in turn."""
    started = time.monotonic()
    console = Console()
    machine = describe("tests.benchmark.training", PACKAGES)
    precisions: list[Precision] = ["fp32", "bf16"] if precision is Arithmetic.both else [precision.value]  # type: ignore[list-item]
    makers = {Shape.small: small_work, Shape.base: base_work}
    output.mkdir(parents=True, exist_ok=True)
    kept = output / "training.json"
    try:
        before = add and kept.exists()
        results = Results.model_validate_json(kept.read_text(encoding="utf-8")) if before else Results()
        for name, make in makers.items():
            for arithmetic in precisions:
                title = f"{name.value}, {arithmetic}"
                if shape not in (Shape.both, name) or title in results.pieces:
                    continue
                if stop_after is not None and time.monotonic() - started > stop_after:
                    console.print(f"Not finished; --add goes on from {kept}.")
                    raise typer.Exit(UNFINISHED)
                console.print(title)
                comparison = compare(make(arithmetic), rounds, threads or usable_cpus())
                results.pieces[title] = Piece(machine=machine, comparison=comparison)
                results.write(kept)
    except ActorError as error:
        console.print(f"benchmark: {error}", style="red", markup=False)
        raise typer.Exit(1) from None
    except ValidationError:
        console.print(f"benchmark: {kept} is not what this version writes; without --add it is written anew")
        raise typer.Exit(1) from None
    text = markdown(results)
    (output / "training.md").write_text(text, encoding="utf-8")
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(f"Written to {output / 'training.md'} and {kept}.")


def compare(work: Work, rounds: int, threads: int) -> Comparison:
    """All trainers, each in a process of its own, in turn; every other round backwards."""
    series: list[Series] = []
    with ExitStack() as stack:
        actors = []
        for name, contender, settings in CONTENDERS:
            actor = stack.enter_context(closing(Actor(contender, work, threads)))
            actor.call("measure", 1, settings[0])  # what is made once
            for setting in settings:
                series.append(Series(name, setting))
                actors.append(actor)
        turns = list(zip(series, actors, strict=True))
        for number in range(rounds):
            for one, actor in turns if number % 2 == 0 else reversed(turns):
                actor.call("go_to", 1 + number * work.steps)
                steps: Steps = actor.call("measure", work.steps, one.attention)
                one.samples.append(steps)
        for one, actor in turns:
            one.peak_bytes = actor.call("peak_bytes")
    return Comparison(work.name, work.lengths, work.training.precision, work.parameters(), threads, series)
