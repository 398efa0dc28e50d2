"""`python -m tests.benchmark`: compares the server with its raw step loop and CTranslate2, and times its loop."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dragoman.local import ServerStartError
from dragoman_export.bundle.weights import UnreadableGraphError, load_model
from dragoman_export.errors import ExportError
from dragoman_server.bundle.load import Bundle, BundleError, load_bundle
from tests.benchmark import results
from tests.benchmark.actor import ActorError
from tests.benchmark.loop import measure_loop
from tests.benchmark.machine import describe
from tests.benchmark.marks import Measured
from tests.benchmark.page import marks_table
from tests.benchmark.random_bundle import BASE, BUILD, VOCABULARY, random_bundle
from tests.benchmark.serving import measure
from tests.benchmark.turns import Effort
from tests.benchmark.workload import Workload, random_symbols, real_words
from tests.support.bundles import SHIPPED_FP32, SHIPPED_G2P
from tests.support.ctranslate2_model import convert

WORDS = 2048
BASE_TEXTS, BASE_SOURCE_TOKENS, BASE_TARGET_TOKENS = 64, 16, 32


class Model(StrEnum):
    """The shipped model on real words, or the base shape with random weights."""

    small = "g2p-en"
    base = "base"


class Arithmetic(StrEnum):
    """Compared precisions: the bundle's, and CTranslate2's."""

    int8 = "int8"
    fp32 = "fp32"


def bundle_of(model: Model, precision: Arithmetic) -> Bundle:
    """Returns the bundle, exported if it does not exist yet."""
    if model is Model.base:
        return random_bundle("base", BASE, VOCABULARY, precision.value)
    return load_bundle(SHIPPED_FP32 if precision is Arithmetic.fp32 else SHIPPED_G2P)


def workload_of(model: Model, bundle: Bundle) -> Workload:
    if model is Model.small:
        return real_words(bundle, WORDS)
    return random_symbols(bundle, BASE_TEXTS, BASE_SOURCE_TOKENS, BASE_TARGET_TOKENS)


def main(
    model: Annotated[list[Model] | None, typer.Option(help="Only this one.")] = None,
    precision: Annotated[list[Arithmetic] | None, typer.Option(help="Only this one.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Samples of everybody.")] = 2,
    seconds: Annotated[float, typer.Option(min=0.05, help="Length of a sample, about.")] = 0.8,
    serve: Annotated[str, typer.Option(help="More arguments of dragoman-serve, in one string.")] = "",
    output: Annotated[Path, typer.Option(help="Folder of serving.json and loop.json, to which this adds.")] = (
        results.RESULTS
    ),
) -> None:
    """Measures served throughput and latency as ratios to the raw step loop and to CTranslate2, in one run."""
    effort, machine = Effort(rounds, seconds), describe("tests.benchmark")
    served = results.read("serving", output)
    try:
        for kind in model or Model:
            for arithmetic in precision or Arithmetic:
                label = f"{kind.value} {arithmetic.value}"
                print(f"{label}: preparing the model", flush=True)
                bundle = bundle_of(kind, arithmetic)
                workload, converted = workload_of(kind, bundle), BUILD / f"ctranslate2-{kind.value}"
                convert(load_model(bundle), bundle.source_tokenizer, bundle.target_tokenizer, converted)
                found = measure(
                    bundle, converted, workload, effort, serve.split(), lambda what: print(f"  {what}", flush=True)
                )
                served[label] = {"machine": machine, **found}
                results.write("serving", served, output)
                if label == "g2p-en int8":
                    print(f"{label}: the loop around the graphs", flush=True)
                    found = measure_loop(bundle, workload.source_ids, workload.max_new_tokens, seconds)
                    results.write("loop", {"machine": machine, **found}, output)
    except (ActorError, BundleError, ExportError, ServerStartError, UnreadableGraphError) as error:
        typer.echo(f"benchmark: {error}", err=True)
        raise typer.Exit(1) from None
    print(marks_table(Measured.of(output)), f"Written to {output}.", sep="\n")
