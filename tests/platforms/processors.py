"""Other x86 processors, emulated by QEMU's user mode."""

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path

from dragoman.local import LocalServer

EMULATOR = "qemu-x86_64"
# With these a host may fix the kernels of NumPy's OpenBLAS, which the emulated processor may be unable to run.
HOST_KERNELS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
HASWELL = "Haswell"  # AVX2 without VNNI, like AMD up to Zen 3
PROCESSORS = (HASWELL, "Nehalem")  # the latter has SSE4.2 only, little more than x86-64-v2
NEWER = re.compile(r"avx512\w*|avx_vnni\w*|amx_\w+")  # features for which ONNX Runtime has faster kernels than for AVX2
# Few rows and one thread, because emulators are slow; a batch of 200 still fills the rows.
SETTINGS = ("--engines", "1", "--threads-per-engine", "1", "--max-rows", "16", "--log-requests", "none")
START_SECONDS = 300.0  # for an emulated server to load all models


def missing() -> str | None:
    """Returns why processors can't be emulated on this machine; None if they can."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return "emulating other x86 processors needs Linux on x86-64"
    if shutil.which(EMULATOR) is None:
        return f"needs {EMULATOR}, which is not installed here (Debian's package qemu-user)"
    return None


def others(features: Set[str]) -> list[str]:
    """Returns the `PROCESSORS` for which ONNX Runtime has other kernels than for one with these features."""
    own = HASWELL if "avx2" in features and not any(map(NEWER.fullmatch, features)) else None
    return [processor for processor in PROCESSORS if processor != own]


def features() -> frozenset[str]:
    """Returns the features of this machine's processor by their names in /proc/cpuinfo, if there is one."""
    try:
        flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except FileNotFoundError:
        return frozenset()
    return frozenset(flags[1].split() if flags else ())


def unknown(processors: Sequence[str]) -> str | None:
    """Returns a message that names the processors that the emulator does not know; None if it knows all."""
    listed = subprocess.run(
        [EMULATOR, "-cpu", "help"], capture_output=True, text=True, check=False
    ).stdout  # exits with 1
    known = {line.split()[1] for line in listed.splitlines() if line.startswith("x86 ")}
    unknown_names = [name for name in processors if name.partition(",")[0] not in known]
    return (
        f"{EMULATOR} knows no {', '.join(unknown_names)}; `{EMULATOR} -cpu help` lists what it knows"
        if unknown_names
        else None
    )


def command(processor: str) -> list[str]:
    """Returns the command that runs a server on a processor of `qemu-x86_64 -cpu help`."""
    unset = [argument for name in HOST_KERNELS for argument in ("-U", name)]
    return [EMULATOR, *unset, "-cpu", processor, sys.executable, "-m", "dragoman_server"]


@contextmanager
def serving(
    repository: Path, command: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Iterator[LocalServer]:
    """Serves a model repository on this machine, or with a command that emulates another one."""
    arguments = ("--model-repository", str(repository), *SETTINGS)
    with LocalServer(*arguments, command=command, environment=environment, wait_seconds=START_SECONDS) as server:
        yield server
