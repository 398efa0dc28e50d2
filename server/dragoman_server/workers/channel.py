"""A conversation between the server and a worker: a question, its answer, the next question."""

import pickle
import socket
from multiprocessing.connection import Connection
from typing import Any

from dragoman_server.runtime.device import WorkerLostError


class Channel:
    """The server's end. One thread at a time asks.

    NOTE: messages are pickled, which is safe between a process and the one that it has started, and nobody else.

    Attributes:
        calls: questions that were asked; with `busy` for whoever watches that none takes too long.
        busy: an answer is waited for.
    """

    def __init__(self, own: socket.socket) -> None:
        self._connection = Connection(own.detach())
        self.calls = 0
        self.busy = False

    def ask(self, question: str, *arguments: Any) -> Any:
        """Asks something that takes as long as it takes.

        Raises:
            WorkerLostError: the worker has ended.
            Exception: what the worker says.
        """
        try:
            self._connection.send((question, arguments))
            known, answer = self._connection.recv()
        except (OSError, EOFError, pickle.UnpicklingError):
            raise WorkerLostError("the worker process has ended") from None
        if not known:
            raise answer
        return answer

    def step(self, question: str, *arguments: Any) -> Any:
        """As `ask`, for what takes too long only where something hangs."""
        self.calls += 1
        self.busy = True
        try:
            return self.ask(question, *arguments)
        finally:
            self.busy = False

    def close(self) -> None:
        """Nothing will be asked any more, and no thread waits for an answer."""
        self._connection.close()
