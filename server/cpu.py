"""How many threads this process may keep busy: what its container and its affinity allow, not what the host has."""

import os
from pathlib import Path


def usable_cpus(process: Path = Path("/proc/self"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
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
    try:
        lines = (process / "cgroup").read_text().splitlines()
    except OSError:
        return float("inf")
    quotas = []
    for line in lines:  # hierarchy:controllers:path, with no controllers in version 2
        _, controllers, path = line.split(":", 2)
        if not controllers:
            quotas += [_quota_v2(group) for group in _with_parents(cgroups, path)]
        elif "cpu" in controllers.split(","):
            mount = next(
                (cgroups / name for name in (controllers, "cpu") if (cgroups / name).is_dir()), cgroups / "cpu"
            )
            quotas += [_quota_v1(group) for group in _with_parents(mount, path)]
    return min(quotas, default=float("inf"))


def _with_parents(mount: Path, path: str) -> list[Path]:
    """A group and all above it: each may limit. In a container some may be the host's, and not to be seen."""
    relative = Path(path.lstrip("/"))
    return [mount / group for group in (relative, *relative.parents)]


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
