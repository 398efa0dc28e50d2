"""The worker process: loads models and serves calls of the server's engine threads, each in a thread of its own.

    python -m dragoman_server.workers.worker_main DESCRIPTOR

DESCRIPTOR is the control socket, inherited from the server. The worker echoes the byte PING; the byte OPEN comes with
another socket, for a Channel. When the control socket closes the server has ended, and the worker exits.
"""

import ctypes
import itertools
import mmap
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from numpy.typing import NDArray

from dragoman_server.bundle.load import Bundle, BundleError
from dragoman_server.core.search import StepRequest, StepResult
from dragoman_server.engine.engine_options import EngineOptions
from dragoman_server.engine.host import LocalModel
from dragoman_server.machine import trim_memory
from dragoman_server.runtime.device import Device, DeviceError, first_line, is_out_of_memory
from dragoman_server.runtime.device_memory import DeviceMemory
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.scorer_session import ScorerSession, TargetScores
from dragoman_server.runtime.step_results import TopKResult

PING, OPEN, READY = b"p", b"o", b"r"
PR_SET_PDEATHSIG = 1  # prctl(2)


# A copy between cache rows, made before the call that it comes with: source row, target row, first target position to
# copy (None to move the whole row, source included), and the source row's position at the time of the copy.
RowCopy = tuple[int, int, int | None, int]


class RequestHandler:
    """Serves the calls of one channel: every public method can be called, see dragoman_server.workers.remote."""

    _models: dict[int, LocalModel] = {}  # noqa: RUF012 - shared by all handlers of the process
    _keys = itertools.count()

    def __init__(self) -> None:
        self._key: int | None = None
        self._runtime: Runtime | None = None
        self._scorer: ScorerSession | None = None
        self._lists: dict[int, Sequence[int]] = {}  # shortlists of the last step's rows, by number

    def load(self, bundle: Bundle, options: EngineOptions) -> tuple[int, Device, int, int, int]:
        model = LocalModel(bundle, options)
        self._key = next(self._keys)
        self._models[self._key] = model
        return self._key, model.device, model.engines, model.threads, model.itemsize

    def memory(self) -> DeviceMemory:
        assert self._key is not None
        return self._models[self._key].memory()

    def runtime(self, key: int, index: int, rows: int) -> int:
        self._runtime = self._models[key].runtime(index, rows)
        return self._runtime.cache_bytes

    def scorer(self, key: int) -> None:
        self._scorer = self._models[key].scorer()

    def encode(self, copies: Sequence[RowCopy], sources: Sequence[Sequence[int]], row: int) -> int:
        return self._apply(copies).encode(sources, row)

    def top(
        self, copies: Sequence[RowCopy], tokens: NDArray[Any], positions: NDArray[Any], candidates: int
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        result = self._prepare(copies, tokens, positions).top(len(tokens), candidates)
        return result.ids, result.log_probabilities

    def listed_top(
        self,
        copies: Sequence[RowCopy],
        tokens: NDArray[Any],
        positions: NDArray[Any],
        candidates: int,
        numbers: Sequence[int],
        new: Mapping[int, Sequence[int]],
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        lists = self._lists | dict(new)
        self._lists = {number: lists[number] for number in numbers}
        step_requests = [StepRequest(candidates, vocabulary=self._lists[number]) for number in numbers]
        result = self._prepare(copies, tokens, positions).step(step_requests)
        assert isinstance(result, TopKResult)
        return result.ids, result.log_probabilities

    def mixed(
        self,
        copies: Sequence[RowCopy],
        tokens: NDArray[Any],
        positions: NDArray[Any],
        step_requests: Sequence[StepRequest],
    ) -> StepResult:
        return self._prepare(copies, tokens, positions).step(step_requests)

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], attention: bool
    ) -> TargetScores:
        assert self._scorer is not None
        return self._scorer.run(sources, targets, attention)

    def close(self) -> None:
        """Frees what the handler holds, once its channel is closed."""
        self._runtime = self._scorer = None
        if self._key is not None:
            self._models.pop(self._key).close()
        trim_memory()

    def _prepare(self, copies: Sequence[RowCopy], tokens: NDArray[Any], positions: NDArray[Any]) -> Runtime:
        runtime, rows = self._apply(copies), len(tokens)
        runtime.tokens[:rows], runtime.positions[:rows] = tokens, positions
        return runtime

    def _apply(self, copies: Sequence[RowCopy]) -> Runtime:
        runtime = self._runtime
        assert runtime is not None
        for source, target, start, position in copies:
            runtime.positions[source] = position
            if start is None:
                runtime.move_row(source, target)
            else:
                runtime.copy_target(source, target, start)
        return runtime


RESERVE = 2**22  # bytes of address space; no page is touched
# An answer that takes no memory to make, when there is none for the real one.
_NO_MEMORY = bytes(ForkingPickler.dumps((False, MemoryError("no memory is left for the answer of the worker"))))


def _serve_channel(channel: Connection) -> None:
    """Answers the calls of a channel until the server closes it."""
    try:
        _answer_calls(channel)
    except BaseException:  # the server would wait for an answer until it takes the worker for hung
        traceback.print_exc()
        os._exit(1)


def _answer_calls(channel: Connection) -> None:
    handler = RequestHandler()
    while True:
        try:
            method, arguments = channel.recv()
        except (EOFError, OSError):
            break
        try:
            with _reserve():
                answer: tuple[bool, Any] = True, getattr(handler, method)(*arguments)
        except Exception as error:
            answer = False, _portable(error)
        del arguments
        try:
            channel.send(answer)
        except MemoryError:
            del answer
            channel.send_bytes(_NO_MEMORY)
        except OSError:
            break
        else:
            del answer
    handler.close()


def _reserve() -> AbstractContextManager[Any]:
    """Keeps memory for the messages before and after a call, which may take all the rest."""
    try:
        return mmap.mmap(-1, RESERVE, mmap.MAP_PRIVATE)  # limits of data do not count shared memory
    except OSError:  # there is none
        return nullcontext()


def _portable(error: Exception) -> Exception:
    """Returns an equivalent exception of a type that the server's process can unpickle."""
    if isinstance(error, BundleError | DeviceError):
        return error
    if is_out_of_memory(error):
        return MemoryError(first_line(error))
    return RuntimeError(f"{type(error).__name__}: {first_line(error)}")


def main(descriptor: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the server
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":  # so that a stopped worker does not outlive the server either
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with suppress(OSError), socket.socket(fileno=descriptor) as control:
        control.sendall(READY)
        while True:
            order, descriptors, *_ = socket.recv_fds(control, 1, 1)
            if order == PING:
                control.sendall(PING)
            elif order == OPEN:
                channel = Connection(descriptors[0])
                threading.Thread(target=_serve_channel, args=(channel,), daemon=True).start()
            else:
                break
    os._exit(0)  # threads that compute can't be interrupted


if __name__ == "__main__":
    main(int(sys.argv[1]))
