"""A real Triton, out of the wheel that PyTriton brings it in, with a Python environment of its own."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

PINNED = ("nvidia-pytriton==0.7.0", f"ctranslate2=={version('ctranslate2')}", f"tokenizers=={version('tokenizers')}")
INTERPRETERS = ("/usr/bin/python3", "python3.13", "python3.12", "python3.11", "python3.10", "python3")
_ASK = (
    "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_config_var('Py_ENABLE_SHARED'), sys.prefix "
    "== sys.base_prefix)"
)


class TritonSetupError(Exception):
    """Triton can't be had here; the message says why, and what would help."""


@dataclass(frozen=True)
class Triton:
    """An installed Triton.

    Attributes:
        python: the environment's directory.
        server: the program.
        backends: the directory of its backends.
        libraries: of what it links.
        version: of the wheel, in words.
    """

    python: Path
    server: Path
    backends: Path
    libraries: Path
    version: str = PINNED[0]

    def environment(self, root: Path) -> dict[str, str]:
        """For the process: its Python backend takes the first python3 on the path, and that one's packages.

        Args:
            root: where its models import from, too.
        """
        return {
            **{name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV")},
            "PATH": f"{self.python / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(root),
            "LD_LIBRARY_PATH": str(self.libraries),
        }


def set_up_triton(folder: Path) -> Triton:
    """Triton in `folder`, installed there unless it is already.

    Raises:
        TritonSetupError: it can't be.
    """
    python, backends, stamp = folder / "python", folder / "backends", folder / "installed"
    pins = "\n".join(PINNED)
    if not stamp.exists() or stamp.read_text() != pins:
        shutil.rmtree(folder, ignore_errors=True)
        interpreter, release = find_interpreter()
        _run(
            [interpreter, "-m", "venv", str(python)],
            f"{interpreter} can't make an environment (Debian and Ubuntu: apt-get install python3-venv)",
        )
        _run([str(python / "bin" / "pip"), "install", "--quiet", *PINNED], "pip can't install Triton")
        _lay_backend(_package(python), backends, release)
        stamp.write_text(pins)
    package = _package(python)
    triton = Triton(python, package / "tritonserver/bin/tritonserver", backends, package.with_name(LIBRARIES))
    _check(triton)
    return triton


def find_interpreter() -> tuple[str, str]:
    """A Python whose library Triton can load, and its release, such as "3.11".

    Triton's Python backend loads libpython from where the system has it, so a Python built for itself alone won't do.

    Raises:
        TritonSetupError: there is none.
    """
    for name in INTERPRETERS:
        path = shutil.which(name)
        if path is None:
            continue
        asked = subprocess.run([path, "-c", _ASK], capture_output=True, text=True, check=False)
        major, minor, shared, bare = asked.stdout.split() if asked.returncode == 0 else ("0", "0", "0", "False")
        if major == "3" and 9 <= int(minor) <= 13 and shared == "1" and bare == "True":
            return path, f"{major}.{minor}"
    raise TritonSetupError(
        "Triton needs a system's own Python 3.9 to 3.13, with its shared library; Debian and Ubuntu have it as "
        "/usr/bin/python3 (apt-get install python3-venv libpython3-dev)"
    )


LIBRARIES = "nvidia_pytriton.libs"


def _package(python: Path) -> Path:
    found = list(python.glob("lib/python3*/site-packages/pytriton"))
    if not found:
        raise TritonSetupError(f"{python}: nvidia-pytriton is not in there; remove {python.parent} and try again")
    return found[0]


def _lay_backend(package: Path, backends: Path, release: str) -> None:
    """Puts the Python backend and the program that runs a model with this release of Python side by side."""
    source = package / "tritonserver"
    shutil.copytree(source / "backends" / "python", backends / "python")
    stub = source / "python_backend_stubs" / release / "triton_python_backend_stub"
    if not stub.exists():
        raise TritonSetupError(f"{PINNED[0]} has no Python backend for Python {release}")
    shutil.copy(stub, backends / "python")


def _check(triton: Triton) -> None:
    """That both programs find what they link."""
    for program in (triton.server, triton.backends / "python" / "triton_python_backend_stub"):
        needed = subprocess.run(
            ["ldd", str(program)], capture_output=True, text=True, check=False, env=triton.environment(triton.python)
        )
        missing = [line.split()[0] for line in needed.stdout.splitlines() if "not found" in line]
        if needed.returncode or missing:
            what = ", ".join(missing) or needed.stderr.strip()
            raise TritonSetupError(f"{program} can't be started here; it lacks {what}")


def _run(command: list[str], problem: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise TritonSetupError(f"{problem}:\n{last}")
