"""Runs `dragoman-export` in processes that are forks of one with PyTorch and transformers: as alone, but fast."""

import multiprocessing
import os
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path

MODULES = (
    "dragoman_export.export",
    "transformers.models.auto.modeling_auto",
    "transformers.models.bart.modeling_bart",
    "transformers.models.marian.modeling_marian",
    "transformers.models.t5.modeling_t5",
)
SCRATCH = "scratch"  # the working directory, which also gets temporary files
LEFT_BY_RUN = (SCRATCH, "stdout", "stderr")
LONGEST = 60.0  # seconds; far more than any of these tests needs


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit status, and all that reached standard error, also from C++."""

    status: int | None
    errors: str


def forking_context() -> ForkServerContext:
    """Returns the context whose processes are forks of one with `MODULES`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*MODULES])
    return context


def run_forked(context: ForkServerContext, folder: Path, *arguments: str | Path) -> Ended:
    """Runs the command in folder / SCRATCH."""
    (folder / SCRATCH).mkdir()
    process = context.Process(target=_run, args=(folder, [*map(str, arguments)]))
    process.start()
    process.join(LONGEST)
    if process.is_alive():  # the damage was not found
        process.kill()
        process.join()
    return Ended(process.exitcode, (folder / "stderr").read_text())


def _run(folder: Path, arguments: list[str]) -> None:
    for descriptor, name in enumerate(("stdout", "stderr"), 1):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), descriptor)
    os.chdir(folder / SCRATCH)
    tempfile.tempdir = str(folder / SCRATCH)

    from dragoman_export.cli import main

    sys.argv = ["dragoman-export", *arguments]
    main()
