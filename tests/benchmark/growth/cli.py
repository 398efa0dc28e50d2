"""`python -m tests.benchmark.growth`: time and throughput of the decode step and of the encoder as work grows."""

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console

from export.errors import ExportError
from server.bundle.load import BundleError, load_bundle
from tests.benchmark.campaign import describe_model
from tests.benchmark.cli import BUILD, UNFINISHED, Arithmetic, Model, of_precision
from tests.benchmark.growth.curves import Curves
from tests.benchmark.growth.drawing import draw
from tests.benchmark.growth.measure import Effort
from tests.benchmark.growth.report import markdown
from tests.benchmark.growth.results import Piece, Results
from tests.benchmark.machine import describe


class Growing(StrEnum):
    """What grows."""

    rows = "rows"
    source = "source"
    target = "target"
    beam = "beam"
    vocabulary = "vocabulary"
    engines = "engines"


def main(
    model: Annotated[
        Model, typer.Option(help="The shipped bundle, the base shape with random weights, or both.")
    ] = Model.both,
    precision: Annotated[Arithmetic, typer.Option(help="Of the models.")] = Arithmetic.int8,
    bundle: Annotated[Path | None, typer.Option(help="Measure this bundle, and no other.")] = None,
    curve: Annotated[list[Growing] | None, typer.Option(help="What grows; may be given several times.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Samples of each point.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.0, help="Length of a sample, about.")] = 0.1,
    add: Annotated[bool, typer.Option("--add", help="Go on from what was measured before.")] = False,
    stop_after: Annotated[
        float | None, typer.Option(help=f"Begin nothing new after so many seconds, and exit with {UNFINISHED}.")
    ] = None,
    prepare: Annotated[bool, typer.Option("--prepare", help="Only make the random models, so that they exist.")] = (
        False
    ),
    output: Annotated[Path, typer.Option(help="Where growth-MODEL-PRECISION.md, .json and pictures go.")] = BUILD,
) -> None:
    """Measures how time and throughput grow with rows, lengths, beams, vocabularies and engines."""
    started = time.monotonic()
    console = Console()
    machine = describe("tests.benchmark.growth")
    models = [Model.shipped, Model.base] if model is Model.both else [model]
    output.mkdir(parents=True, exist_ok=True)
    BUILD.mkdir(parents=True, exist_ok=True)
    for name in ["bundle"] if bundle else [f"{each.value}-{precision.value}" for each in models]:
        try:
            opened = load_bundle(bundle or of_precision(Model(name.partition("-")[0]), precision))
            kept = output / f"growth-{name}.json"
            if add and kept.exists():
                results = Results.model_validate_json(kept.read_text(encoding="utf-8"))
            else:
                results = Results(model=describe_model(opened))
            curves = Curves(opened, BUILD, Effort(rounds, seconds))
            for growing in curve or list(Growing):
                if growing in results.pieces and not prepare:
                    continue
                if stop_after is not None and time.monotonic() - started > stop_after:
                    console.print(f"Not finished; --add goes on from {kept}.")
                    raise typer.Exit(UNFINISHED)
                console.print(f"{name}: {growing.value}")
                curves.prepare(growing.value)
                if not prepare:
                    found = list(curves.all[growing.value]())
                    results.pieces[growing.value] = Piece(machine=machine, curves=found)
                    results.write(kept)
        except (BundleError, ExportError) as error:
            console.print(f"benchmark: {name}: {error}", style="red", markup=False)
            raise typer.Exit(1) from None
        except ValidationError:
            console.print(f"benchmark: {kept} is not what this version writes; without --add it is written anew")
            raise typer.Exit(1) from None
        if not prepare:
            write(name, results, output, console)


def write(name: str, results: Results, output: Path, console: Console) -> None:
    """The page and the pictures of one model."""
    pictures: dict[str, str] = {}
    for each in (curve for piece in results.pieces.values() for curve in piece.curves):
        pictures[each.name] = f"growth-{name}-{each.name}.png"
        draw(each, results.model, output / pictures[each.name])
    text = markdown(results, pictures)
    (output / f"growth-{name}.md").write_text(text, encoding="utf-8")
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(f"Written to {output / f'growth-{name}.md'}, the numbers and pictures beside it.")
