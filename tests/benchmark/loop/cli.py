"""`python -m tests.benchmark.loop`: what stands around the graphs, in an engine and in a call."""

import cProfile
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dragoman.local import ServerStartError
from export.errors import ExportError
from server.bundle.load import BundleError, load_bundle, shipped_bundle
from tests.benchmark.actor import ActorError
from tests.benchmark.campaign import describe_model
from tests.benchmark.loop.calls import measure_calls
from tests.benchmark.loop.report import document, functions, markdown
from tests.benchmark.loop.turns import Loop
from tests.benchmark.machine import describe
from tests.benchmark.workload import real_words

BUILD = Path(__file__).resolve().parents[3] / "build" / "bench"
ROWS, PROFILED_ROWS = (1, 8, 32, 64), 32
IN_FLIGHT = (1, 8, 64)
WORDS = 2048


def main(
    bundle: Annotated[Path | None, typer.Option(help="Measure this bundle in place of the shipped one.")] = None,
    seconds: Annotated[float, typer.Option(min=0.05, help="Length of a sample, about.")] = 1.5,
    calls: Annotated[bool, typer.Option(help="Whether to measure calls of a server too.")] = True,
    output: Annotated[Path, typer.Option(help="Where loop.md, loop.json and loop-profile.txt go.")] = BUILD,
) -> None:
    """Measures how much of an engine's time is not spent in the graphs, and where the time of a call goes."""
    console = Console()
    machine = describe("tests.benchmark.loop")
    output.mkdir(parents=True, exist_ok=True)
    try:
        opened = load_bundle(bundle or shipped_bundle())
        workload = real_words(opened, WORDS)
        loop = Loop(opened, workload.source_ids, workload.max_new_tokens)
        turns = [loop.measure(rows, seconds) for rows in ROWS]
        profile = cProfile.Profile()
        loop.measure(PROFILED_ROWS, seconds, profile)
        measured = (
            measure_calls(opened.path, workload.unary(), IN_FLIGHT, seconds, output / "loop-server.log")
            if calls
            else []
        )
    except (ActorError, BundleError, ExportError, ServerStartError) as error:
        console.print(f"benchmark: {error}", style="red", markup=False)
        raise typer.Exit(1) from None
    title = describe_model(opened)
    text = markdown(title, turns, measured, machine)
    (output / "loop.md").write_text(text, encoding="utf-8")
    numbers = json.dumps(document(title, turns, measured, machine, precision=opened.manifest.precision), indent=1)
    (output / "loop.json").write_text(numbers + "\n", encoding="utf-8")
    (output / "loop-profile.txt").write_text(functions(profile), encoding="utf-8")
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(f"Written to {output / 'loop.md'}; the numbers, and a profile of {PROFILED_ROWS} rows, beside it.")
