"""`python -m tests.platforms`: checks that emulated processors give the same answers as this machine.

Serves the shipped model, and a small model in each CPU precision, on this machine and on emulated processors, and
compares the answers. The exit status is 0 if they are the same: on x86 all of them, except for ties in blockwise
precisions on processors without AVX2; on ARM64 99 of 100 or all but one, where the others must be ties.

    python -m tests.platforms                       the x86 processors that CI tests
    python -m tests.platforms --processor EPYC      any processor that `qemu-x86_64 -cpu help` lists
    python -m tests.platforms --arm64               ARM64, in a Debian that is built in build/arm64
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from dragoman import Client, DragomanError
from dragoman.local import LocalServer, ServerStartError
from dragoman_export.errors import ExportError
from dragoman_export.export import ExportOptions, export_run
from tests.platforms import arm64
from tests.platforms.answers import Answers, Comparison, ask, compare
from tests.platforms.models import MODELS, Model, make_repository
from tests.platforms.processors import PROCESSORS, command, missing, serving, unknown

ARM64 = arm64.ROOT / "build" / "arm64"


def main(
    processor: Annotated[
        list[str] | None,
        typer.Option(metavar="CPU", help="A processor that QEMU knows; repeatable.", show_default="CI's"),
    ] = None,
    on_arm64: Annotated[bool, typer.Option("--arm64", help="Emulate ARM64 processors instead.")] = False,
    run: Annotated[
        Path | None, typer.Option(help="A finished run of the recipe tiny.", show_default="a new one")
    ] = None,
) -> None:
    """Compares the answers of emulated processors with those of this machine."""
    if reason := arm64.missing() if on_arm64 else missing() or unknown(processor or []):
        print(f"error: {reason}", file=sys.stderr)
        raise typer.Exit(2)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            repository = _make_repository(run or _train(Path(scratch) / "run"), Path(scratch))
            with serving(repository) as server:
                expected = _ask_all(server, "this machine")
            comparisons = (
                _on_arm64(repository, expected, processor) if on_arm64 else _on_x86(repository, expected, processor)
            )
            passed = [comparison.passed for comparison in comparisons]
        except (ExportError, ServerStartError, DragomanError, arm64.NoMachineError) as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(1) from None
    raise typer.Exit(0 if all(passed) else 1)


def _on_x86(repository: Path, expected: list[Answers], processors: list[str] | None) -> Iterator[Comparison]:
    for name in processors or PROCESSORS:
        with serving(repository, command(name)) as server:
            actual = _ask_all(server, name)
        yield from _compare_all(expected, actual, lambda model: not model.blockwise)


def _on_arm64(repository: Path, expected: list[Answers], processors: list[str] | None) -> Iterator[Comparison]:
    _print(f"preparing an ARM64 machine in {ARM64}")
    machine = arm64.prepare(ARM64)
    for name in processors or arm64.PROCESSORS:
        with serving(repository, machine.command(name), machine.environment()) as server:
            actual = _ask_all(server, name)
        yield from _compare_all(expected, actual, lambda _: False)


def _compare_all(
    expected: list[Answers], actual: list[Answers], exact: Callable[[Model], bool]
) -> Iterator[Comparison]:
    for model, a, b in zip(MODELS, expected, actual, strict=True):
        result = compare(model, a, b, exact=exact(model))
        _print(f"  {result}")
        yield result


def _print(line: str) -> None:
    print(line, flush=True)


def _train(run: Path) -> Path:
    _print("training tiny")
    program = Path(sys.executable).with_name("dragoman-train")
    subprocess.run([program, "tiny", "--out", run, "--device", "cpu"], check=True, stdout=subprocess.DEVNULL)
    return run


def _make_repository(run: Path, scratch: Path) -> Path:
    _print("exporting fp32")
    export_run(run, scratch / "fp32", ExportOptions(name="fp32"))
    return make_repository(run, scratch / "fp32", scratch / "models", _print)


def _ask_all(server: LocalServer, name: str) -> list[Answers]:
    started = time.monotonic()
    with Client(server.address) as client:
        answers = [ask(client, model) for model in MODELS]
    seconds = time.monotonic() - started
    _print(f"{name}: ready after {server.start_seconds:.0f} s, all answers after {seconds:.0f} s more")
    return answers


if __name__ == "__main__":
    typer.run(main)
