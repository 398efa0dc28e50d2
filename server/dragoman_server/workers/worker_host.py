"""The hosts of a server: its own process, or workers that are restarted when they end."""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import structlog

from dragoman_server.bundle.load import Bundle
from dragoman_server.config import ServerConfig
from dragoman_server.config.devices import split_devices
from dragoman_server.engine.engine_options import EngineOptions
from dragoman_server.engine.host import Host, LocalHost
from dragoman_server.machine import usable_cpus
from dragoman_server.metrics import ServerMetrics
from dragoman_server.metrics.workers import RestartReason
from dragoman_server.runtime.device import DeviceError, WorkerLostError
from dragoman_server.workers.remote import RemoteModel
from dragoman_server.workers.worker_process import END_SECONDS, WorkerProcess

log = structlog.get_logger()

# A worker that ended is restarted at once; one that ended within STABLE_SECONDS of its start, after a growing delay.
STABLE_SECONDS, MIN_DELAY_SECONDS, MAX_DELAY_SECONDS = 60.0, 0.5, 30.0
MAX_FAILED_STARTS = 3  # in a row, before `WorkerHost.ready` raises


def make_hosts(config: ServerConfig, metrics: ServerMetrics) -> Sequence[Host]:
    """Starts the configured workers, or returns this process if there are none."""
    devices = split_devices(config.device)
    if len(devices) == 1 and config.workers is None:
        return [LocalHost()]
    if len(devices) == 1:
        devices *= config.workers or 1
    cores = max(1, usable_cpus() // len(devices))
    return [
        WorkerHost(index, device, config.device, cores, config.hang_seconds, metrics)
        for index, device in enumerate(devices)
    ]


class WorkerHost:
    """A host whose models run in a worker process. A thread of its own restarts the process when it ends.

    Args:
        index: Number of the worker.
        device: Device that it computes on.
        device_option: The value of --device, which lists the devices of all workers.
        cores: Number of cores that it may use.
        hang_seconds: Time after which a step counts as hanging and the process is killed.
    """

    restartable = True

    def __init__(
        self, index: int, device: str, device_option: str, cores: int, hang_seconds: float, metrics: ServerMetrics
    ) -> None:
        self.name = f"worker {index}"
        self._label = str(index)
        self._device, self._device_option, self._cores = device, device_option, cores
        self._hang_seconds = hang_seconds
        self._metrics = metrics
        self._process: WorkerProcess | None = None
        self._failed_starts = 0  # in a row
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep_running, name=self.name, daemon=True)
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether the worker runs.

        Raises:
            WorkerLostError: It repeatedly failed to start.
        """
        if self._failed_starts >= MAX_FAILED_STARTS:
            raise WorkerLostError(f"{self.name} can't be started")
        return self._process is not None

    def load(self, bundle: Bundle, options: EngineOptions) -> RemoteModel:
        if options.device != self._device_option:
            raise DeviceError(f"device {options.device}: with worker processes, a model can't have its own")
        process = self._process
        if process is None:
            raise WorkerLostError(f"{self.name} is not running")
        return RemoteModel(process, bundle, replace(options, device=self._device, cores=self._cores))

    def restart(self) -> None:
        process = self._process
        if process is not None:
            process.reason = "errors"
            process.kill()

    def close(self) -> None:
        """Ends the process for good."""
        self._closing.set()
        if process := self._process:
            process.close()
        self._thread.join(2 * END_SECONDS)

    def _keep_running(self) -> None:
        delay = 0.0
        while not self._closing.is_set():
            started = time.monotonic()
            reason = self._run()
            if self._closing.is_set():
                break
            delay = 0.0 if time.monotonic() - started > STABLE_SECONDS else min(2 * delay, MAX_DELAY_SECONDS)
            log.error("restarting worker", worker=self._label, reason=reason, in_seconds=delay)
            self._metrics.worker_restarted(self._label, reason)
            self._closing.wait(delay)
            delay = max(delay, MIN_DELAY_SECONDS / 2)

    def _run(self) -> RestartReason:
        """Runs one process until it ends, and returns why it ended."""
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
            process.close()
        reason = process.supervise(self._hang_seconds)
        if reason == "hung":
            process.kill()
        self._process = None
        self._metrics.worker_up(self._label, False)
        process.end()
        if not self._closing.is_set():
            log.error("worker has ended", worker=self._label, reason=reason, status=process.status)
        return reason
