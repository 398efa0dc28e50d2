"""Worker processes for the preparation of large corpora."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import Any, TypeVar

from dragoman_training.errors import TrainingError

AHEAD = 2  # tasks of each worker that are submitted before their results are wanted

_function: Callable[[Any], Any]
Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Work:
    """How a preparation is done.

    Attributes:
        workers: Number of worker processes; 1: everything is done in this process.
        progress: Callback that is told what is counted, how many there are so far, and how many in all, if that is
            known.
    """

    workers: int = 1
    progress: Callable[[str, int, int | None], object] = lambda what, count, total: None


INLINE = Work()


def ordered_map(function: Callable[[Task], Result], tasks: Iterable[Task], workers: int) -> Iterator[Result]:
    """Yields the results of tasks in their order.

    Results of the tasks before an error, of a task or of the iterable, are yielded first.

    Args:
        function: What is done with each task; must be picklable, as must be tasks and results.
        tasks: Taken from the iterable as workers become free.
        workers: Number of worker processes; 1: everything is done in this process.
    """
    if workers == 1:
        yield from map(function, tasks)
        return
    _start_quiet_tracker()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, function.__class__.__module__])
    pool = ProcessPoolExecutor(workers, context, _begin, (function,))
    try:
        yield from _results(pool, iter(tasks), workers * AHEAD)
    except BrokenProcessPool:
        raise TrainingError(
            "a process that was preparing the data was killed, perhaps for lack of memory; run the same command to "
            "continue, with a lower --threads to use fewer processes"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _results(pool: ProcessPoolExecutor, tasks: Iterator[Any], ahead: int) -> Iterator[Any]:
    submitted: deque[Future[Any]] = deque()
    error: Exception | None = None
    while True:
        try:
            while error is None and len(submitted) < ahead:
                submitted.append(pool.submit(_call, next(tasks)))
        except StopIteration:
            ahead = 0
        except Exception as caught:  # raised when its turn comes
            error = caught
        if not submitted:
            break
        yield submitted.popleft().result()
    if error is not None:
        raise error


def _start_quiet_tracker() -> None:
    """Starts the process with which `multiprocessing` cleans up after one that was killed, without its warnings."""
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before


def _begin(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the main process, which ends this one
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _call(task: Any) -> Any:
    return _function(task)


def _end_with_parent() -> None:
    """Ends the process when the main process is gone, even if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
