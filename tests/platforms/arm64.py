"""An emulated ARM64 machine: a small Debian of that architecture, its Python, the server's wheels, and QEMU.

It is prepared once in a folder, from a Debian mirror and pip's index. Servers run the code of the checkout.

    machine = prepare(ROOT / "build" / "arm64")
    LocalServer(command=machine.command(), environment=machine.environment())
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# NOTE: the emulator is also from this Debian, not from the host. The one of Debian 12 shows programs the host's
# /proc/cpuinfo; ONNX Runtime finds no ARM processor in it and dereferences a null pointer.
DEBIAN, PYTHON = "trixie", "3.13"
EMULATOR = "qemu-aarch64"
PACKAGES = ("base-files", "libstdc++6", f"python{PYTHON}")
EMULATORS = "qemu-user:amd64"
# Unpacks one of its forty emulators, which are linked statically; tar stops reading behind it.
ADD_EMULATOR = f"""
set -e
cd "$1/var/cache/apt/archives"
APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get download -qq {EMULATORS}
dpkg-deb --fsys-tarfile qemu-user_*.deb 2>/dev/null | tar -x --occurrence=1 -C "$1" ./usr/bin/{EMULATOR}
rm qemu-user_*.deb
"""
WHEELS_FOR = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
# By the instructions with which ONNX Runtime multiplies integers: NEON, dot products of four bytes, and I8MM.
PROCESSORS = ("cortex-a72", "neoverse-n1", "neoverse-v1")
IMPORTS = "import grpc, numpy, onnxruntime, pydantic, tokenizers"  # the largest; the server imports the rest itself


class NoMachineError(Exception):
    """ARM64 can't be emulated on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A folder made by `prepare`, and the checkout to serve from.

    Only single processes are emulated. Child processes are not, so servers can't have workers.
    """

    folder: Path
    checkout: Path = ROOT

    def python(self, processor: str = "neoverse-n1") -> list[str]:
        """Returns the command that runs Python on a processor of `qemu-aarch64 -cpu help`."""
        root = self.folder / "root"
        emulator, python = root / "usr" / "bin" / EMULATOR, root / "usr" / "bin" / f"python{PYTHON}"
        return [str(emulator), "-cpu", processor, "-L", str(root), str(python)]

    def command(self, processor: str = "neoverse-n1") -> list[str]:
        """Returns the command that serves the checkout's bundle, without options of `dragoman-serve`."""
        return [*self.python(processor), "-m", "dragoman_server"]

    def environment(self) -> dict[str, str]:
        """Returns the environment of both commands. It caches bytecode, which takes seconds to compile."""
        paths = [self.checkout / "server", self.checkout / "protos", self.folder / "libraries"]
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "QEMU_"))},
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode"),
            "PYTHONSAFEPATH": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }


def missing() -> str | None:
    """Returns an obvious reason why ARM64 can't be emulated on this machine; None if there is none."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return "the emulated ARM64 needs Linux on x86-64"
    if shutil.which("mmdebstrap") is None:
        return "the emulated ARM64 needs mmdebstrap: on Debian, apt-get install mmdebstrap"
    return None if os.geteuid() == 0 else "the emulated ARM64 needs root to build a Debian"


def prepare(folder: Path, checkout: Path = ROOT) -> Machine:
    """Prepares a machine, or reuses what an earlier call has left in the folder.

    Args:
        folder: Folder for a few hundred megabytes; need not exist.
        checkout: Checkout with the constraints to apply and the code to serve.

    Raises:
        NoMachineError: A program is missing, the mirror or the index is unreachable, or the emulator fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    machine = Machine(folder.resolve(), checkout.resolve())
    _make(machine.folder / "root", " ".join((DEBIAN, *PACKAGES, EMULATORS)), _make_root)
    pins = [(machine.checkout / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    recipe = f"{machine.checkout} {PYTHON} {hashlib.sha256(b''.join(pins)).hexdigest()}"
    _make(machine.folder / "libraries", recipe, lambda path: _install(path, machine.checkout), lambda: _try(machine))
    return machine


def _make(path: Path, recipe: str, make: Callable[[Path], None], check: Callable[[], None] = lambda: None) -> None:
    """Makes a folder atomically and checks it, unless a checked one of the same recipe exists."""
    label = path.with_name(f"{path.name}.txt")
    if path.is_dir() and label.is_file() and label.read_text(encoding="utf-8") == recipe:
        return
    if reason := missing():
        raise NoMachineError(reason)
    shutil.rmtree(path, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        make(made)
        made.replace(path)
    check()
    label.write_text(recipe, encoding="utf-8")


def _make_root(path: Path) -> None:
    """Unpacks the Debian without running its scripts, and one emulator."""
    command = ["mmdebstrap", "--variant=extract", "--architectures=arm64,amd64", f"--extract-hook={ADD_EMULATOR}"]
    command += [f"--include={','.join(PACKAGES)}", DEBIAN, str(path), *_mirrors()]
    _run(command, f"mmdebstrap can't make an ARM64 Debian {DEBIAN}")


def _mirrors() -> list[str]:
    """Returns the Debian mirrors that apt knows; none on other distributions, where mmdebstrap has a default."""
    debian = ["Identifier: Packages", "Origin: Debian", "Label: Debian"]
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", *debian]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return sorted(set(done.stdout.split()))


def _install(path: Path, checkout: Path) -> None:
    """Installs the requirements of the extra `server` for ARM64, and only the metadata of the checkout."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    command += [part for name in WHEELS_FOR for part in ("--platform", name)]
    command += ["--python-version", PYTHON, "--only-binary", ":all:", "--no-build-isolation", "--target", str(path)]
    command += ["--constraint", str(checkout / "constraints.txt"), "--editable", f"{checkout}[server]"]
    _run(command, "pip can't install the server's libraries for ARM64")


def _try(machine: Machine) -> None:
    """Imports libraries of the server, which also caches their bytecode."""
    failure = "the emulated ARM64 can't run the server's libraries"
    _run([*machine.python(), "-c", IMPORTS], failure, machine.environment())


def _run(command: Sequence[str], failure: str, environment: dict[str, str] | None = None) -> None:
    """Runs a program; on failure raises NoMachineError with its first error message, or else its last line."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("E: ", "ERROR: "))]
        reason = [*errors[:1], *lines[-1:], f"exit status {done.returncode}"][0]
        raise NoMachineError(f"{failure}: {reason}")
