"""An object that lives in a process of its own, called as if it were here.

Each contender has its own process, so that none pays for another's threads, heap or interpreter lock; those that wait
for their turn sleep.
"""

import importlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

_target: Any = None
"""The object, in its process."""


class ActorError(Exception):
    """The object raised an exception in its process, or the process has ended."""


class Actor:
    """Builds an object in a new process and passes calls to it.

    Args:
        factory: a module's function or class, called with `arguments`, which are picklable, in the new process.
        environment: variables that are set before anything of the factory's module is imported.

    Attributes:
        pid: of the process.

    Raises:
        ActorError: the factory failed.
    """

    def __init__(
        self, factory: Callable[..., object], *arguments: object, environment: dict[str, str] | None = None
    ) -> None:
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        where = factory.__module__, factory.__qualname__
        try:
            self.pid: int = self._run(_build, where, arguments, environment or {})
        except ActorError:
            self.close()
            raise

    def call(self, method: str, *arguments: object) -> Any:
        """The method's result.

        Raises:
            ActorError: the method raised, or the process is gone.
        """
        return self._run(_call, method, arguments)

    def close(self) -> None:
        """Ends the process."""
        self._pool.shutdown()

    def _run(self, function: Callable[..., Any], *arguments: object) -> Any:
        try:
            return self._pool.submit(function, *arguments).result()
        except Exception as error:
            raise ActorError(f"{type(error).__name__}: {error}") from error


def _build(where: tuple[str, str], arguments: tuple[object, ...], environment: dict[str, str]) -> int:
    global _target
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    os.environ.update(environment)
    module, name = where
    _target = getattr(importlib.import_module(module), name)(*arguments)
    return os.getpid()


def _call(method: str, arguments: tuple[object, ...]) -> Any:
    return getattr(_target, method)(*arguments)
