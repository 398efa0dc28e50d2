"""`dragoman-export`: makes a bundle of a run, or checks one again."""

import math
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer

from dragoman_server.bundle.manifest import Precision
from dragoman_training.errors import missing_extra

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(
    epilog="Exit codes: 0 the bundle was made, or is what it should be; 1 it was not, and nothing was written."
)
def export(
    run: Annotated[Path | None, typer.Argument(help="A directory that dragoman-train wrote.")] = None,
    bundle: Annotated[Path | None, typer.Argument(help="The bundle's directory, to be made.")] = None,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="BUNDLE", help="Check this bundle again instead of making one.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--run", metavar="RUN", help="With --check: the run the bundle was made of, to compare it with."),
    ] = None,
    attention: Annotated[
        Literal["ort", "standard"],
        typer.Option(help="ort: ONNX Runtime's own operator, faster; standard: nothing but standard ONNX."),
    ] = "ort",
    precision: Annotated[
        Precision,
        typer.Option(
            help="int8: integers throughout, the fastest on CPUs; int8-weights, int4: integers with a scale for each "
            "block of 32, smaller or closer to fp32; fp16, bf16: for GPUs, whose attention needs one of them."
        ),
    ] = "fp32",
    max_quality_loss: Annotated[
        float,
        typer.Option(
            metavar="POINTS",
            help="That a precision below fp32 may cost on dev, in the recipe's metrics; 100: whatever it costs.",
        ),
    ] = 0.1,
    cache: Annotated[
        Literal["auto", "float", "int8"],
        typer.Option(
            help="Numbers that an int8 model keeps of keys and values: integers are read faster where sequences are "
            "long and rows many; auto measures which on this machine, with data."
        ),
    ] = "auto",
    name: Annotated[
        str | None, typer.Option(help="What requests call the model.", show_default="BUNDLE's last part")
    ] = None,
    version: Annotated[str, typer.Option(help="Of the model.")] = "1",
    description: Annotated[str, typer.Option(help="One line for those who list models.")] = "",
    license_: Annotated[str, typer.Option("--license", help="Of the weights, as an SPDX expression.")] = "",
    notice: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A licence or attribution to put into the bundle; repeatable."),
    ] = None,
    example: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="An input the model is meant for; repeatable.", show_default="some of dev"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace BUNDLE if it exists.")] = False,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="To check the graphs on; auto takes a GPU where one works.")
    ] = "auto",
) -> None:
    """Makes a BUNDLE of a RUN: ONNX graphs, tokenizers and a manifest, checked against the trained model."""
    if (check is None) == (run is None) or (check is None) == (bundle is None):
        raise typer.BadParameter("pass RUN and BUNDLE to make a bundle, or --check BUNDLE to check one")
    if not 0 <= max_quality_loss < math.inf:
        raise typer.BadParameter(f"--max-quality-loss is {max_quality_loss:g}; expected 0 or more points")
    if check is not None and (precision, cache) != ("fp32", "auto"):
        raise typer.BadParameter("--precision and --cache are for making a bundle; --check takes it as it is")
    if cache == "int8" and (precision != "int8" or attention != "ort"):
        raise typer.BadParameter("--cache int8 goes with --precision int8 and --attention ort")
    if against is not None and check is None:
        raise typer.BadParameter("--run goes with --check")
    # Imported here because PyTorch takes seconds, and `--help` should not.
    from rich.console import Console

    try:
        from dragoman_export.checks.report import print_loss, print_report
        from dragoman_export.errors import CheckFailedError, ExportError
        from dragoman_export.export import ExportOptions, export_run
        from dragoman_export.export import check as check_again
    except ModuleNotFoundError as error:
        print(f"error: {missing_extra(error, 'export')}", file=sys.stderr)
        raise typer.Exit(1) from None

    console = Console(highlight=False)
    stopped: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        stopped.append(number)
        raise SystemExit(128 + number)  # not at once: what was begun is removed first

    def say(line: str) -> None:
        if stopped:  # a library swallowed what was raised
            raise SystemExit(128 + stopped[0])
        console.print(line)

    signal.signal(signal.SIGTERM, stop)
    try:
        if check is not None:
            report = check_again(check, against, device, say)
            print_report(report, console)
            if report.failures:
                raise ExportError(f"{check} is not what it should be: {report.failures[0]}")
            return
        assert run is not None
        assert bundle is not None
        options = ExportOptions(
            name=name or bundle.resolve().name,
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
        )
        manifest, report = export_run(run, bundle, options, say)
        print_report(report, console)
        print_loss(manifest.loss, console)
        for measured, value in manifest.quality.items():
            console.print(f"{measured}: {value:g}")
        size = sum(file.bytes for file in manifest.files.values())
        console.print(f"{bundle}: {len(manifest.files)} files, {size / 1e6:.1f} MB")
    except ExportError as error:
        if isinstance(error, CheckFailedError):
            print_report(error.report, console)
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def main() -> None:
    """The entry point of `dragoman-export`."""
    # NOTE: read when PyTorch is first imported. Its threads wait for each other by spinning, which beside other work on
    # the same cores makes small products a hundred times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    app()


if __name__ == "__main__":
    main()
