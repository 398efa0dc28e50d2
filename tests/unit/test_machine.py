"""CPU quotas and memory limits of the container, read from control groups laid out in a temporary directory."""

import os
from pathlib import Path

import pytest

from dragoman_server.machine import cpu_quota, format_bytes, free_memory, resident_memory, usable_cpus

MIB = 2**20
UNLIMITED = float("inf")
V1 = "11:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n"


def write_tree(root: Path, groups: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Writes the control groups of a process; returns its /proc directory and the control group mount."""
    process, cgroups = root / "self", root / "cgroup"
    for path, content in {process / "cgroup": groups, **{cgroups / name: text for name, text in files.items()}}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return process, cgroups


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        pytest.param("0::/\n", {"cpu.max": "250000 100000\n"}, 2.5, id="v2"),
        pytest.param("0::/\n", {"cpu.max": "max 100000\n"}, UNLIMITED, id="v2, unlimited"),
        pytest.param("0::/\n", {}, UNLIMITED, id="v2, root without a file"),
        pytest.param(
            "0::/pod/box\n", {"pod/box/cpu.max": "max 1", "pod/cpu.max": "300 100"}, 3, id="v2, a parent limits"
        ),
        pytest.param(
            "0::/pod/box\n", {"pod/box/cpu.max": "200 100", "pod/cpu.max": "300 100"}, 2, id="v2, lowest limit wins"
        ),
        pytest.param("0::/host/pod\n", {"cpu.max": "150000 100000"}, 1.5, id="v2, path on the host"),
        pytest.param("0::/\n", {"cpu.max": "a lot"}, UNLIMITED, id="v2, malformed"),
        pytest.param(
            V1, {"cpu,cpuacct/cpu.cfs_quota_us": "150000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 1.5, id="v1"
        ),
        pytest.param(
            V1, {"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4, id="v1, short mount name"
        ),
        pytest.param(
            V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, UNLIMITED, id="v1, unlimited"
        ),
        pytest.param(
            "4:cpu:/\n0::/\n", {"cpu/cpu.cfs_quota_us": "300", "cpu/cpu.cfs_period_us": "100"}, 3, id="v1 and v2"
        ),
    ],
)
def test_cpu_quota(tmp_path: Path, groups: str, files: dict[str, str], expected: float) -> None:
    assert cpu_quota(*write_tree(tmp_path, groups, files)) == expected


def test_no_cpu_quota_without_control_groups(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "nowhere", tmp_path) == UNLIMITED


@pytest.mark.parametrize(("quota", "affinity", "expected"), [("250", 8, 2), ("50", 8, 1), ("max", 3, 3), ("900", 2, 2)])
def test_usable_cpus_is_the_lower_of_quota_and_affinity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, affinity: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)))
    assert usable_cpus(*write_tree(tmp_path, "0::/\n", {"cpu.max": f"{quota} 100"})) == expected


def v2_memory(group: str, limit: object, usage: int, inactive: int) -> dict[str, str]:
    stat = f"anon 1\nfile 5\ninactive_file {inactive}\n"
    return {f"{group}/memory.max": f"{limit}\n", f"{group}/memory.current": f"{usage}\n", f"{group}/memory.stat": stat}


def v1_memory(limit: int) -> dict[str, str]:
    return {
        "memory/pods/one/memory.limit_in_bytes": f"{limit}\n",
        "memory/pods/one/memory.usage_in_bytes": f"{90 * MIB}\n",
        "memory/pods/one/memory.stat": f"cache 9\ntotal_inactive_file {40 * MIB}\n",
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, (2000 * MIB, "machine"), id="no limits"),
        pytest.param(
            v2_memory("pods/one", 500 * MIB, 130 * MIB, 30 * MIB), (400 * MIB, "container"), id="v2, droppable pages"
        ),
        pytest.param(
            v2_memory("pods/one", "max", 130 * MIB, 0) | v2_memory("pods", 300 * MIB, 200 * MIB, 0),
            (100 * MIB, "container"),
            id="v2, a parent limits",
        ),
        pytest.param(v2_memory("pods/one", 100, 200, 50), (0, "container"), id="v2, over its limit"),
        pytest.param(v1_memory(500 * MIB), (450 * MIB, "container"), id="v1"),
        # Version 1 writes the largest number there is if nothing is limited.
        pytest.param(v1_memory(2**63 - 4096), (2000 * MIB, "machine"), id="v1, unlimited"),
        pytest.param(
            v2_memory("pods/one", "?", 1, 0) | {"pods/memory.max": "1\n"}, (2000 * MIB, "machine"), id="unreadable"
        ),
    ],
)
def test_free_memory(tmp_path: Path, files: dict[str, str], expected: tuple[int, str]) -> None:
    groups = "4:memory:/pods/one\n3:cpu,cpuacct:/pods/one\n0::/pods/one\n"
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 4096000 kB\nMemFree: 1000 kB\nMemAvailable: 2048000 kB\n")
    assert free_memory(*write_tree(tmp_path, groups, files), meminfo) == expected


def test_this_machine(tmp_path: Path) -> None:
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)
    assert resident_memory() > MIB
    assert resident_memory(tmp_path) == 0, "not Linux"
    assert free_memory()[0] > 0
    assert free_memory(tmp_path, tmp_path, tmp_path / "none")[0] > 0


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1000, "1000 bytes"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (200 * 1024, "200 KiB"),
        (MIB - 1, "1.0 MiB"),
        (5 * 2**40, "5.0 TiB"),
        (10**19, "8882 PiB"),
    ],
)
def test_format_bytes(size: int, text: str) -> None:
    assert format_bytes(size) == text
