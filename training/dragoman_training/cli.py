"""The command `dragoman-train`: trains the model that a recipe describes."""

import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from dragoman_training.errors import TrainingError, missing_extra
from dragoman_training.startup import configure_process, importing

if TYPE_CHECKING:
    from dragoman_training.processes import Processes

EXIT_STOPPED = 75  # EX_TEMPFAIL: stopped with a checkpoint saved, to be resumed

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Device(StrEnum):
    """The device to train on."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


@app.command(
    epilog="Exit status: 0 finished, 1 failed, 75 stopped with a checkpoint saved, by SIGTERM, Ctrl-C or --max-hours. "
    "On several GPUs or machines: torchrun --nproc-per-node 2 -m dragoman_training RECIPE ..."
)
def run(
    recipe: Annotated[
        Path, typer.Argument(help="A recipe file, or a shipped recipe such as g2p-en, tatoeba-de-en or tiny.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The run directory.", show_default="runs/NAME-OF-RECIPE")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe key, e.g. training.steps=1000."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue from the last checkpoint; repeat the --set options of the run. Those that only affect the "
            "steps to come may change, such as training.steps.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show batches, parameters, memory and the time the run will take, after a few steps; create no run.",
        ),
    ] = False,
    prepare: Annotated[
        bool,
        typer.Option(
            "--prepare",
            help="Prepare the data in the recipe's data.prepared, or RUN/prepared, and exit; runs then start at once.",
        ),
    ] = False,
    init_from: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Start from the weights and tokenizers of another run, to train with other data; "
            "`dragoman-export --to-run` turns a bundle or a published model into a run.",
        ),
    ] = None,
    device: Annotated[Device, typer.Option(help="auto uses CUDA if available.")] = Device.auto,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="CPU threads; by default PyTorch decides, or 1 under torchrun.")
    ] = None,
    max_hours: Annotated[
        float | None,
        typer.Option(metavar="HOURS", min=0, help="Stop with a checkpoint after this time, to be resumed."),
    ] = None,
) -> None:
    """Train the model that RECIPE describes and write everything to the run directory."""
    # Importing PyTorch takes seconds, and --help should not wait for it.
    try:
        with importing():
            from dragoman_training.processes import ALONE, Processes
            from dragoman_training.recipe import find_recipe, load_recipe
            from dragoman_training.trainer import prepare_data, rehearse, train
    except ModuleNotFoundError as error:
        print(f"error: {missing_extra(error, 'training')}", file=sys.stderr)
        raise typer.Exit(1) from None

    if dry_run and prepare:
        raise typer.BadParameter("--dry-run and --prepare exclude each other; give one of them")
    processes = ALONE
    try:
        processes = Processes.of_environment()
        stop = _stop_on_signals(patient=processes.count > 1 or "TORCHELASTIC_RUN_ID" in os.environ)
        file = find_recipe(recipe)
        directory = out or Path("runs") / file.stem
        loaded = load_recipe(file, set_ or [])
        if processes.count > 1 and (dry_run or prepare):
            option = "--dry-run" if dry_run else "--prepare"
            raise TrainingError(f"{option} needs one process, not {processes.count}; start it without torchrun")
        if dry_run:
            rehearse(loaded, device=device.value, threads=threads, stop=stop, init_from=init_from)
            return
        if prepare:
            folder = prepare_data(
                loaded,
                directory,
                threads=threads,
                stop=stop,
                init_from=init_from,
                abandon=_preparation_abandoned,
                recipe_file=file,
            )
            print(folder)
            return
        outcome = train(
            loaded,
            directory,
            resume=resume,
            device=device.value,
            threads=threads,
            stop=stop,
            max_hours=max_hours,
            init_from=init_from,
            abandon=lambda step: _abandoned(step, directory, processes),
            processes=processes,
            recipe_file=file,
        )
    except (TrainingError, OSError) as error:
        if processes.may_speak():
            print(f"error: {_sentence(error)}", file=sys.stderr, flush=True)
        processes.leave()
        raise typer.Exit(1) from None
    if processes.is_first:
        if outcome.finished:
            print(f"{directory / 'model.pt'}")
        else:
            print(f"stopped at step {outcome.step}, saved in {directory}; continue with --resume", file=sys.stderr)
    processes.leave()
    if not outcome.finished:
        raise typer.Exit(EXIT_STOPPED)


def _sentence(error: TrainingError | OSError) -> str:
    """Returns what is wrong, in one sentence."""
    if isinstance(error, OSError):
        return f"{error.filename or 'the run'}: {error.strerror or error}"
    return str(error)


def _stop_on_signals(patient: bool = False) -> threading.Event:
    """Returns an event that the first SIGTERM or Ctrl-C sets; a second one ends the process as usual.

    Args:
        patient: Whether further signals change nothing. A launcher such as torchrun sends its own after that of the
            terminal, and ends what does not stop in time.

    NOTE: Python runs a handler between two of its own instructions, but a library may keep the main thread for minutes.
    A thread of its own therefore waits for signals, too.
    """
    stop = threading.Event()
    heard, told = socket.socketpair()
    told.setblocking(False)

    def handle(number: int, _: FrameType | None) -> None:
        stop.set()
        if not patient:
            signal.signal(number, signal.SIG_DFL)

    def listen(_told: socket.socket) -> None:  # which is open as long as somebody listens
        heard.recv(1)
        stop.set()
        (number,) = heard.recv(1)  # the main thread has not run the handler in the meantime
        while patient:
            heard.recv(1)
        os._exit(128 + number)

    signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    threading.Thread(target=listen, args=(told,), name="signals", daemon=True).start()
    return stop


def _abandoned(step: int | None, directory: Path, processes: "Processes") -> NoReturn:
    """Ends the process while the main thread is busy."""
    where = "while preparing the data" if step is None else f"at step {step}, saved in {directory}"
    if processes.is_first and processes.may_speak():
        print(f"stopped {where}; continue with --resume", file=sys.stderr, flush=True)
    os._exit(EXIT_STOPPED)


def _preparation_abandoned(_step: int | None) -> NoReturn:
    """Ends the process while the data is prepared."""
    print("stopped while preparing the data; run the same command to continue", file=sys.stderr, flush=True)
    os._exit(EXIT_STOPPED)


def main() -> None:
    """Entry point of `dragoman-train`."""
    configure_process()
    try:
        app()
    except SystemExit as end:
        failed_together = bool(end.code) and os.environ.get("WORLD_SIZE", "1") != "1"
        if end.code != EXIT_STOPPED and not failed_together:
            raise
        # All files are closed. Python would free its modules one by one, which takes seconds on a busy machine, while
        # threads of Gloo, which may still wait for another process, can abort this one.
        for stream in filter(None, (sys.stdout, sys.stderr)):  # a closed one is None
            with suppress(OSError):  # nobody may be reading
                stream.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)


if __name__ == "__main__":
    main()
