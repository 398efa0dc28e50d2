"""`dragoman-export`: exports a run or a published model to a bundle, or checks a bundle again."""

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer
from rich.console import Console

from dragoman_export.bundle.existing import made_before
from dragoman_export.bundle.options import (
    CHECK_SAMPLES,
    MOST_LOST,
    MOST_LOST_BY_IMPORTS,
    CacheChoice,
    ExportOptions,
    ImportOptions,
    Program,
)
from dragoman_export.errors import ExportError
from dragoman_export.places import last_part
from dragoman_server.bundle.manifest import Attention, Precision
from dragoman_training.errors import missing_extra
from dragoman_training.startup import importing

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog="Exit status: 0 the bundle was made, or passed the check; 1 it was not made, or failed the check.")
def export(
    run: Annotated[
        Path | None, typer.Argument(help="A directory that dragoman-train wrote; not with --from-...")
    ] = None,
    bundle: Annotated[Path | None, typer.Argument(help="The directory of the bundle to make.")] = None,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="BUNDLE", help="Check this bundle again instead of making one.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--run", metavar="RUN", help="With --check: the run to compare the bundle with."),
    ] = None,
    from_transformers: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Export this model instead of a run: a directory that Hugging Face's transformers saved, or the name "
            "of a repository on its hub.",
        ),
    ] = None,
    from_ctranslate2: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Export this model instead of a run: a directory in float32, float16 or bfloat16 that a CTranslate2 "
            "converter wrote.",
        ),
    ] = None,
    from_marian: Annotated[
        str | None,
        typer.Option(metavar="NPZ", help="Export this model instead of a run: a model.npz that Marian trained."),
    ] = None,
    tokenizer: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="With --from-ctranslate2: Hugging Face directory with the tokenizer, and optionally "
            "generation_config.json. With --from-marian: such a directory, or that of vocab.yml and the .spm files, or "
            "these files; repeatable, source first.",
            show_default=False,
        ),
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(
            help="With --from-transformers: branch, tag or commit on the hub.", show_default="the newest commit"
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="With --from-...: generation setting to ignore; repeatable.",
            show_default=False,
        ),
    ] = None,
    sources: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --from-...: typical inputs, one per line, on which graphs and model are compared.",
            show_default="sentences in many languages",
        ),
    ] = None,
    attention: Annotated[
        Attention,
        typer.Option(help="ort: ONNX Runtime's own operator, faster; standard: only standard ONNX operators."),
    ] = "ort",
    precision: Annotated[
        Precision,
        typer.Option(
            help="int8: 8-bit integers throughout, the fastest on CPUs; int8-weights, int4: integer weights with a "
            "scale for each block of 32, closer to fp32 or smaller; fp16, bf16: for GPUs, whose attention needs one of "
            "them."
        ),
    ] = "fp32",
    max_quality_loss: Annotated[
        float | None,
        typer.Option(
            metavar="POINTS",
            help="How much quality a precision below fp32 may cost, in points: of a run's metrics on dev, or of chrF "
            "against an imported model's own answers in fp32, where small changes cost several points; 100: any loss.",
            show_default="0.1, 10 for an import",
        ),
    ] = None,
    cache: Annotated[
        CacheChoice,
        typer.Option(
            help="Precision of the KV cache of an int8 model. Integers are faster for long sequences and many rows; "
            "auto measures which is faster on this machine, with the run's data."
        ),
    ] = "auto",
    shortlist: Annotated[
        bool,
        typer.Option(
            "--shortlist/--no-shortlist",
            help="Add a lexical shortlist if the model has a large vocabulary: the target tokens that are likely for a "
            "source. The server uses it by default if it costs no quality and makes steps faster.",
        ),
    ] = True,
    shortlist_from: Annotated[
        Path | None,
        typer.Option(
            metavar="PAIRS",
            help="Make the shortlist from this file of source<TAB>target, and for a small vocabulary too.",
            show_default="the training pairs of RUN",
        ),
    ] = None,
    carry_text: Annotated[
        bool,
        typer.Option(
            "--carry-text",
            help="Emoji, words in other scripts, addresses and the like, which the source tokenizer has no characters "
            "for, skip the model and are put back into its answers.",
        ),
    ] = False,
    check_samples: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="How much of a large model to check: at most N texts whose answers are compared, and batches of at "
            "most N rows.",
        ),
    ] = CHECK_SAMPLES,
    name: Annotated[
        str | None, typer.Option(help="Model name that clients use.", show_default="BUNDLE's last part")
    ] = None,
    version: Annotated[str, typer.Option(help="Version of the model.")] = "1",
    description: Annotated[str, typer.Option(help="One line that describes the model in lists.")] = "",
    license_: Annotated[
        str,
        typer.Option(
            "--license",
            help="License of the weights, an SPDX expression.",
            show_default="that of the model card of an import",
        ),
    ] = "",
    notice: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="License or attribution file to copy into the bundle; repeatable."),
    ] = None,
    example: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Typical input of the model; repeatable.", show_default="some of dev"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace BUNDLE if it exists.")] = False,
    if_needed: Annotated[
        bool,
        typer.Option(
            "--if-needed",
            help="With --from-...: do nothing if BUNDLE already is this model in this precision, at this "
            "commit if --revision names one.",
        ),
    ] = False,
    to_run: Annotated[
        bool,
        typer.Option(
            "--to-run",
            help="Make a run instead of a bundle, to continue training from the weights of a bundle or a published "
            "model: `dragoman-export --to-run BUNDLE RUN`, then `dragoman-train RECIPE --init-from RUN`.",
        ),
    ] = False,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="Device to check the graphs on; auto: a GPU if one works.")
    ] = "auto",
) -> None:
    """Export RUN or a published model to BUNDLE: ONNX graphs, tokenizers and a manifest, checked against the model."""
    models: dict[Program, str | None] = {
        "transformers": from_transformers,
        "ctranslate2": from_ctranslate2,
        "marian": from_marian,
    }
    imported = _import_options(
        models, ImportOptions("transformers", "", tokenizer or [], revision, ignore or [], sources)
    )
    if to_run:
        model, place = (run, bundle) if imported is None else (imported, run)
        if check is not None or model is None or place is None or (imported is not None and bundle is not None):
            raise typer.BadParameter(
                "--to-run needs a bundle, or a model such as --from-transformers, and the run to make of it"
            )
        _make_run(model, place)
        return
    if imported is not None:
        if bundle is not None or against is not None:
            raise typer.BadParameter(f"--from-{imported.program} takes the place of RUN; pass no run beside it")
        if check is None:
            run, bundle = Path(imported.model), run
    if (check is None) == (run is None) or (check is None) == (bundle is None):
        raise typer.BadParameter("pass RUN and BUNDLE to make a bundle, or --check BUNDLE to check one")
    if max_quality_loss is None:
        max_quality_loss = MOST_LOST if imported is None else MOST_LOST_BY_IMPORTS
    options = ExportOptions(
        name=name or (last_part(bundle) if bundle is not None else ""),
        version=version,
        description=description,
        license=license_,
        attention=attention,
        precision=precision,
        max_quality_loss=max_quality_loss,
        cache=cache,
        notices=notice or [],
        examples=example or [],
        overwrite=overwrite,
        device=device,
        carry_text=carry_text,
        check_samples=check_samples,
        shortlist=shortlist,
        shortlist_from=shortlist_from,
    )
    _refuse_contradictions(options, checks=check is not None)
    if against is not None and check is None:
        raise typer.BadParameter("--run needs --check")
    if if_needed and (imported is None or check is not None):
        raise typer.BadParameter("--if-needed needs an import, such as --from-transformers, and no --check")
    if check is not None:
        _check_again(check, imported or against, options)
        return
    assert run is not None
    assert bundle is not None
    if if_needed and imported is not None:
        with _reporting_errors("import"):
            if made_before(bundle, imported, precision, overwrite=overwrite, carry_text=carry_text):
                print(f"{bundle} is already there")
                return
    _make_bundle(imported or run, bundle, options)


