"""How many threads this process may keep busy: what its container and its affinity allow, not what the host has."""

import os
from pathlib import Path

from dragoman_server.machine.cgroups import CGROUPS, PROCESS, control_groups


def usable_cpus(process: Path = PROCESS, cgroups: Path = CGROUPS) -> int:
    """CPUs to plan threads for, at least 1.

    The CPUs the process may run on, or the CPU quota of its control groups (version 1 or 2) where that is less. A quota
    of 2.5 gives 2: a third thread would use up the quota early in every period and stall all three until the next.

    Args:
        process: where `cgroup`, the groups of the process, stands.
        cgroups: where the control group file systems are mounted.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(cpus, cpu_quota(process, cgroups))))


def cpu_quota(process: Path, cgroups: Path) -> float:
    """CPUs that the control groups of the process grant it, infinite where they don't limit it."""
    first, second = control_groups("cpu", process, cgroups)
    return min([*map(_quota_v1, first), *map(_quota_v2, second)], default=float("inf"))


def _quota_v2(group: Path) -> float:
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return float("inf") if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return float("inf")


def _quota_v1(group: Path) -> float:
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text())
        period = int((group / "cpu.cfs_period_us").read_text())
        return float("inf") if quota <= 0 else quota / period
    except (OSError, ValueError, ZeroDivisionError):
        return float("inf")
