"""How much memory processes hold."""

from pathlib import Path

import psutil


def peak_megabytes(pid: int) -> float:
    """The most that a process and its children ever held, each by itself, in millions of bytes."""
    processes = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return sum(_peak(process) for process in processes) / 1e6


def _peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
