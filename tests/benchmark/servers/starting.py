"""Servers as processes of ours: started, waited for, ended."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import grpc

from dragoman.inference import open_inference_pb2 as oip
from dragoman.inference import open_inference_pb2_grpc
from dragoman.local import LOOPBACK, ServerStartError, free_port
from tests.benchmark.servers.settings import Setting
from tests.benchmark.servers.triton_setup import Triton

ROOT = Path(__file__).resolve().parents[3]
MODEL = "model"
START_SECONDS = 60.0
END_SECONDS = 20.0


class Running:
    """A process that listens on a port.

    Args:
        command: of the port.
        ready: whether it serves, asked over and over.
        environment: all of its variables.

    Raises:
        ServerStartError: it did not come up.
    """

    def __init__(
        self,
        command: Callable[[int], list[str]],
        ready: Callable[[int], bool],
        environment: Mapping[str, str],
        scratch: Path | None = None,
    ) -> None:
        self.port = free_port()
        self._scratch = scratch
        with tempfile.TemporaryFile() as log:
            arguments = command(self.port)
            self.process = subprocess.Popen(
                arguments, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            end = time.monotonic() + START_SECONDS
            while not ready(self.port):
                if self.process.poll() is not None or time.monotonic() > end:
                    self.close()
                    log.seek(0)
                    last = b"\n".join(log.read().splitlines()[-30:]).decode(errors="replace")
                    raise ServerStartError(f"{Path(arguments[0]).name} did not come up; it said:\n{last}")
                time.sleep(0.05)

    def close(self) -> None:
        """Asks it to end, and ends it where it does not."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> "Running":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def start_asyncio(model: Path, compute_type: str, setting: Setting) -> Running:
    """The plain server; see asyncio_server.py."""

    def command(port: int) -> list[str]:
        return [
            *(sys.executable, "-m", "tests.benchmark.servers.asyncio_server", "--port", str(port)),
            *("--model", str(model), "--compute-type", compute_type),
            *("--workers", str(setting.workers), "--threads", str(setting.threads)),
            *("--batch", str(setting.batch), "--delay", str(setting.delay)),
        ]

    return Running(command, _listens, {**os.environ, **setting.kernels})


def start_triton(triton: Triton, model: Path, compute_type: str, setting: Setting) -> Running:
    """Triton with one model: as many instances of it as there are workers."""
    scratch = Path(tempfile.mkdtemp())
    folder = scratch / MODEL / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text("from tests.benchmark.servers.triton_model import TritonPythonModel\n")
    (folder.parent / "config.pbtxt").write_text(triton_config(model, compute_type, setting))

    def command(port: int) -> list[str]:
        return [
            *(str(triton.server), "--model-repository", str(scratch), "--backend-directory", str(triton.backends)),
            *("--grpc-address", LOOPBACK, "--grpc-port", str(port), "--allow-http", "false"),
            *("--allow-metrics", "false", "--exit-timeout-secs", "5"),
        ]

    return Running(command, _infers, {**triton.environment(ROOT), **setting.kernels}, scratch)


def triton_config(model: Path, compute_type: str, setting: Setting) -> str:
    """The model's config.pbtxt."""
    values = {"model": str(model), "compute_type": compute_type, "threads": str(setting.threads)}
    parameters = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in values.items()
    )
    return (
        f'name: "{MODEL}"\nbackend: "python"\nmax_batch_size: {setting.batch}\n'
        'input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
        'output [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
        f"instance_group [ {{ kind: KIND_CPU count: {setting.workers} }} ]\n"
        f"dynamic_batching {{ max_queue_delay_microseconds: {round(1e6 * setting.delay)} }}\n{parameters}"
    )


def _listens(port: int) -> bool:
    with grpc.insecure_channel(f"{LOOPBACK}:{port}") as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=0.5)
        except grpc.FutureTimeoutError:
            return False
    return True


def _infers(port: int) -> bool:
    with grpc.insecure_channel(f"{LOOPBACK}:{port}") as channel:
        stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            return bool(stub.ModelReady(oip.ModelReadyRequest(name=MODEL), timeout=0.5).ready)
        except grpc.RpcError:
            return False
