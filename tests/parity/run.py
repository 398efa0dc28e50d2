"""Imports, asks and compares."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dragoman.local import LocalServer
from tests.parity.comparison import Findings, Plan, judge, make_plan
from tests.parity.library import Answer
from tests.parity.models import make_subject
from tests.parity.serving import ask

SETTINGS = ("--engines", "1", "--threads-per-engine", "1", "--log-requests", "none")
START_SECONDS = 300.0


def export(directory: Path, bundle: Path) -> None:
    """Imports a directory with the command.

    Raises:
        CalledProcessError: The import failed; the message is on standard error.
    """
    program = Path(sys.executable).with_name("dragoman-export")
    options = ("--from-transformers", str(directory), str(bundle), "--name", directory.name, "--device", "cpu")
    subprocess.run([str(program), *options], check=True, stdout=subprocess.DEVNULL)


def prepare(layout: str, folder: Path, texts: int, seed: int) -> Plan:
    """Imports a random model, and asks the other programs."""
    subject = make_subject(layout, folder / "directories", folder / "models", export)
    return make_plan(subject, texts, seed)


def ask_server(
    repository: Path, plans: Sequence[Plan], seed: int, advance: Callable[[int], None] = lambda count: None
) -> list[list[Answer]]:
    """Serves all models, and asks one after the other what its plan says.

    Raises:
        ServerStartError, DragomanError: The server or a call failed.
    """
    with LocalServer("--model-repository", str(repository), *SETTINGS, wait_seconds=START_SECONDS) as server:
        return [ask(server.address, plan.subject.layout, plan.tasks, seed, advance) for plan in plans]


def compare(folder: Path, layouts: Sequence[str], texts: int, seed: int, jobs: int, console: Console) -> list[Findings]:
    """Runs the comparison.

    Args:
        folder: Folder for directories and bundles; what it holds already is used.
        layouts: Keys of FAMILIES.
        texts: Texts of each family.
        seed: Seed of texts, languages and order.
        jobs: Number of worker processes.

    Raises:
        CalledProcessError, ServerStartError, DragomanError: An import, the server or a call failed.
    """
    for name in ("directories", "models"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        Progress(*columns, console=console) as progress,
        ProcessPoolExecutor(jobs, get_context("spawn")) as pool,
    ):

        def collect(title: str, futures: Sequence[Future[Plan]] | Sequence[Future[Findings]]) -> None:
            shown = progress.add_task(title, total=len(futures))
            for _ in as_completed(futures):
                progress.advance(shown)

        plans = [pool.submit(prepare, layout, folder, texts, seed) for layout in layouts]
        collect("families imported, and answered by the others", plans)
        made = [plan.result() for plan in plans]
        shown = progress.add_task("answers of the server", total=sum(len(plan.tasks) for plan in made))
        answers = ask_server(folder / "models", made, seed, partial(progress.advance, shown))
        judged = [pool.submit(judge, plan, answer) for plan, answer in zip(made, answers, strict=True)]
        collect("families compared", judged)
        return [one.result() for one in judged]
