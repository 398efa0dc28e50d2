"""Keeps the engines busy: windows are read before they are needed, and written while the next one is computed."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Window = TypeVar("Window")
Result = TypeVar("Result")


def run_pipeline(
    windows: Iterator[Window], compute: Callable[[Window], Result], save: Callable[[Window, Result], None]
) -> None:
    """Reads, computes and saves windows, each stage one window ahead of the next one.

    Reading and saving have a thread each; `compute` runs in the calling one. The first error of a stage is raised
    here, and nothing is saved after a window that failed.

    Args:
        windows: Yields the windows in order.
        compute: Returns the result of a window.
        save: Saves the result of a window. Calls are in order, one at a time.
    """
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as writer:
        following = reader.submit(next, windows, None)
        saving: Future[None] | None = None
        while (window := following.result()) is not None:
            following = reader.submit(next, windows, None)
            result = compute(window)
            if saving is not None:
                saving.result()
            saving = writer.submit(save, window, result)
        if saving is not None:
            saving.result()
