"""An object that lives in a process of its own, with calls passed to it.

Each contender has its own process, so that none is slowed down by another's threads, heap or GIL. Contenders that wait
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
        factory: Function or class of a module, called in the new process with `arguments`, which must be picklable.
        environment: Environment variables, set before the factory's module is imported.

    Attributes:
        pid: Process id.

    Raises:
        ActorError: The factory failed.
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
        """Returns the method's result.

        Raises:
            ActorError: The method raised an exception, or the process has ended.
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
