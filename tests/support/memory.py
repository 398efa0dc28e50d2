"""Memory use of processes."""

from pathlib import Path

import psutil


def peak_megabytes(pid: int) -> float:
    """Returns the sum of the peak resident memory of a process and of each of its children, in MB."""
    processes = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return sum(_peak(process) for process in processes) / 1e6


def _peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
