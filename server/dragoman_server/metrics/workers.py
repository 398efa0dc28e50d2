"""The processes that compute: which of them run, what they use, and how often they were started anew."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dragoman_server.machine import resident_memory

RestartReason = Literal["died", "hung", "errors"]


class WorkerMetrics:
    """For use from any thread."""

    def __init__(self) -> None:
        self._up: dict[str, bool] = {}
        self._processes: dict[str, int] = {}
        self._restarts: dict[str, dict[RestartReason, int]] = {}

    def up(self, worker: str, up: bool, process: int | None) -> None:
        # Zeros come first, since the first restart of a series that begins with it looks like none.
        self._restarts.setdefault(worker, dict.fromkeys(get_args(RestartReason), 0))
        self._up[worker] = up
        if up and process is not None:
            self._processes[worker] = process
        else:
            self._processes.pop(worker, None)

    def restarted(self, worker: str, reason: RestartReason) -> None:
        self._restarts.setdefault(worker, dict.fromkeys(get_args(RestartReason), 0))[reason] += 1

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("dragoman_worker_up", "1 where a worker process runs", labels=["worker"])
        restarts = CounterMetricFamily(
            "dragoman_worker_restarts", "Worker processes started anew", labels=["worker", "reason"]
        )
        resident = GaugeMetricFamily(
            "dragoman_worker_resident_memory_bytes",
            "Memory of a worker process, files that it maps included",
            labels=["worker"],
            unit="bytes",
        )
        cpu = CounterMetricFamily(
            "dragoman_worker_cpu_seconds",
            "CPU time of a worker process; from zero again in the next",
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
            except (OSError, IndexError, ValueError):  # it has just ended, or the system doesn't tell
                continue
            resident.add_metric([worker], figures[0])
            cpu.add_metric([worker], figures[1])
        yield from (up, restarts, resident, cpu)


def _cpu_seconds(process: int) -> float:
    """User and system time of a process: fields 14 and 15 of proc_pid_stat(5), counted behind the name in brackets."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
