"""The entry point: trains the model of a recipe in a run directory."""

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console

from dragoman_training.data.prepare import prepare
from dragoman_training.errors import Stopped, TrainingError
from dragoman_training.files import BEGUN_FILE, MODEL_FILE, PREPARED_FOLDER, RECIPE_FILE, REPORT_FILE, read_json
from dragoman_training.optimization.allocator import finding_lack_of_memory
from dragoman_training.optimization.optimizer import warmup_warning
from dragoman_training.processes import ALONE, LostProcess, Processes
from dragoman_training.progress import ProgressBar
from dragoman_training.recipe import Recipe, save_recipe
from dragoman_training.run.changes import Changes, apply_changes
from dragoman_training.run.directory import lock_directory, prepare_directory
from dragoman_training.run.start import Start, find_start, load_start, write_start
from dragoman_training.run.teachers import check_teachers
from dragoman_training.trainer.dry_run import dry_run
from dragoman_training.trainer.finish import finish
from dragoman_training.trainer.loop import Trainer
from dragoman_training.trainer.overdue import Overdue
from dragoman_training.trainer.together import in_first, prepared, resolve_accumulate


@dataclass(frozen=True)
class Outcome:
    """The result of `train`: finished with a report, or stopped at a step with its checkpoint saved."""

    step: int
    report: dict[str, Any] | None

    @property
    def finished(self) -> bool:
        """Whether the run reached its end."""
        return self.report is not None


def train(
    recipe: Recipe,
    run: Path,
    *,
    resume: bool = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    threads: int | None = None,
    stop: threading.Event | None = None,
    max_hours: float | None = None,
    init_from: Path | None = None,
    abandon: Callable[[int | None], object] | None = None,
    console: Console | None = None,
    processes: Processes = ALONE,
    recipe_file: Path | None = None,
) -> Outcome:
    """Trains the model of a recipe and writes everything to the run directory.

    On one CPU with one thread count, the result is a function of the recipe and the data, no matter how often the run
    was stopped or killed and resumed. With several processes, each calls this; the result is the same to rounding.

    Args:
        recipe: Recipe of the run.
        run: Run directory, created if it does not exist.
        resume: Whether to continue from the last checkpoint (or from the start if there is none). The keys in
            `run.changes.CHANGEABLE` may differ from the recipe that the run was started with.
        device: Device to train on; auto uses CUDA if available.
        threads: CPU threads of PyTorch; None leaves PyTorch's default.
        stop: Event that makes the run save a checkpoint after the current step and return.
        max_hours: Hours after which the run does the same.
        init_from: Directory of a run whose weights and tokenizers this one starts from; its model and tokenizers must
            be those of the recipe. Not needed to resume.
        abandon: Ends the process, see `Overdue`, if the run does not stop within a second or two; by default it takes
            the time that a step or the preparation of the data needs.
        console: Console that shows the progress; None for standard error.
        processes: Processes that train the model together.
        recipe_file: The file of the recipe, which stays if it stands in the run directory and the data is bad.

    Raises:
        LostProcess: Another process has ended.
        TrainingError: The directory holds another run, the data is bad, training has diverged, or the memory is not
            enough. Existing checkpoints stay as they are.
    """
    torch_device = _device(device, processes)
    if threads is not None:
        torch.set_num_threads(threads)
    stop = stop or threading.Event()
    console = console or Console(stderr=True, quiet=not processes.is_first)
    with (
        ProgressBar(recipe.training.steps, console) as bar,
        _set_after(stop, max_hours),
        Overdue(stop, abandon and bar.closed_before(abandon), processes.count > 1) as overdue,
        processes.connected(torch_device, stop),
        ExitStack() as held,
    ):
        processes.first_does(lambda: held.enter_context(lock_directory(run)))
        recipe = resolve_accumulate(recipe, run, processes, resume, bar.warn, recipe_file)
        changed = processes.first_does(lambda: prepare_directory(recipe, run, resume, recipe_file))
        start = in_first(processes, lambda: find_start(recipe, run, init_from))
        report = processes.first_does(lambda: read_json(run / REPORT_FILE))
        if processes.first_does(lambda: (run / MODEL_FILE).exists()) and report is not None and not changed:
            return Outcome(report.get("steps_trained", 0), report)  # interpolated runs have made none
        processes.first_does(lambda: check_teachers(recipe))
        try:
            with finding_lack_of_memory():
                return _train(recipe, run, changed, start, torch_device, stop, bar, overdue, processes)
        except LostProcess:
            if processes.is_first and overdue.save is not None:
                raise LostProcess(overdue.save()) from None
            raise


