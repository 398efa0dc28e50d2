"""What the numbers were measured on."""

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import psutil

from server.cpu import usable_cpus

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("onnxruntime", "ctranslate2", "grpcio", "protobuf", "tokenizers", "numpy", "uvloop")


def describe(module: str = "tests.benchmark", packages: Sequence[str] = PACKAGES) -> dict[str, object]:
    """Processor, memory, load, versions, commit and command line: of `module`, which was run."""
    return {
        "cpu": _cpu_name(),
        "cores": usable_cpus(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_average_before": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
        "commit": _commit(),
        "command": " ".join([f"python -m {module}", *sys.argv[1:]]),
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    """The commit measured, with "+" where the working tree differs from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
