"""The worker process: loads models, and answers what engine threads of the server ask, each in a thread of its own.

    python -m dragoman_server.workers.process DESCRIPTOR

DESCRIPTOR is a socket, inherited from the server. A byte of PING on it is answered with the same; one of OPEN brings
another socket, for a Channel. Where it is closed the server has ended, and so does the worker.
"""

import ctypes
import itertools
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from numpy.typing import NDArray

from dragoman_server.bundle.load import Bundle, BundleError
from dragoman_server.core.search import StepRequest, StepResult
from dragoman_server.engine.host import LocalModel
from dragoman_server.engine.layout import EngineOptions
from dragoman_server.machine import trim_memory
from dragoman_server.runtime.device import Device, DeviceError, first_line, is_out_of_memory
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.scorer_session import ScorerSession, TargetScores

PING, OPEN, READY = b"p", b"o", b"r"
PR_SET_PDEATHSIG = 1  # prctl(2)

Copies = Sequence[tuple[int, int, int | None, int]]


class Desk:
    """Answers one channel's questions. Its methods are what can be asked, see server.workers.remote."""

    _models: dict[int, LocalModel] = {}  # noqa: RUF012 - of the process, for all of its desks
    _keys = itertools.count()

    def __init__(self) -> None:
        self._key: int | None = None
        self._runtime: Runtime | None = None
        self._scorer: ScorerSession | None = None

    def load(self, bundle: Bundle, options: EngineOptions) -> tuple[int, Device, int, int, int]:
        model = LocalModel(bundle, options)
        self._key = next(self._keys)
        self._models[self._key] = model
        return self._key, model.device, model.engines, model.threads, model.itemsize

    def memory(self) -> tuple[int, str, int]:
        assert self._key is not None
        return self._models[self._key].memory()

    def runtime(self, key: int, index: int, rows: int) -> int:
        self._runtime = self._models[key].runtime(index, rows)
        return self._runtime.cache_bytes

    def scorer(self, key: int) -> None:
        self._scorer = self._models[key].scorer()

    def encode(self, copies: Copies, sources: Sequence[Sequence[int]], row: int) -> int:
        return self._copy(copies).encode(sources, row)

    def top(
        self, copies: Copies, tokens: NDArray[Any], positions: NDArray[Any], candidates: int
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        scores = self._ready(copies, tokens, positions).top(len(tokens), candidates)
        return scores.ids, scores.log_probabilities

    def mixed(
        self, copies: Copies, tokens: NDArray[Any], positions: NDArray[Any], step_requests: Sequence[StepRequest]
    ) -> StepResult:
        return self._ready(copies, tokens, positions).step(step_requests)

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], attention: bool
    ) -> TargetScores:
        assert self._scorer is not None
        return self._scorer.run(sources, targets, attention)

    def close(self) -> None:
        """Nobody asks any more."""
        self._runtime = self._scorer = None
        if self._key is not None:
            self._models.pop(self._key).close()
        trim_memory()

    def _ready(self, copies: Copies, tokens: NDArray[Any], positions: NDArray[Any]) -> Runtime:
        runtime, rows = self._copy(copies), len(tokens)
        runtime.tokens[:rows], runtime.positions[:rows] = tokens, positions
        return runtime

    def _copy(self, copies: Copies) -> Runtime:
        runtime = self._runtime
        assert runtime is not None
        for source, target, start, position in copies:
            runtime.positions[source] = position
            if start is None:
                runtime.move_row(source, target)
            else:
                runtime.copy_target(source, target, start)
        return runtime


def _answer(channel: Connection) -> None:
    desk = Desk()
    while True:
        try:
            question, arguments = channel.recv()
        except (EOFError, OSError):
            break
        try:
            answer: tuple[bool, Any] = True, getattr(desk, question)(*arguments)
        except Exception as error:
            answer = False, _told(error)
        del arguments
        try:
            channel.send(answer)
        except OSError:
            break
        del answer
    desk.close()


def _told(error: Exception) -> Exception:
    """An exception that the server has, too."""
    if isinstance(error, BundleError | DeviceError):
        return error
    if is_out_of_memory(error):
        return MemoryError(first_line(error))
    return RuntimeError(f"{type(error).__name__}: {first_line(error)}")


def main(descriptor: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # those are for the server
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":  # so that one that is stopped does not outlive the server, either
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with suppress(OSError), socket.socket(fileno=descriptor) as control:
        control.sendall(READY)
        while True:
            order, descriptors, *_ = socket.recv_fds(control, 1, 1)
            if order == PING:
                control.sendall(PING)
            elif order == OPEN:
                channel = Connection(descriptors[0])
                threading.Thread(target=_answer, args=(channel,), daemon=True).start()
            else:
                break
    os._exit(0)  # threads that compute can't be interrupted


if __name__ == "__main__":
    main(int(sys.argv[1]))
