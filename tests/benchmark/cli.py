"""`python -m tests.benchmark`: measures the server against its own step loop and against CTranslate2."""

import json
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from dragoman.local import ServerStartError
from export.errors import ExportError
from server.bundle.load import BundleError, load_bundle, shipped_bundle
from tests.benchmark.actor import ActorError
from tests.benchmark.base_model import base_bundle
from tests.benchmark.campaign import measure, samples_ahead
from tests.benchmark.effort import Effort
from tests.benchmark.machine import describe
from tests.benchmark.marks import Kind
from tests.benchmark.outcome import Outcome
from tests.benchmark.report import document, markdown
from tests.benchmark.workload import random_symbols, real_words
from tests.full_precision import IN_FULL
from tests.support.bundle_weights import UnreadableGraphError, load_model
from tests.support.ctranslate2_model import convert

BUILD = Path(__file__).resolve().parents[2] / "build" / "bench"
WORDS, QUICK_WORDS = 2048, 512
UNFINISHED = 3  # exit status of what is measured in pieces
BASE_TEXTS, BASE_SOURCE_TOKENS, BASE_TARGET_TOKENS = 64, 16, 32


class Model(StrEnum):
    """Which model to measure."""

    shipped = "shipped"
    base = "base"
    both = "both"


class Arithmetic(StrEnum):
    """What is compared with CTranslate2's same."""

    fp32 = "fp32"
    int8 = "int8"


def of_precision(model: Model, precision: Arithmetic) -> Path:
    """The bundle of a model, exported where it is not there."""
    if model is Model.base:
        return base_bundle(BUILD, precision.value)
    return IN_FULL if precision is Arithmetic.fp32 else shipped_bundle()


def main(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="One round of short samples: a first impression in three minutes instead of ten."),
    ] = False,
    model: Annotated[
        Model, typer.Option(help="The shipped bundle, the base shape with random weights, or both.")
    ] = Model.both,
    precision: Annotated[Arithmetic, typer.Option(help="Of both models, and of CTranslate2.")] = Arithmetic.int8,
    bundle: Annotated[Path | None, typer.Option(help="Measure this bundle in place of the shipped one.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Samples of each series.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.05, help="Length of a sample, about.")] = None,
    ctranslate2: Annotated[bool, typer.Option(help="Whether CTranslate2 takes part.")] = True,
    greedy: Annotated[bool, typer.Option(help="Whether to measure greedy search.")] = True,
    open_loop: Annotated[bool, typer.Option(help="Whether to measure random arrivals too.")] = True,
    beam: Annotated[bool, typer.Option(help="Whether to measure beam search.")] = True,
    short_list: Annotated[bool, typer.Option(help="Whether to measure a short list of a large vocabulary.")] = True,
    operators: Annotated[bool, typer.Option(help="Whether to measure where the time of the graphs goes.")] = True,
    serve: Annotated[str, typer.Option(help="More arguments of dragoman-serve, in one string.")] = "",
    output: Annotated[Path, typer.Option(help="Where benchmark-PRECISION.md and .json go.")] = BUILD,
) -> None:
    """Measures served throughput and latency as ratios to the raw step loop and to CTranslate2, in one run."""
    console = Console()
    machine = describe()
    effort = Effort(
        seconds=seconds or (0.6 if quick else 1.2),
        rounds=rounds or (1 if quick else 3),
        open_seconds=(1.5 if quick else 4.0) if open_loop else 0.0,
        ctranslate2=ctranslate2,
        greedy=greedy,
        beam=beam,
        short_list=short_list,
        operators=operators,
    )
    names = [Model.shipped, Model.base] if model is Model.both else [model]
    BUILD.mkdir(parents=True, exist_ok=True)
    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    outcomes: list[Outcome] = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(names) * (samples_ahead(effort) + 1))

        def notify(name: str, what: str) -> None:
            progress.update(task, advance=1, description=f"{name}: {what}")
            if not console.is_terminal:  # a log has no use for a bar, but for lines
                console.print(f"{name}: {what}")

        for name in names:
            label = name.value
            notify(label, "preparing the model")
            try:
                opened = load_bundle(bundle if bundle and name is Model.shipped else of_precision(name, precision))
                converted = BUILD / f"ctranslate2-{label}"
                if ctranslate2:
                    convert(load_model(opened), opened.source_tokenizer, opened.target_tokenizer, converted)
                if name is Model.shipped:
                    workload = real_words(opened, QUICK_WORDS if quick else WORDS)
                else:
                    workload = random_symbols(opened, BASE_TEXTS, BASE_SOURCE_TOKENS, BASE_TARGET_TOKENS)
                kind: Kind = "shipped" if name is Model.shipped else "base"
                outcomes.append(
                    measure(kind, opened, converted, workload, effort, serve.split(), partial(notify, label))
                )
            except (ActorError, BundleError, ExportError, ServerStartError, UnreadableGraphError) as error:
                console.print(f"benchmark: {label}: {error}", style="red", markup=False)
                raise typer.Exit(1) from None
    output.mkdir(parents=True, exist_ok=True)
    text = markdown(outcomes, machine)
    page, numbers = (output / f"benchmark-{precision.value}.{kind}" for kind in ("md", "json"))
    page.write_text(text, encoding="utf-8")
    numbers.write_text(json.dumps(document(outcomes, machine), indent=1) + "\n", encoding="utf-8")
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(f"Written to {page} and {numbers}.")
