"""A worker as the server sees it: a process that is started, watched, and started anew."""

import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

import dragoman_server
from dragoman_server.bundle.load import Bundle
from dragoman_server.engine.layout import EngineOptions
from dragoman_server.engine.watchdog import Watchdog
from dragoman_server.metrics import ServerMetrics
from dragoman_server.metrics.workers import RestartReason
from dragoman_server.runtime.device import DeviceError, WorkerLostError
from dragoman_server.workers.channel import Channel
from dragoman_server.workers.process import OPEN, PING, READY
from dragoman_server.workers.remote import RemoteModel

log = structlog.get_logger()

START_SECONDS = 60.0  # that it may take to be there
WATCH_SECONDS = 1.0  # between two pings
END_SECONDS = 1.0  # that it has to end by itself
# A worker that ended is started anew at once; one that ended soon after its start, after a while that doubles.
SOON_SECONDS, FIRST_DELAY_SECONDS, MOST_DELAY_SECONDS = 60.0, 0.5, 30.0
MOST_STARTS = 3  # that may fail one after the other before those who wait for it are told


class WorkerProcess:
    """One process, from its start to its end.

    Raises:
        WorkerLostError: it ended before it was there.
    """

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        home = str(Path(dragoman_server.__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        with theirs:
            # NOTE: never os.fork, which gRPC does not survive once it has started. Its own session keeps a Ctrl-C for
            # the server from it; it ends when the server's end of the socket closes.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dragoman_server.workers.process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
        self.pid = self._process.pid
        self.channels: weakref.WeakSet[Channel] = weakref.WeakSet()
        self.reason: RestartReason = "died"
        self._sending = threading.Lock()
        self._lost: list[Callable[[], None]] | None = []  # None once it is
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
        """How it ended, in words."""
        code = self._process.poll()
        if code is None:
            return "it runs"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

    def channel(self) -> Channel:
        """A channel to a thread of its own there.

        Raises:
            WorkerLostError: it has ended.
        """
        own, theirs = socket.socketpair()
        with theirs, self._sending:
            try:
                socket.send_fds(self._control, [OPEN], [theirs.fileno()])
            except OSError:
                own.close()
                raise WorkerLostError("the worker process has ended") from None
        channel = Channel(own)
        self.channels.add(channel)
        return channel

    def watch(self, lost: Callable[[], None]) -> None:
        """Has `lost` called when it has ended; at once where it has."""
        with self._sending:
            if self._lost is not None:
                self._lost.append(lost)
                return
        lost()

    def attend(self, hang_seconds: float) -> RestartReason:
        """Waits for its end, or for it to hang, and tells which it was."""
        every = min(WATCH_SECONDS, hang_seconds / 4)
        watchdog: Watchdog[Channel | str] = Watchdog(math.ceil(hang_seconds / every))
        pings, answered, look = 0, True, 0.0
        while True:
            if select.select([self._control], [], [], max(look - time.monotonic(), 0.0))[0]:
                if not self._heard():
                    return self.reason
                answered = True
            if time.monotonic() < look:
                continue
            look = time.monotonic() + every
            if answered:
                pings, answered = pings + 1, not self._ping()
            working: dict[Channel | str, int] = {each: each.calls for each in list(self.channels) if each.busy}
            if not answered:
                working["ping"] = pings
            if watchdog.look(working):
                return "hung"

    def kill(self) -> None:
        self._process.kill()

    def leave(self) -> None:
        """Asks it to end."""
        try:
            self._control.shutdown(socket.SHUT_RDWR)
        except OSError:  # it has
            return

    def end(self) -> None:
        """Waits for its end, which it comes to within END_SECONDS, and tells those who watch."""
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._sending:
            lost, self._lost = self._lost or [], None
            self._control.close()
        for each in lost:
            each()

    def _heard(self) -> bool:
        """Takes the answer to a ping; False where there will be no more."""
        try:
            return bool(self._control.recv(1))
        except OSError:
            return False

    def _ping(self) -> bool:
        with self._sending:
            try:
                self._control.sendall(PING)
            except OSError:  # it has ended, as the next look tells
                return False
        return True


class Worker:
    """See server.engine.hosted.Host. A thread of its own keeps the process alive.

    Args:
        index: among the workers.
        device: where it computes.
        asked: the value of --device, which names the devices of all workers.
        cores: that it may use.
        hang_seconds: a step that takes so long hangs, and the process is killed.
    """

    revives = True

    def __init__(
        self, index: int, device: str, asked: str, cores: int, hang_seconds: float, metrics: ServerMetrics
    ) -> None:
        self.name = f"worker {index}"
        self._label = str(index)
        self._device, self._asked, self._cores = device, asked, cores
        self._hang_seconds = hang_seconds
        self._metrics = metrics
        self._process: WorkerProcess | None = None
        self._failed_starts = 0  # in a row
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=self.name, daemon=True)
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether it runs.

        Raises:
            WorkerLostError: it does not, and it can't be started.
        """
        if self._failed_starts >= MOST_STARTS:
            raise WorkerLostError(f"{self.name} can't be started")
        return self._process is not None

    def load(self, bundle: Bundle, options: EngineOptions) -> RemoteModel:
        if options.device != self._asked:
            raise DeviceError(f"device {options.device}: a model can't have one of its own where there are workers")
        process = self._process
        if process is None:
            raise WorkerLostError(f"{self.name} does not run")
        return RemoteModel(process, bundle, replace(options, device=self._device, cores=self._cores))

    def broken(self) -> None:
        process = self._process
        if process is not None:
            process.reason = "errors"
            process.kill()

    def close(self) -> None:
        """Ends the process, for good."""
        self._closing.set()
        if process := self._process:
            process.leave()
        self._thread.join(2 * END_SECONDS)

    def _keep(self) -> None:
        delay = 0.0
        while not self._closing.is_set():
            started = time.monotonic()
            reason = self._run()
            if self._closing.is_set():
                break
            delay = 0.0 if time.monotonic() - started > SOON_SECONDS else min(2 * delay, MOST_DELAY_SECONDS)
            log.error("worker is started anew", worker=self._label, reason=reason, in_seconds=delay)
            self._metrics.worker_restarted(self._label, reason)
            self._closing.wait(delay)
            delay = max(delay, FIRST_DELAY_SECONDS / 2)

    def _run(self) -> RestartReason:
        """The life of one process.

        Returns:
            why it ended.
        """
        try:
            process = WorkerProcess()
        except (WorkerLostError, OSError) as error:
            self._failed_starts += 1
            log.error("worker could not be started", worker=self._label, reason=str(error))
            return "died"
        self._failed_starts = 0
        self._process = process
        self._metrics.worker_up(self._label, True, process.pid)
        log.info("worker runs", worker=self._label, process=process.pid, device=self._device)
        if self._closing.is_set():
            process.leave()
        reason = process.attend(self._hang_seconds)
        if reason == "hung":
            process.kill()
        self._process = None
        self._metrics.worker_up(self._label, False)
        process.end()
        if not self._closing.is_set():
            log.error("worker has ended", worker=self._label, reason=reason, status=process.status)
        return reason
