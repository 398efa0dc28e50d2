"""Servers as child processes: started, awaited and ended."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import grpc

from dragoman.local import LOOPBACK, ServerStartError, free_port

ROOT = Path(__file__).resolve().parents[3]
START_SECONDS, END_SECONDS = 60.0, 20.0


@dataclass(frozen=True)
class Setting:
    """One way to run a server over CTranslate2.

    Attributes:
        workers: Concurrent batches: Triton's model instances, or CTranslate2's own workers.
        threads: Threads per worker.
        batch: The most texts in a batch; a batch is what arrived while the last one ran.
        kernels: Environment variables that select CTranslate2's kernels.
    """

    workers: int
    threads: int
    batch: int
    kernels: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.workers} x {self.threads} threads, batches of {self.batch}"


class Running(NamedTuple):
    """A server of ours, and where it listens."""

    port: int
    process: "subprocess.Popen[bytes]"


@contextmanager
def running(
    command: Callable[[int], list[str]], ready: Callable[[int], bool], environment: Mapping[str, str]
) -> Iterator[Running]:
    """Runs a process that listens on a port.

    Args:
        command: Function from the port to the command.
        ready: Function that returns whether the server is ready; called repeatedly.
        environment: All environment variables.

    Raises:
        ServerStartError: The server did not start.
    """
    port = free_port()
    arguments = command(port)
    with tempfile.TemporaryFile() as log:
        options = {"cwd": ROOT, "env": environment, "stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        process = subprocess.Popen(arguments, **options)  # type: ignore[call-overload]
        try:
            end = time.monotonic() + START_SECONDS
            while not ready(port):
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    last = b"\n".join(log.read().splitlines()[-30:]).decode(errors="replace")
                    raise ServerStartError(f"{Path(arguments[0]).name} did not come up; it said:\n{last}")
                time.sleep(0.05)
            yield Running(port, process)
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def start_asyncio(model: Path, compute_type: str, setting: Setting) -> AbstractContextManager[Running]:
    """The plain server; see asyncio_server.py."""

    def command(port: int) -> list[str]:
        asked = {"workers": setting.workers, "threads": setting.threads, "batch": setting.batch}
        arguments = json.dumps({"port": port, "model": str(model), "compute_type": compute_type, **asked})
        return [sys.executable, "-m", "tests.benchmark.servers.asyncio_server", arguments]

    return running(command, _listens, {**os.environ, **setting.kernels})


def _listens(port: int) -> bool:
    with grpc.insecure_channel(f"{LOOPBACK}:{port}") as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=0.5)
        except grpc.FutureTimeoutError:
            return False
    return True