def _refuse_contradictions(options: ExportOptions, *, checks: bool) -> None:
    """Refuses options that exclude each other, or do not apply to a check."""
    precision = options.precision
    if not 0 <= options.max_quality_loss < math.inf:
        raise typer.BadParameter(f"--max-quality-loss is {options.max_quality_loss:g}; expected 0 or more points")
    if checks and (precision, options.cache) != ("fp32", "auto"):
        raise typer.BadParameter("--precision and --cache apply only when making a bundle, not to --check")
    if options.cache == "int8" and (precision != "int8" or options.attention != "ort"):
        raise typer.BadParameter("--cache int8 needs --precision int8 and --attention ort")
    if options.carry_text and checks:
        raise typer.BadParameter("--carry-text applies only when making a bundle, not to --check")
    if options.shortlist_from is not None and (not options.shortlist or checks):
        raise typer.BadParameter("--shortlist-from excludes --no-shortlist and --check")
    if options.shortlist_from is not None and precision in ("fp16", "bf16"):
        raise typer.BadParameter(f"--shortlist-from needs a precision for CPUs, and --precision is {precision}")


def _check_again(bundle: Path, origin: Path | ImportOptions | None, options: ExportOptions) -> None:
    """Checks a bundle, with the run or the model that it was made from if that is given, and prints the report."""
    with _reporting_errors("export"), importing():  # here because PyTorch takes seconds, and `--help` should not
        from dragoman_export.checks.report import print_report
        from dragoman_export.export import check
    console = Console(highlight=False)
    say = _until_terminated(console, timed=isinstance(origin, ImportOptions))
    with _reporting_errors("import"):
        report = check(bundle, origin, options.device, say, samples=options.check_samples)
        print_report(report, console)
        if report.failures:
            raise ExportError(f"{bundle} failed the check: {report.failures[0]}")


