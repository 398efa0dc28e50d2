"""How much memory there is: what the container's limit and the machine leave, not what the host has."""

import os
from pathlib import Path

from dragoman_server.machine.cgroups import CGROUPS, PROCESS, control_groups

MEMINFO = Path("/proc/meminfo")
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def in_words(size: int) -> str:
    """A number of bytes as people read it: 1536 -> "1.5 KiB"."""
    amount, unit = float(size), 0
    while amount >= 1023.95 and unit < len(UNITS) - 1:  # what would be written as 1024
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {UNITS[unit]}" if unit and amount < 100 else f"{amount:.0f} {UNITS[unit]}"


def free_memory(process: Path = PROCESS, cgroups: Path = CGROUPS, meminfo: Path = MEMINFO) -> tuple[int, str]:
    """Bytes that this process can still have.

    Args:
        process, cgroups: see control_groups.
        meminfo: what the kernel tells of the machine's memory.

    Returns:
        how many, and of what: "machine", or "container" where its control groups leave less.
    """
    machine = _available(meminfo)
    first, second = control_groups("memory", process, cgroups)
    rooms = [
        *(_room(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file") for group in first),
        *(_room(group, "memory.max", "memory.current", "inactive_file") for group in second),
    ]
    container = min((room for room in rooms if room is not None), default=machine)
    return (container, "container") if container < machine else (machine, "machine")


def resident_memory(process: Path = PROCESS) -> int:
    """Bytes of this process that are in memory, files that it maps included; 0 where the system doesn't tell."""
    try:
        pages = int((process / "statm").read_text().split()[1])
    except FileNotFoundError:  # not Linux
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _available(meminfo: Path) -> int:
    lines = meminfo.read_text().splitlines() if meminfo.exists() else []
    for line in lines:
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # not Linux: all there is


def _room(group: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    """What a group's limit leaves, files that the kernel keeps in memory but can drop not counted as used."""
    try:
        most, used = (group / limit).read_text().strip(), int((group / usage).read_text())
        if most == "max":
            return None
        lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        droppable = next((int(count) for name, count in lines if name == reclaimable), 0)
        return max(int(most) - used + droppable, 0)
    except (OSError, ValueError):
        return None
