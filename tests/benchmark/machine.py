"""The machine, versions and date of a measurement."""

import platform
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from dragoman_server.machine import usable_cpus

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("onnxruntime", "ctranslate2", "grpcio", "protobuf", "tokenizers", "numpy", "uvloop")
QUIET_CORES = 0.2  # kept busy by whatever else runs: as much disturbs nobody
LOOKS, LOOK_SECONDS = 5, 1.0  # what ran before may still be ending
COMPACT = Path("/proc/sys/vm/compact_memory")


def describe(module: str = "tests.benchmark", packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Returns processor, memory, versions, date, commit, the command line of `module`, and the load by other processes.

    Takes a second, or up to LOOKS seconds on a busy machine, during which this process sleeps. Compacts memory.
    """
    compact_memory()
    return {
        "busy_cores_before": round(busy_cores(), 2),
        "date": datetime.now(UTC).isoformat(sep=" ", timespec="minutes").removesuffix("+00:00") + " UTC",
        "cpu": _cpu_name(),
        "cores": usable_cpus(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
        "commit": _commit(),
        "command": " ".join([f"python -m {module}", *sys.argv[1:]]),
    }


def busy_cores() -> float:
    """Returns the number of cores that other processes keep busy: the first quiet sample, or else the last one.

    A load average would not do, because it includes processes that ended minutes ago.
    """
    cores = 0.0
    for _ in range(LOOKS):
        cores = psutil.cpu_percent(LOOK_SECONDS) / 100 * (psutil.cpu_count() or 1)
        if cores <= QUIET_CORES:
            break
    return cores


def compact_memory() -> None:
    """Lets Linux gather its free memory into large blocks, if this process is root.

    On a machine that had worked for a day, the server that got the scattered pages, which is the first to start,
    generated a quarter fewer tokens a second than an equal one that started later; afterwards all were equally fast.
    """
    with suppress(OSError):
        COMPACT.write_text("1")


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    """Returns the commit, with "+" if the working tree differs from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