def rehearse(
    recipe: Recipe,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    threads: int | None = None,
    stop: threading.Event | None = None,
    init_from: Path | None = None,
    console: Console | None = None,
) -> None:
    """Shows what a run would be, and leaves none; arguments and errors are those of `train`."""
    torch_device = _device(device, ALONE)
    if threads is not None:
        torch.set_num_threads(threads)
    check_teachers(recipe)
    start = load_start(recipe, init_from)
    with ProgressBar(recipe.training.steps, console or Console(stderr=True)) as bar, finding_lack_of_memory():
        dry_run(recipe, start, torch_device, (stop or threading.Event()).is_set, bar)


def prepare_data(
    recipe: Recipe,
    run: Path,
    *,
    threads: int | None = None,
    stop: threading.Event | None = None,
    init_from: Path | None = None,
    abandon: Callable[[int | None], object] | None = None,
    console: Console | None = None,
    recipe_file: Path | None = None,
) -> Path:
    """Prepares the data of a recipe for runs to come, in data.prepared or RUN/prepared; returns the folder.

    Arguments and errors are those of `train`.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    with (
        ProgressBar(recipe.training.steps, console or Console(stderr=True)) as bar,
        Overdue(stop or threading.Event(), abandon and bar.closed_before(abandon)),
        tempfile.TemporaryDirectory(prefix="dragoman-prepare-") as temporary,
    ):
        place = run if recipe.data.prepared is None else Path(temporary)
        with lock_directory(place), bar.preparing() as progress:
            prepare_directory(recipe, place, resume=False, recipe_file=recipe_file)
            start = find_start(recipe, place, init_from)
            if start is not None:
                write_start(start, place)
            prepare(recipe, place, bar.echo, progress)
    return recipe.data.prepared or run / PREPARED_FOLDER


def _train(
    recipe: Recipe,
    run: Path,
    changed: Changes,
    start: Start | None,
    device: torch.device,
    stop: threading.Event,
    bar: ProgressBar,
    overdue: Overdue,
    processes: Processes,
) -> Outcome:
    if warning := warmup_warning(recipe.training):
        bar.echo(f"warning: {warning}")
    if start is not None:
        write_start(start, run)
        bar.echo(f"starting from the weights and tokenizers of {start.run}")
    with prepared(recipe, run, processes, bar) as data:
        for line in processes.first_does(lambda: apply_changes(run, changed, recipe)):
            bar.echo(line)
        trainer = Trainer(recipe, run, data, device, stop, bar, processes)
        report: dict[str, Any] | None = None
        try:
            trainer.record_changes(changed)
            # Saved after the data was read, so that rejected data leaves no run behind, and before the first step.
            for name in (RECIPE_FILE, BEGUN_FILE):
                processes.first_does(partial(save_recipe, recipe, run / name))
            if processes.share(start is not None):
                trainer.learner.start_from(None if start is None else start.weights)
                trainer.save(None)  # a run that resumes needs the start no more
            overdue.save = trainer.save_overdue
            if trainer.run_steps():
                report = finish(trainer)
        except Stopped:
            pass  # the checkpoint is saved, and the resumed run repeats the interrupted evaluation
        finally:
            trainer.metrics_log.close()
        return Outcome(trainer.step, report)


@contextmanager
def _set_after(event: threading.Event, hours: float | None) -> Iterator[None]:
    """Sets the event when the hours have passed inside the context."""
    timer = threading.Timer(0 if hours is None else 3600 * hours, event.set)
    timer.daemon = True
    if hours is not None and timer.interval <= threading.TIMEOUT_MAX:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _device(choice: Literal["auto", "cpu", "cuda"], processes: Processes) -> torch.device:
    if choice == "cuda" and not torch.cuda.is_available():
        raise TrainingError("--device cuda: PyTorch finds no CUDA device; use --device cpu or a CUDA build of PyTorch")
    if choice == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if processes.count == 1:
        return torch.device("cuda")
    found = torch.cuda.device_count()
    if processes.local_rank >= found:
        raise TrainingError(
            f"--device {choice}: this machine has {found} CUDA devices but more processes; expected one for each "
            "(torchrun --nproc-per-node)"
        )
    torch.cuda.set_device(processes.local_rank)
    return torch.device("cuda", processes.local_rank)
