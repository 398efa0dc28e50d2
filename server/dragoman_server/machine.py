"""The CPUs and the memory that this process may use: what its container allows, not what the host has."""

import ctypes
import gc
import os
from pathlib import Path

PROCESS = Path("/proc/self")
CGROUPS = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def usable_cpus(process: Path = PROCESS, cgroups: Path = CGROUPS) -> int:
    """Returns the number of CPUs to plan threads for, at least 1.

    That is the number of CPUs in the affinity mask, or the CPU quota of the control groups if that is lower. A quota
    of 2.5 gives 2: a third thread would use up the quota early in every period and stall all three until the next.

    Args:
        process: The directory of the process in /proc; its file `cgroup` lists the control groups.
        cgroups: The directory where the control group file systems are mounted.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(cpus, cpu_quota(process, cgroups))))


def cpu_quota(process: Path, cgroups: Path) -> float:
    """Returns the CPU quota of the process's control groups, in CPUs; infinite if there is none."""
    v1, v2 = _control_groups("cpu", process, cgroups)
    return min([*map(_cpu_quota_v1, v1), *map(_cpu_quota_v2, v2)], default=float("inf"))


def free_memory(process: Path = PROCESS, cgroups: Path = CGROUPS, meminfo: Path = MEMINFO) -> tuple[int, str]:
    """Returns the bytes that this process can still allocate, and what limits them.

    The limit is the "machine", or the "container" if the process's control groups leave less.

    Args:
        process, cgroups: See `usable_cpus`.
        meminfo: The kernel's memory statistics of the machine.
    """
    machine = _available_memory(meminfo)
    v1, v2 = _control_groups("memory", process, cgroups)
    remaining = [
        *(
            _group_memory(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            for group in v1
        ),
        *(_group_memory(group, "memory.max", "memory.current", "inactive_file") for group in v2),
    ]
    container = min((size for size in remaining if size is not None), default=machine)
    return (container, "container") if container < machine else (machine, "machine")


def resident_memory(process: Path = PROCESS) -> int:
    """Returns the resident set size of this process in bytes, mapped files included; 0 if the system is not Linux."""
    try:
        pages = int((process / "statm").read_text().split()[1])
    except FileNotFoundError:  # not Linux
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def format_bytes(size: int) -> str:
    """Formats a number of bytes for people: 1536 -> "1.5 KiB"."""
    amount, unit = float(size), 0
    while amount >= 1023.95 and unit < len(UNITS) - 1:  # would be rounded to 1024
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {UNITS[unit]}" if unit and amount < 100 else f"{amount:.0f} {UNITS[unit]}"


def start_collecting() -> None:
    """Starts garbage collection, which exempts all objects that exist now."""
    gc.freeze()
    gc.enable()


def freeze_objects() -> None:
    """Exempts all live objects from garbage collection, which takes tens of milliseconds to scan them."""
    gc.collect()
    gc.freeze()


def trim_memory() -> None:
    """Frees unreachable objects, frozen ones included, and returns free pages to the operating system.

    The objects of unloaded models may be frozen. The C library would keep most free pages in the arenas of threads that
    have ended.
    """
    gc.unfreeze()
    freeze_objects()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


def _control_groups(controller: str, process: Path, cgroups: Path) -> tuple[list[Path], list[Path]]:
    """Returns the control groups of the process and their ancestors, since each may set a limit.

    Some may be the host's, which a container cannot see.

    Args:
        controller: "cpu" or "memory".

    Returns:
        the groups of version 1 and those of version 2.
    """
    v1: list[Path] = []
    v2: list[Path] = []
    try:
        lines = (process / "cgroup").read_text().splitlines()
    except OSError:
        return v1, v2
    for line in lines:  # hierarchy:controllers:path; version 2 lists no controllers
        _, controllers, path = line.split(":", 2)
        if not controllers:
            v2 += _with_ancestors(cgroups, path)
        elif controller in controllers.split(","):
            names = (controllers, controller)
            mount = next((cgroups / name for name in names if (cgroups / name).is_dir()), cgroups / controller)
            v1 += _with_ancestors(mount, path)
    return v1, v2


def _with_ancestors(mount: Path, path: str) -> list[Path]:
    relative = Path(path.lstrip("/"))
    return [mount / group for group in (relative, *relative.parents)]


def _cpu_quota_v2(group: Path) -> float:
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return float("inf") if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return float("inf")


def _cpu_quota_v1(group: Path) -> float:
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text())
        period = int((group / "cpu.cfs_period_us").read_text())
        return float("inf") if quota <= 0 else quota / period
    except (OSError, ValueError, ZeroDivisionError):
        return float("inf")


def _available_memory(meminfo: Path) -> int:
    lines = meminfo.read_text().splitlines() if meminfo.exists() else []
    for line in lines:
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # not Linux: total memory


def _group_memory(group: Path, limit_file: str, usage_file: str, reclaimable: str) -> int | None:
    """Returns the bytes that a group's limit leaves, or None if it has no limit.

    Page cache that the kernel can drop does not count as used.
    """
    try:
        limit, usage = (group / limit_file).read_text().strip(), int((group / usage_file).read_text())
        if limit == "max":
            return None
        lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        droppable = next((int(count) for name, count in lines if name == reclaimable), 0)
        return max(int(limit) - usage + droppable, 0)
    except (OSError, ValueError):
        return None
