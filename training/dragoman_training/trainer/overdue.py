"""A stop that is obeyed within seconds, whatever the run is doing."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

GRACE = 1.5  # seconds that a run has to stop by itself ...
GRACE_TOGETHER = 8.0  # ... and one of several processes, which finish the step in which all of them hear of it
POLL = 0.1  # seconds


class Overdue:
    """Abandons a run that was asked to stop and is still busy: a step, or a call into a library, may take minutes.

    Args:
        stop: Event that asks the run to stop.
        abandon: Called by another thread when the run is overdue, with the step that is saved, None if there is none
            yet; it ends the process. None to let the run take its time.
        together: Whether this is one of several processes.

    Attributes:
        save: Saves what has been learned, and returns its step; None while there is nothing to save.
    """

    def __init__(
        self, stop: threading.Event, abandon: Callable[[int | None], object] | None, together: bool = False
    ) -> None:
        self.save: Callable[[], int] | None = None
        self._stop, self._abandon = stop, abandon
        self._grace = GRACE_TOGETHER if together else GRACE
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="overdue", daemon=True)

    def __enter__(self) -> Self:
        if self._abandon is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._abandon is not None:
            self._thread.join()  # Python must not end while it runs

    def _watch(self) -> None:
        while not self._over.wait(POLL):
            if self._stop.is_set() and not self._over.wait(self._grace):
                assert self._abandon is not None
                step = None if self.save is None else self.save()
                if not self._over.is_set():
                    self._abandon(step)
                return
