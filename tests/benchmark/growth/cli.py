"""`python -m tests.benchmark.growth`: time and throughput of the decode step and of the encoder as work grows."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from export.errors import ExportError
from server.bundle.load import BundleError, load_bundle, shipped_bundle
from tests.benchmark.base_model import base_bundle
from tests.benchmark.growth.curve import Curve
from tests.benchmark.growth.curves import Curves
from tests.benchmark.growth.drawing import draw
from tests.benchmark.growth.measure import Effort
from tests.benchmark.growth.report import document, markdown
from tests.benchmark.machine import describe

BUILD = Path(__file__).resolve().parents[3] / "build" / "bench"


class Model(StrEnum):
    """Which model to measure."""

    shipped = "shipped"
    base = "base"
    both = "both"


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
    bundle: Annotated[Path | None, typer.Option(help="Measure this bundle, and no other.")] = None,
    curve: Annotated[list[Growing] | None, typer.Option(help="What grows; may be given several times.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Samples of each point.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.0, help="Length of a sample, about.")] = 0.1,
    prepare: Annotated[bool, typer.Option("--prepare", help="Only export the random models, so that they exist.")] = (
        False
    ),
    output: Annotated[Path, typer.Option(help="Where growth-MODEL.md, .json and the pictures go.")] = BUILD,
) -> None:
    """Measures how time and throughput grow with rows, lengths, beams, vocabularies and engines."""
    console = Console()
    machine = describe("tests.benchmark.growth")
    names = ["shipped", "base"] if model is Model.both else [model.value]
    for name in ["bundle"] if bundle else names:
        try:
            BUILD.mkdir(parents=True, exist_ok=True)
            opened = load_bundle(bundle or (shipped_bundle() if name == "shipped" else base_bundle(BUILD)))
            curves = Curves(opened, BUILD, Effort(rounds, seconds))
            measured: list[Curve] = []
            for growing in curve or list(Growing):
                console.print(f"{name}: {growing.value}")
                curves.prepare(growing.value)
                if not prepare:
                    measured += curves.all[growing.value]()
        except (BundleError, ExportError) as error:
            console.print(f"benchmark: {name}: {error}", style="red", markup=False)
            raise typer.Exit(1) from None
        if not prepare:
            write(name, f"{name} ({opened.manifest.name})", measured, machine, output, console)


def write(
    name: str, title: str, curves: list[Curve], machine: dict[str, object], output: Path, console: Console
) -> None:
    """The page, the numbers and the pictures of one model."""
    output.mkdir(parents=True, exist_ok=True)
    pictures = {curve.name: f"growth-{name}-{curve.name}.png" for curve in curves}
    for curve in curves:
        draw(curve, title, output / pictures[curve.name])
    text = markdown(title, curves, pictures, machine)
    (output / f"growth-{name}.md").write_text(text, encoding="utf-8")
    numbers = json.dumps(document(title, curves, machine), indent=1)
    (output / f"growth-{name}.json").write_text(numbers + "\n", encoding="utf-8")
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(f"Written to {output / f'growth-{name}.md'}, the numbers and pictures beside it.")
