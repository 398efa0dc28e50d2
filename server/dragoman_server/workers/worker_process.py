"""The server's side of one worker process: starts it, opens channels to it, and detects that it hangs or has ended."""

import math
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import dragoman_server
from dragoman_server.engine.watchdog import Watchdog
from dragoman_server.metrics.workers import RestartReason
from dragoman_server.runtime.device import WorkerLostError
from dragoman_server.workers.worker_main import OPEN, PING, READY

START_SECONDS = 60.0  # time limit for the process to start
WATCH_SECONDS = 1.0  # interval between pings
END_SECONDS = 1.0  # time limit for the process to end by itself


class Channel:
    """Remote procedure calls to a handler in a worker, from one thread at a time.

    NOTE: messages are pickled, which is safe between a process and its own child, and nowhere else.

    Attributes:
        calls: The number of `watched_call`s so far, for hang detection.
        busy: Whether a `watched_call` is waiting for its answer.
    """

    def __init__(self, own: socket.socket) -> None:
        self._connection = Connection(own.detach())
        self.calls = 0
        self.busy = False

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the worker's RequestHandler, with no time limit.

        Raises:
            WorkerLostError: The worker has ended.
            Exception: The exception that the method raised.
        """
        try:
            self._connection.send((method, arguments))
            succeeded, answer = self._connection.recv()
        except (OSError, EOFError, pickle.UnpicklingError):
            raise WorkerLostError("the worker process has ended") from None
        if not succeeded:
            raise answer
        return answer

    def watched_call(self, method: str, *arguments: Any) -> Any:
        """Makes a `call` for which the worker counts as hanging if it takes too long."""
        self.calls += 1
        self.busy = True
        try:
            return self.call(method, *arguments)
        finally:
            self.busy = False

    def close(self) -> None:
        """Closes the socket; no thread may be waiting for an answer."""
        self._connection.close()


class WorkerProcess:
    """A worker process, from its start to its end.

    Attributes:
        reason: Why it is to be restarted.

    Raises:
        WorkerLostError: It ended before it was ready.
    """

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        home = str(Path(dragoman_server.__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        with theirs:
            # NOTE: never os.fork, which gRPC does not survive once it has started. In a session of its own the worker
            # does not receive the server's Ctrl-C; it ends when the server's end of the socket closes.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dragoman_server.workers.worker_main", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
        self.pid = self._process.pid
        self.reason: RestartReason = "died"
        self._channels: weakref.WeakSet[Channel] = weakref.WeakSet()
        self._lock = threading.Lock()  # of the control socket and the callbacks
        self._callbacks: list[Callable[[], None]] | None = []  # None once the process has ended
        try:
            self._control.settimeout(START_SECONDS)
            started = self._control.recv(1) == READY
        except OSError:
            started = False
        if not started:
            self.kill()
            self.end()
            raise WorkerLostError(f"the worker process did not start: {self.status}")
        self._control.settimeout(None)

    @property
    def status(self) -> str:
        """How the process ended, for logs."""
        code = self._process.poll()
        if code is None:
            return "it runs"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

    def channel(self) -> Channel:
        """Opens a channel to a new thread of the worker.

        Raises:
            WorkerLostError: The process has ended.
        """
        own, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                socket.send_fds(self._control, [OPEN], [theirs.fileno()])
            except OSError:
                own.close()
                raise WorkerLostError("the worker process has ended") from None
        channel = Channel(own)
        self._channels.add(channel)
        return channel

    def watch(self, lost: Callable[[], None]) -> None:
        """Calls `lost` when the process has ended; at once if it has ended already."""
        with self._lock:
            if self._callbacks is not None:
                self._callbacks.append(lost)
                return
        lost()

    def supervise(self, hang_seconds: float) -> RestartReason:
        """Blocks until the process ends or hangs, and returns which it was."""
        interval = min(WATCH_SECONDS, hang_seconds / 4)
        watchdog: Watchdog[Channel | str] = Watchdog(math.ceil(hang_seconds / interval))
        pings, answered, next_check = 0, True, 0.0
        while True:
            if select.select([self._control], [], [], max(next_check - time.monotonic(), 0.0))[0]:
                if not self._receive_pong():
                    return self.reason
                answered = True
            if time.monotonic() < next_check:
                continue
            next_check = time.monotonic() + interval
            if answered:
                pings, answered = pings + 1, not self._ping()
            working: dict[Channel | str, int] = {
                channel: channel.calls for channel in list(self._channels) if channel.busy
            }
            if not answered:
                working["ping"] = pings
            if watchdog.hanging(working):
                return "hung"

    def kill(self) -> None:
        """Kills the process."""
        self._process.kill()

    def close(self) -> None:
        """Tells the process to end."""
        try:
            self._control.shutdown(socket.SHUT_RDWR)
        except OSError:  # it has ended
            return

    def end(self) -> None:
        """Waits for the process to end, kills it after END_SECONDS, and runs the callbacks of `watch`."""
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._lock:
            callbacks, self._callbacks = self._callbacks or [], None
            self._control.close()
        for callback in callbacks:
            callback()

    def _receive_pong(self) -> bool:
        """Receives the answer to a ping; returns False if the process has ended."""
        try:
            return bool(self._control.recv(1))
        except OSError:
            return False

    def _ping(self) -> bool:
        with self._lock:
            try:
                self._control.sendall(PING)
            except OSError:  # it has ended, which the next check detects
                return False
        return True
