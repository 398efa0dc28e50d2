"""How work is stopped by SIGTERM and Ctrl-C."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

from dragoman.bulk.errors import StoppedError


class Stop:
    """Whether the work should stop; call it to ask."""

    def __init__(self) -> None:
        self._wanted = self._raises = False

    @classmethod
    def on_signals(cls) -> Self:
        """Returns a stop that the first SIGTERM or Ctrl-C requests; a second one ends the process as usual."""
        stop = cls()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop._handle)
        return stop

    def __call__(self) -> bool:
        return self._wanted

    def want(self) -> None:
        """Requests the stop: work ends when it next asks, or at once inside `interrupting`."""
        self._wanted = True
        if self._raises:
            raise StoppedError

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Lets a signal interrupt waits of the main thread, and calls into libraries that swallow no exceptions.

        Raises:
            StoppedError: The work should stop.
        """
        self._raises = True
        try:
            if self._wanted:
                raise StoppedError
            yield
        finally:
            self._raises = False

    def _handle(self, number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        self.want()
