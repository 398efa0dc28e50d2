"""`python -m tests.platforms`: the same answers on processors that this machine is not.

Serves the model that ships, and a small one in each precision for CPUs, on this machine and on emulated processors,
and holds the answers against each other. The exit status is 0 where all are the same.

    python -m tests.platforms                       processors that CI tries
    python -m tests.platforms --processor EPYC      any that `qemu-x86_64 -cpu help` lists
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dragoman import Client, DragomanError
from dragoman.local import LocalServer, ServerStartError
from tests.platforms.answers import Answers, ask, compare
from tests.platforms.models import MODELS, make_repository
from tests.platforms.processors import PROCESSORS, missing, serving


def main(
    processor: Annotated[
        list[str] | None, typer.Option(metavar="CPU", help="One that QEMU knows; repeatable.", show_default="CI's")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="A finished run of the recipe tiny.", show_default="a new one")
    ] = None,
) -> None:
    """Compares the answers of emulated processors with those of this one."""
    if reason := missing():
        print(f"error: {reason}", file=sys.stderr)
        raise typer.Exit(2)
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory() as scratch:
        repository = make_repository(run or _train(Path(scratch) / "run", console), Path(scratch) / "models", _say)
        try:
            with serving(repository, None) as server:
                here = _ask_all(server, "this machine", console)
            results = [_compare(repository, name, here, console) for name in processor or PROCESSORS]
        except (ServerStartError, DragomanError) as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(1) from None
    raise typer.Exit(0 if all(results) else 1)


def _say(line: str) -> None:
    print(line, flush=True)


def _train(run: Path, console: Console) -> Path:
    from training.cli import main as train

    console.print("training tiny")
    sys.argv = ["dragoman-train", "tiny", "--out", str(run), "--device", "cpu"]
    try:
        train()
    except SystemExit as ended:
        if ended.code:
            raise
    return run


def _ask_all(server: LocalServer, name: str, console: Console) -> list[Answers]:
    started = time.monotonic()
    with Client(server.address) as client:
        answers = [ask(client, model) for model in MODELS]
    seconds = time.monotonic() - started
    console.print(f"{name}: ready after {server.start_seconds:.0f} s, all answers after {seconds:.0f} s more")
    return answers


def _compare(repository: Path, processor: str, here: list[Answers], console: Console) -> bool:
    with serving(repository, processor) as server:
        there = _ask_all(server, processor, console)
    results = [compare(model, a, b) for model, a, b in zip(MODELS, here, there, strict=True)]
    for result in results:
        same = result.asked - len(result.different) - len(result.ties)
        line = f"  {result.model.name:13} {same} of {result.asked} answers equal, scores within {result.largest:.1e}"
        for what, inputs in (("equally likely answers", result.ties), ("other answers", result.different)):
            if inputs:
                line += f"; {what} to {', '.join(map(repr, inputs[:5]))}"
        if not result.lone:
            line += "; other scores alone than in a batch"
        console.print(line, soft_wrap=True)
    return all(result.holds for result in results)


if __name__ == "__main__":
    typer.run(main)
