"""An object that lives in a process of its own, called as if it were here.

Each contender has its own process, so that none pays for another's threads, heap or interpreter lock; those that wait
for their turn sleep in a read.
"""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


class ActorError(Exception):
    """The object failed in its process; the message is its traceback."""


class Actor:
    """Builds an object in a new process and passes calls to it.

    Args:
        factory: a module's function or class, called without arguments beyond `arguments` in the new process.
        arguments: what it is called with; picklable.
        environment: variables that are set before anything of the factory's module is imported.

    Raises:
        ActorError: the factory failed.
    """

    def __init__(
        self, factory: Callable[..., object], *arguments: object, environment: dict[str, str] | None = None
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        where = (factory.__module__, factory.__qualname__)
        self._process = context.Process(target=_live, args=(theirs, where, arguments, environment or {}), daemon=True)
        self._process.start()
        theirs.close()
        self._answer()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def call(self, method: str, *arguments: object) -> Any:
        """The method's result.

        Raises:
            ActorError: the method raised, or the process is gone.
        """
        self._pipe.send((method, arguments))
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        self._pipe.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()

    def _answer(self) -> Any:
        try:
            failed, value = self._pipe.recv()
        except EOFError:
            raise ActorError(f"process {self._process.pid} ended unexpectedly") from None
        if failed:
            raise ActorError(value)
        return value


def _live(pipe: Connection, where: tuple[str, str], arguments: tuple[object, ...], environment: dict[str, str]) -> None:
    """What the new process runs: build the object, then answer calls until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business; closing the pipe ends us
    os.environ.update(environment)
    try:
        module = __import__(where[0], fromlist=[where[1]])
        target = getattr(module, where[1])(*arguments)
        pipe.send((False, None))
    except Exception:
        pipe.send((True, traceback.format_exc()))
        return
    while True:
        try:
            method, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = (False, getattr(target, method)(*arguments))
        except Exception:
            answer = (True, traceback.format_exc())
        pipe.send(answer)
