"""Threads are planned for what the container allows."""

import os
from pathlib import Path

import pytest

from dragoman_server.machine.cpu import cpu_quota, usable_cpus

NONE = float("inf")


def lay(root: Path, groups: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A process with these control groups, and the file systems that hold them."""
    process, cgroups = root / "self", root / "cgroup"
    process.mkdir()
    (process / "cgroup").write_text(groups)
    for name, content in files.items():
        path = cgroups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return process, cgroups


V1 = "11:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n"
CASES = {
    "version 2": ("0::/\n", {"cpu.max": "250000 100000\n"}, 2.5),
    "version 2, unlimited": ("0::/\n", {"cpu.max": "max 100000\n"}, NONE),
    "version 2, root without a file": ("0::/\n", {}, NONE),
    "version 2, a parent limits": ("0::/pod/box\n", {"pod/box/cpu.max": "max 1", "pod/cpu.max": "300 100"}, 3),
    "version 2, the least counts": ("0::/pod/box\n", {"pod/box/cpu.max": "200 100", "pod/cpu.max": "300 100"}, 2),
    "version 2, the path is the host's": ("0::/host/pod\n", {"cpu.max": "150000 100000"}, 1.5),
    "version 2, nonsense": ("0::/\n", {"cpu.max": "a lot"}, NONE),
    "version 1": (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "150000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 1.5),
    "version 1, by its short name": (V1, {"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
    "version 1, unlimited": (V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, NONE),
    "both": ("4:cpu:/\n0::/\n", {"cpu/cpu.cfs_quota_us": "300", "cpu/cpu.cfs_period_us": "100"}, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_quota_of_control_groups(tmp_path: Path, case: str) -> None:
    groups, files, expected = CASES[case]
    assert cpu_quota(*lay(tmp_path, groups, files)) == expected


def test_no_control_groups_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "nowhere", tmp_path) == NONE


@pytest.mark.parametrize(("quota", "affinity", "expected"), [("250", 8, 2), ("50", 8, 1), ("max", 3, 3), ("900", 2, 2)])
def test_quota_and_affinity_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, affinity: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)))
    assert usable_cpus(*lay(tmp_path, "0::/\n", {"cpu.max": f"{quota} 100"})) == expected


def test_this_machine() -> None:
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)
