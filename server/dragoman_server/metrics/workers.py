"""Metrics of worker processes: whether they run, their memory and CPU time, their restarts."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dragoman_server.machine import resident_memory

RestartReason = Literal["died", "hung", "errors"]


class WorkerMetrics:
    """Metrics of all worker processes. Thread-safe."""

    def __init__(self) -> None:
        self._up: dict[str, bool] = {}
        self._processes: dict[str, int] = {}
        self._restarts: dict[str, dict[RestartReason, int]] = {}

    def up(self, worker: str, up: bool, process: int | None) -> None:
        # Series start at zero: Prometheus sees no increase in one that begins with a restart.
        self._restarts.setdefault(worker, dict.fromkeys(get_args(RestartReason), 0))
        self._up[worker] = up
        if up and process is not None:
            self._processes[worker] = process
        else:
            self._processes.pop(worker, None)

    def restarted(self, worker: str, reason: RestartReason) -> None:
        self._restarts.setdefault(worker, dict.fromkeys(get_args(RestartReason), 0))[reason] += 1

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("dragoman_worker_up", "1 if the worker process runs", labels=["worker"])
        restarts = CounterMetricFamily(
            "dragoman_worker_restarts", "Restarts of a worker process", labels=["worker", "reason"]
        )
        resident = GaugeMetricFamily(
            "dragoman_worker_resident_memory_bytes",
            "Resident memory of a worker process, with mapped files",
            labels=["worker"],
            unit="bytes",
        )
        cpu = CounterMetricFamily(
            "dragoman_worker_cpu_seconds",
            "CPU time of a worker process; starts at zero after a restart",
            labels=["worker"],
            unit="seconds",
        )
        for worker, running in list(self._up.items()):
            up.add_metric([worker], running)
        for worker, counts in list(self._restarts.items()):
            for reason, count in counts.items():
                restarts.add_metric([worker, reason], count)
        for worker, process in list(self._processes.items()):
            try:
                figures = resident_memory(Path(f"/proc/{process}")), _cpu_seconds(process)
            except (OSError, IndexError, ValueError):  # it has just ended, or /proc has no such file
                continue
            resident.add_metric([worker], figures[0])
            cpu.add_metric([worker], figures[1])
        yield from (up, restarts, resident, cpu)


def _cpu_seconds(process: int) -> float:
    """Returns user plus system time: fields 14 and 15 of proc_pid_stat(5); the name in brackets may hold spaces."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
