"""What several processes need to train together: the batches of a step, and the data."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from dragoman_training.data.prepare import TrainingData, prepare
from dragoman_training.errors import TrainingError
from dragoman_training.files import (
    DATA_FILE,
    PREPARED_FOLDER,
    SOURCE_TOKENIZER,
    START_FILE,
    TARGET_TOKENIZER,
)
from dragoman_training.processes import Processes
from dragoman_training.progress import ProgressBar
from dragoman_training.recipe import Recipe, load_recipe
from dragoman_training.run.directory import begun_recipe

T = TypeVar("T")

# What process 0 made, and the others read instead: training a tokenizer again may not give the same one.
_SHARED_FILES = (SOURCE_TOKENIZER, TARGET_TOKENIZER, START_FILE, DATA_FILE)


def resolve_accumulate(
    recipe: Recipe,
    run: Path,
    processes: Processes,
    resume: bool,
    warn: Callable[[str], object],
    recipe_file: Path | None = None,
) -> Recipe:
    """Returns the recipe with the batches of a step, which a run keeps on whatever number of processes it resumes.

    If the recipe leaves them open, a new run has one for each process.

    Raises:
        TrainingError: There are fewer batches than processes, and the run has not begun.
    """
    begun = processes.first_does(lambda: _begun(run, recipe_file) if resume else None)
    training = recipe.training
    if "accumulate" not in training.model_fields_set:
        batches = processes.count if begun is None else begun
        training = training.model_copy(update={"accumulate": batches})
    if training.accumulate < processes.count:
        found = f"training.accumulate is {training.accumulate}, but there are {processes.count} processes"
        if begun is None:
            raise TrainingError(
                f"{found}: expected at least one batch of a step for each; "
                f"add --set training.accumulate={processes.count}"
            )
        warn(f"{found}: {processes.count - training.accumulate} of them have nothing to do")
    return recipe.model_copy(update={"training": training})


def _begun(run: Path, recipe_file: Path | None) -> int | None:
    """Returns the batches of a step of the run in a directory; None if there is none."""
    begun = begun_recipe(run, recipe_file)
    return None if begun is None else load_recipe(begun).training.accumulate


def in_first(processes: Processes, work: Callable[[], T]) -> T | None:
    """Has process 0 do some work whose result it keeps to itself; the others get None.

    Raises:
        TrainingError, Stopped: The work raised it; all processes do.
    """
    results: list[T] = []
    processes.first_does(lambda: results.append(work()))
    return results[0] if results else None


@contextmanager
def prepared(recipe: Recipe, run: Path, processes: Processes, bar: ProgressBar) -> Iterator[TrainingData]:
    """Prepares the data of a run in process 0, and opens it in all others.

    Those that do not see the run directory, on another machine, prepare the data as well, in a directory of their own;
    the tokenizers come from process 0.

    Raises:
        DataError: See `prepare`; or this process reads other data than process 0.
    """

    def prepare_first() -> TrainingData:
        with bar.preparing() as progress:
            return prepare(recipe, run, bar.echo, progress)

    data = in_first(processes, prepare_first)
    files = processes.first_does(
        lambda: {name: (run / name).read_bytes() for name in _SHARED_FILES if (run / name).exists()}
    )
    if data is not None:
        yield data
        return
    seen = run / PREPARED_FOLDER
    if recipe.data.prepared is None and seen.exists():
        recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"prepared": seen})})
    with tempfile.TemporaryDirectory(prefix="dragoman-train-") as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        yield prepare(recipe, Path(folder), lambda line: None)
