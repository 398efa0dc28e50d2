"""`python -m tests.benchmark.servers`: measures the server beside Triton and a plain asyncio server."""

import signal
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console

from dragoman.local import ServerStartError
from export.errors import ExportError
from server.bundle.load import Bundle, BundleError, load_bundle
from tests.benchmark.actor import ActorError
from tests.benchmark.campaign import describe_model
from tests.benchmark.cli import BUILD, UNFINISHED, Arithmetic, Model, of_precision
from tests.benchmark.machine import describe
from tests.benchmark.servers.campaign import Campaign, Effort
from tests.benchmark.servers.conversion import convert_with_tokenizers
from tests.benchmark.servers.inputs import Inputs, sentence_inputs, word_inputs
from tests.benchmark.servers.kernels import fastest_kernels
from tests.benchmark.servers.plot import draw
from tests.benchmark.servers.report import markdown
from tests.benchmark.servers.results import ModelResults, Results
from tests.benchmark.servers.settings import BATCHES, DELAY
from tests.benchmark.servers.systems import NAMES, systems
from tests.benchmark.servers.triton_setup import PINNED, TritonSetupError, set_up_triton
from tests.benchmark.translators import COMPUTE_TYPES
from tests.support.bundle_weights import UnreadableGraphError

MODULE = "tests.benchmark.servers"
WORDS = 1024


class Server(StrEnum):
    """Which server to measure; see NAMES."""

    dragoman = "dragoman"
    dragoman_infer = "dragoman-infer"
    triton = "triton"
    batching = "batching"
    single = "single"


def main(
    model: Annotated[
        Model, typer.Option(help="The shipped bundle, the base shape with random weights, or both.")
    ] = Model.both,
    precision: Annotated[Arithmetic, typer.Option(help="Of both models, and of CTranslate2.")] = Arithmetic.int8,
    server: Annotated[list[Server] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One round of short samples.")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="Samples of each point.")] = None,
    open_rounds: Annotated[int, typer.Option(min=0, help="Samples of each point with random arrivals.")] = 1,
    seconds: Annotated[float | None, typer.Option(min=0.05, help="Length of a sample, about.")] = None,
    add: Annotated[bool, typer.Option("--add", help="Go on from what was measured before.")] = False,
    stop_after: Annotated[
        float | None, typer.Option(help=f"Begin nothing new after so many seconds, and exit with {UNFINISHED}.")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=2, help="A batch size to try; may be repeated. By default 8, 32 and 64.")
    ] = None,
    delay: Annotated[
        float, typer.Option(min=0, help="Milliseconds for which batches of the largest size wait; 0 for none.")
    ] = 1000 * DELAY,
    serve: Annotated[str, typer.Option(help="More arguments of dragoman-serve, in one string.")] = "",
    output: Annotated[Path, typer.Option(help="Where servers.md, servers.json and the pictures go.")] = BUILD,
) -> None:
    """Measures Dragoman beside Triton and plain asyncio servers, over the same model, with 1 to 128 callers."""
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # or the servers would live on
    console = Console()
    effort = Effort(
        seconds=seconds or (0.5 if quick else 1.0),
        open_seconds=1.5 if quick else 4.0,
        rounds=rounds or (1 if quick else 3),
        open_rounds=open_rounds,
    )
    output.mkdir(parents=True, exist_ok=True)
    kept = output / "servers.json"
    try:
        before = add and kept.exists()
        results = Results.model_validate_json(kept.read_text(encoding="utf-8")) if before else Results()
    except ValidationError:
        console.print(f"benchmark: {kept} is not what this version writes; without --add it is written anew")
        raise typer.Exit(1) from None
    machine = describe(MODULE)
    names = [s.value for s in server] if server else list(NAMES)

    def notify(what: str) -> None:
        console.print(what, markup=False, highlight=False)

    finished = True
    try:
        if "triton" in names:
            notify(f"setting up {PINNED[0]}")
            wheel, _, release = PINNED[0].partition("==")
            machine["packages"][wheel] = release
        triton = set_up_triton(BUILD.resolve() / "triton") if "triton" in names else None
        for label in [Model.shipped, Model.base] if model is Model.both else [model]:
            if not finished:
                break
            bundle, converted, inputs = _prepare(label, precision)
            found = results.models.setdefault(f"{label.value}-{precision.value}", _nothing(bundle, inputs))
            found.measured_on(machine)
            if found.kernels is None:
                found.kernels = fastest_kernels(bundle, converted, inputs.workload, effort.seconds / 2, notify)
                results.write(kept)
            compute_type = COMPUTE_TYPES[bundle.manifest.precision]
            measured = systems(
                names,
                bundle,
                converted,
                found.kernels,
                compute_type,
                triton,
                serve.split(),
                batch or BATCHES,
                delay / 1000,
            )
            campaign = Campaign(bundle, converted, inputs, measured, effort, found, notify)
            for piece in campaign.pieces():
                if stop_after is not None and time.monotonic() - started > stop_after:
                    finished = False
                    break
                notify(f"{label.value}: {piece.what}")
                piece.work()
                results.write(kept)
    except (ActorError, BundleError, ExportError, ServerStartError, TritonSetupError, UnreadableGraphError) as error:
        console.print(f"benchmark: {error}", style="red", markup=False)
        if isinstance(error, TritonSetupError):
            console.print("The others can be measured without it: --server dragoman --server batching --server single")
        raise typer.Exit(1) from None
    report(results, output)
    if not finished:
        notify(f"Not finished, but {output / 'servers.md'} has what there is; --add goes on from {kept}.")
        raise typer.Exit(UNFINISHED)
    console.print((output / "servers.md").read_text(encoding="utf-8"), markup=False, highlight=False, soft_wrap=True)
    console.print(f"Written to {output / 'servers.md'} and {kept}, with pictures beside them.")


def report(results: Results, output: Path) -> None:
    """Writes the page and the pictures."""
    pictures = {label: f"servers-{label}.png" for label in results.models}
    for label, found in results.models.items():
        draw(found, output / pictures[label])
    (output / "servers.md").write_text(markdown(results, pictures), encoding="utf-8")


def _prepare(label: Model, precision: Arithmetic) -> tuple[Bundle, Path, Inputs]:
    """The bundle, the same for CTranslate2 with its tokenizers, and what is asked."""
    bundle = load_bundle(of_precision(label, precision))
    converted = BUILD.resolve() / f"ctranslate2-{label.value}-{precision.value}-text"
    convert_with_tokenizers(bundle, converted)
    inputs = word_inputs(bundle, WORDS) if label is Model.shipped else sentence_inputs(bundle)
    return bundle, converted, inputs


def _nothing(bundle: Bundle, inputs: Inputs) -> ModelResults:
    return ModelResults(model=describe_model(bundle), inputs=inputs.workload.title)
