"""`dragoman-train`: trains a model as a recipe says."""

import os
import signal
import sys
import threading
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from dragoman_training.errors import TrainingError, missing_extra

STOPPED = 75  # EX_TEMPFAIL: saved, not finished, to be resumed

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Device(StrEnum):
    """Where to train."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


@app.command(epilog="Exit codes: 0 finished, 1 error, 75 stopped by SIGTERM or Ctrl-C with a checkpoint saved.")
def run(
    recipe: Annotated[Path, typer.Argument(help="A recipe file, or a shipped one: g2p-en, g2p-en-quick, tiny.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The run's directory.", show_default="runs/NAME-OF-RECIPE")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Overrides a key, e.g. training.steps=1000.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the run's last checkpoint is, with the same --set.")
    ] = False,
    device: Annotated[Device, typer.Option(help="auto takes CUDA where there is one.")] = Device.auto,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; PyTorch's choice by default.")] = None,
) -> None:
    """Trains a model as RECIPE says; everything it leaves stands in the run's directory."""
    # Imported here because PyTorch takes seconds, and `--help` should not.
    try:
        from dragoman_training.recipe import find_recipe, load_recipe
        from dragoman_training.trainer import train
    except ModuleNotFoundError as error:
        print(f"error: {missing_extra(error, 'training')}", file=sys.stderr)
        raise typer.Exit(1) from None

    stop = threading.Event()

    def ask_to_stop(number: int, _: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)  # a second one means it

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask_to_stop)
    try:
        file = find_recipe(recipe)
        place = out or Path("runs") / file.stem
        outcome = train(
            load_recipe(file, set_ or []), place, resume=resume, device=device.value, threads=threads, stop=stop
        )
    except TrainingError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except OSError as error:
        print(f"error: {error.filename or 'the run'}: {error.strerror}", file=sys.stderr)
        raise typer.Exit(1) from None
    if not outcome.finished:
        print(f"stopped at step {outcome.step}, saved in {place}; --resume goes on", file=sys.stderr)
        raise typer.Exit(STOPPED)
    print(f"{place / 'model.pt'}")


def main() -> None:
    """The entry point of `dragoman-train`."""
    # NOTE: read when PyTorch is first imported. Its threads wait for each other by spinning, which beside other work on
    # the same cores makes the steps of a small model a hundred times slower. What they compute is the same.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    app()


if __name__ == "__main__":
    main()
