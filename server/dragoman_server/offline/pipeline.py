"""Keeps the engines busy: windows are read before they are needed, and written while the next one is computed."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Window = TypeVar("Window")
Begun = TypeVar("Begun")
Result = TypeVar("Result")


def run_pipeline(
    windows: Iterator[Window],
    begin: Callable[[Window], Begun],
    compute: Callable[[Window, Begun], Result],
    save: Callable[[Window, Result], None],
) -> None:
    """Reads, computes and saves windows, each stage one window ahead of the next one.

    Reading and saving have a thread each; the other stages run in the calling one. The first error of a stage is
    raised here, and nothing is saved after a window that failed.

    Args:
        windows: Yields the windows in order.
        begin: Starts a window, while the engines have the one before it to finish.
        compute: Returns the result of a window that has begun.
        save: Saves the result of a window. Calls are in order, one at a time.
    """
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as writer:
        saving: Future[None] | None = None
        window = reader.submit(next, windows, None).result()
        begun = None if window is None else begin(window)
        while window is not None:
            following = reader.submit(next, windows, None).result()
            begun_next = None if following is None else begin(following)
            assert begun is not None
            result = compute(window, begun)
            if saving is not None:
                saving.result()
            saving = writer.submit(save, window, result)
            window, begun = following, begun_next
        if saving is not None:
            saving.result()
