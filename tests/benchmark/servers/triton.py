"""A real Triton, out of the wheel that PyTriton brings it in, with a Python environment of its own."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

import grpc

from dragoman.inference import open_inference_pb2 as oip
from dragoman.inference import open_inference_pb2_grpc
from dragoman.local import LOOPBACK
from tests.benchmark.servers.running import ROOT, Running, Setting, running

PINNED = ("nvidia-pytriton==0.7.0", f"ctranslate2=={version('ctranslate2')}", f"tokenizers=={version('tokenizers')}")
PYTHON = "/usr/bin/python3"  # Triton's Python backend loads libpython from where the system has it
MODEL = "model"
CONFIG = """name: "model"
backend: "python"
max_batch_size: {batch}
input [ {{ name: "text" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "text" data_type: TYPE_STRING dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: {workers} }} ]
dynamic_batching {{ }}
parameters {{ key: "model" value {{ string_value: "{model}" }} }}
parameters {{ key: "compute_type" value {{ string_value: "{compute_type}" }} }}
parameters {{ key: "threads" value {{ string_value: "{threads}" }} }}
"""


class TritonSetupError(Exception):
    """Triton can't be installed on this machine; the message says why and names a remedy."""


class Triton:
    """A Triton installation in `folder`, made if it does not exist.

    Raises:
        TritonSetupError: Triton can't be installed.
    """

    def __init__(self, folder: Path) -> None:
        self._python, self._backends, stamp = folder / "python", folder / "backends", folder / "installed"
        pins = "\n".join(PINNED)
        if not stamp.exists() or stamp.read_text() != pins:
            shutil.rmtree(folder, ignore_errors=True)
            _run(PYTHON, "-m", "venv", str(self._python))
            _run(str(self._python / "bin" / "pip"), "install", "--quiet", *PINNED)
            self._lay_backend()
            stamp.write_text(pins)

    @property
    def _package(self) -> Path:
        return next(self._python.glob("lib/python3*/site-packages/pytriton"))

    def _lay_backend(self) -> None:
        """Puts the Python backend and the program that runs a model with this release of Python side by side."""
        release = self._package.parents[1].name.removeprefix("python")
        source, here = self._package / "tritonserver", self._backends / "python"
        shutil.copytree(source / "backends" / "python", here)
        stub = source / "python_backend_stubs" / release / "triton_python_backend_stub"
        if not stub.exists():
            raise TritonSetupError(f"{PINNED[0]} has no Python backend for Python {release}, which {PYTHON} is")
        shutil.copy(stub, here)

    @contextmanager
    def start(self, model: Path, compute_type: str, setting: Setting) -> Iterator[Running]:
        """With one model: as many instances of it as there are workers."""
        with tempfile.TemporaryDirectory() as scratch:
            self._write(Path(scratch), model, compute_type, setting)
            with running(partial(self._command, scratch), _infers, self._environment(setting)) as served:
                yield served

    def _write(self, scratch: Path, model: Path, compute_type: str, setting: Setting) -> None:
        """What Triton calls a repository."""
        folder = scratch / MODEL / "1"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text("from tests.benchmark.servers.triton_model import TritonPythonModel\n")
        values = {"workers": setting.workers, "threads": setting.threads, "batch": setting.batch}
        config = CONFIG.format(model=model, compute_type=compute_type, **values)
        (folder.parent / "config.pbtxt").write_text(config)

    def _environment(self, setting: Setting) -> dict[str, str]:
        """Its Python backend takes the first python3 on the path, and that one's packages."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV")}
        return {
            **kept,
            "PATH": f"{self._python / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "LD_LIBRARY_PATH": str(self._package.with_name("nvidia_pytriton.libs")),
            **setting.kernels,
        }

    def _command(self, scratch: str, port: int) -> list[str]:
        return [
            str(self._package / "tritonserver/bin/tritonserver"),
            *("--model-repository", scratch, "--backend-directory", str(self._backends)),
            *("--grpc-address", LOOPBACK, "--grpc-port", str(port), "--allow-http", "false"),
            *("--allow-metrics", "false", "--exit-timeout-secs", "5"),
        ]


def _infers(port: int) -> bool:
    with grpc.insecure_channel(f"{LOOPBACK}:{port}") as channel:
        stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            return bool(stub.ModelReady(oip.ModelReadyRequest(name=MODEL), timeout=0.5).ready)
        except grpc.RpcError:
            return False


def _run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        hint = "Triton needs Debian's or Ubuntu's own Python (apt-get install python3-venv libpython3-dev)"
        raise TritonSetupError(f"{' '.join(command[:3])} failed; {hint}:\n{last}")