def _make_bundle(source: Path | ImportOptions, bundle: Path, options: ExportOptions) -> None:
    """Exports a run or a model of another program, and prints what was found."""
    with _reporting_errors("export"), importing():
        from dragoman_export.checks.report import CheckFailedError, print_loss, print_report, print_shortlist
        from dragoman_export.export import export_import, export_run
    console = Console(highlight=False)
    say = _until_terminated(console, timed=isinstance(source, ImportOptions))
    with _reporting_errors("import"):
        try:
            if isinstance(source, Path):
                manifest, report = export_run(source, bundle, options, say)
            else:
                manifest, report = export_import(source, bundle, options, say)
        except CheckFailedError as error:
            print_report(error.report, console)
            raise
        print_report(report, console)
        print_loss(manifest.loss, console)
        print_shortlist(manifest.shortlist, console)
        for metric, value in manifest.quality.items():
            console.print(f"{metric}: {value:g}")
        size = sum(file.bytes for file in manifest.files.values())
        console.print(f"{bundle}: {len(manifest.files)} files, {size / 1e6:.1f} MB")


def _make_run(model: Path | ImportOptions, run: Path) -> None:
    """Makes a run from a bundle or a published model."""
    with _reporting_errors("export"), importing():
        from dragoman_export.to_run.bundles import run_of_bundle
        from dragoman_export.to_run.imports import run_of_import
    say = _until_terminated(Console(highlight=False), timed=False)
    with _reporting_errors("import"):
        if isinstance(model, Path):
            run_of_bundle(model, run, say)
        else:
            run_of_import(model, run, say)
    print(run)


@contextmanager
def _reporting_errors(extra: str) -> Iterator[None]:
    """Turns a failure into one sentence on standard error and exit status 1.

    Args:
        extra: The extra with the packages that the block imports.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        print(f"error: {missing_extra(error, extra)}", file=sys.stderr)
        raise typer.Exit(1) from None
    except (ExportError, OSError) as error:  # OSError, of a name that is too long for any file, say
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def _import_options(models: Mapping[Program, str | None], options: ImportOptions) -> ImportOptions | None:
    """Returns the options of an import; None for the export of a run.

    Args:
        models: The model by program, None for no such option.
        options: The other options.
    """
    given = [(program, model) for program, model in models.items() if model is not None]
    if not given:
        if options.tokenizer or options.revision is not None or options.ignore or options.sources is not None:
            raise typer.BadParameter(
                "--tokenizer, --revision, --ignore and --sources need an import, such as --from-transformers"
            )
        return None
    if len(given) > 1:
        raise typer.BadParameter(" and ".join(f"--from-{program}" for program, _ in given) + " exclude each other")
    [(program, model)] = given
    if program == "transformers" and options.tokenizer:
        raise typer.BadParameter(
            "--from-transformers takes the tokenizer from the model's directory; pass no --tokenizer"
        )
    if program != "transformers" and options.revision is not None:
        raise typer.BadParameter("--revision needs --from-transformers")
    return replace(options, program=program, model=model)


def _until_terminated(console: Console, *, timed: bool) -> Callable[[str], None]:
    """Makes SIGTERM end the export after cleaning up, and returns a function that prints lines until then.

    Args:
        console: Where to print.
        timed: Whether each line starts with the seconds since now.
    """
    received: list[int] = []
    start = time.monotonic()

    def stop(number: int, _: FrameType | None) -> None:
        received.append(number)
        raise SystemExit(128 + number)  # an exception, so that unfinished files are removed first

    def say(line: str) -> None:
        if received:  # a library swallowed the exception
            raise SystemExit(128 + received[0])
        console.print(f"{time.monotonic() - start:4.0f} s  {line}" if timed else line)

    signal.signal(signal.SIGTERM, stop)
    return say


def main() -> None:
    """Runs `dragoman-export`."""
    # NOTE: read when PyTorch is first imported. Its threads wait for each other by spinning, which beside other work on
    # the same cores makes small products a hundred times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    app()


if __name__ == "__main__":
    main()
