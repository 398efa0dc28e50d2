"""`python -m tests.benchmark.imports`: compares served imports with CTranslate2 and with transformers' own `generate`.

The checkpoints have random weights in the shapes of published models. CTranslate2 converts the same directories.
"""

import shutil
import tempfile
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from ctranslate2.converters import TransformersConverter

from dragoman.local import ServerStartError
from dragoman_export.bundle.options import ImportOptions
from dragoman_export.errors import ExportError
from dragoman_export.imports import read_import
from dragoman_server.bundle.load import Bundle, BundleError, load_bundle
from dragoman_server.bundle.manifest import Limits
from tests.benchmark import results
from tests.benchmark.actor import ActorError
from tests.benchmark.cli import Arithmetic
from tests.benchmark.imports.checkpoints import TARGET_TOKENS, checkpoint, sentences
from tests.benchmark.imports.comparison import measure
from tests.benchmark.machine import describe
from tests.benchmark.page import imports_table
from tests.benchmark.random_bundle import BUILD, fingerprint, unchecked
from tests.benchmark.turns import Effort

LIMITS = Limits(max_source_tokens=64, max_target_tokens=TARGET_TOKENS)
CALIBRATED = 32  # texts to calibrate integers with


class Model(StrEnum):
    """The shape of a published model."""

    marian = "opus-mt"
    t5 = "t5-small"


def imported_bundle(directory: Path, precision: Arithmetic) -> Bundle:
    """Returns the bundle of a checkpoint, made in BUILD unless the same code has made it there already."""
    place = BUILD / f"{directory.name}-{precision.value}-{fingerprint()[:12]}"
    try:
        return load_bundle(place)
    except BundleError:
        for stale in BUILD.glob(f"{directory.name}-{precision.value}-*"):
            shutil.rmtree(stale)
        original = read_import(ImportOptions("transformers", str(directory)), lambda line: None)
        original = replace(original, limits=LIMITS, sources=original.sources[:CALIBRATED])
        with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
            unchecked(original, Path(scratch), directory.name, precision.value).rename(place)
        return load_bundle(place)


def main(
    model: Annotated[list[Model] | None, typer.Option(help="Only this one.")] = None,
    precision: Annotated[list[Arithmetic] | None, typer.Option(help="Only this one.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Samples of everybody.")] = 2,
    seconds: Annotated[float, typer.Option(min=0.05, help="Length of a sample, about.")] = 0.5,
    output: Annotated[Path, typer.Option(help="Folder of imports.json, to which this adds.")] = results.RESULTS,
) -> None:
    """Measures imported models as ratios to CTranslate2 and to transformers, in one run."""
    effort, machine = Effort(rounds, seconds), describe("tests.benchmark.imports")
    found = results.read("imports", output)
    try:
        for kind in model or Model:
            directory, converted = checkpoint(kind.value), BUILD / f"ctranslate2-{kind.value}"
            workload = sentences(directory)
            TransformersConverter(str(directory)).convert(str(converted), force=True)
            for arithmetic in precision or Arithmetic:
                label = f"{kind.value} {arithmetic.value}"
                print(f"{label}: preparing the model", flush=True)
                bundle = imported_bundle(directory, arithmetic)
                measured = measure(
                    directory, bundle, converted, workload, effort, lambda what: print(f"  {what}", flush=True)
                )
                found[label] = {"machine": machine, **measured}
                results.write("imports", found, output)
    except (ActorError, BundleError, ExportError, ServerStartError) as error:
        typer.echo(f"benchmark: {error}", err=True)
        raise typer.Exit(1) from None
    print(imports_table(results.imports(output)), f"Written to {output}.", sep="\n")
