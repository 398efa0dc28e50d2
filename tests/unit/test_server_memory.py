"""How much memory the container and the machine leave."""

from pathlib import Path

import pytest

from dragoman_server.machine.memory import free_memory, in_words, resident_memory

MIB = 2**20


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    (tmp_path / "cgroup").write_text("4:memory:/pods/one\n3:cpu,cpuacct:/pods/one\n0::/pods/one\n")
    (tmp_path / "meminfo").write_text("MemTotal: 4096000 kB\nMemFree: 1000 kB\nMemAvailable: 2048000 kB\n")
    return tmp_path


def group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def free(machine: Path) -> tuple[int, str]:
    return free_memory(machine, machine / "fs", machine / "meminfo")


def test_without_limits_it_is_what_the_machine_has_available(machine: Path) -> None:
    assert free(machine) == (2000 * MIB, "machine")


def test_a_container_of_version_2_has_what_its_limit_leaves_and_what_can_be_dropped(machine: Path) -> None:
    stat = f"anon 1\nfile 5\ninactive_file {30 * MIB}"
    group(machine / "fs/pods/one", memory__max=500 * MIB, memory__current=130 * MIB, memory__stat=stat)
    assert free(machine) == (400 * MIB, "container")


def test_the_least_of_all_groups_above_counts(machine: Path) -> None:
    group(machine / "fs/pods/one", memory__max="max", memory__current=130 * MIB, memory__stat="inactive_file 0")
    group(machine / "fs/pods", memory__max=300 * MIB, memory__current=200 * MIB, memory__stat="inactive_file 0")
    assert free(machine) == (100 * MIB, "container")


def test_a_container_of_version_1(machine: Path) -> None:
    files = {"memory__limit_in_bytes": 500 * MIB, "memory__usage_in_bytes": 90 * MIB}
    group(machine / "fs/memory/pods/one", **files, memory__stat=f"cache 9\ntotal_inactive_file {40 * MIB}")
    assert free(machine) == (450 * MIB, "container")
    # Version 1 writes the largest number there is where nothing is limited.
    group(machine / "fs/memory/pods/one", memory__limit_in_bytes=2**63 - 4096)
    assert free(machine) == (2000 * MIB, "machine")


def test_a_container_that_is_over_its_limit_has_nothing(machine: Path) -> None:
    group(machine / "fs/pods/one", memory__max=100, memory__current=200, memory__stat="inactive_file 50")
    assert free(machine) == (0, "container")


def test_groups_that_can_not_be_read_do_not_limit(machine: Path) -> None:
    group(machine / "fs/pods/one", memory__max="?", memory__current=1, memory__stat="")
    group(machine / "fs/pods", memory__max=1)
    assert free(machine) == (2000 * MIB, "machine")


def test_this_process_has_some(tmp_path: Path) -> None:
    assert resident_memory() > MIB
    assert resident_memory(tmp_path) == 0, "no Linux, nothing told"
    assert free_memory()[0] > 0
    assert free_memory(tmp_path, tmp_path, tmp_path / "none")[0] > 0


@pytest.mark.parametrize(
    ("size", "words"),
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
def test_sizes_are_written_for_people(size: int, words: str) -> None:
    assert in_words(size) == words
