"""A local server process for demos, tests and benchmarks.

    with LocalServer() as server, Client(server.address) as client:
        print(client.generate("dragoman").text)

Requires the `server` extra: it runs the `dragoman-serve` that is installed beside this Python.
"""

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from dragoman.proxies import open_url

LOOPBACK = "127.0.0.1"
POLL_SECONDS = 0.02


class ServerStartError(Exception):
    """The server did not start. The message ends with the last lines of its log."""


def free_port() -> int:
    """Returns a port of the loopback interface that is free at this moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port


def serve_command() -> str:
    """Returns the path of `dragoman-serve`.

    Raises:
        ServerStartError: It is not installed.
    """
    beside = Path(sys.executable).with_name("dragoman-serve")
    found = str(beside) if beside.exists() else shutil.which("dragoman-serve")
    if found is None:
        raise ServerStartError("dragoman-serve is not installed; run `pip install '.[server]'` in a clone of Dragoman")
    return found


class LocalServer:
    """A `dragoman-serve` on loopback ports.

    Attributes:
        host: Address it listens on.
        port: gRPC port.
        metrics_port: Port of metrics and probes, plain HTTP.
        address: HOST:PORT for a client.
        process: The process, for example to send it signals.
        log: File with its standard output and standard error.
        start_seconds: Seconds from the start of the process until the server is ready.
    """

    def __init__(
        self,
        *arguments: str,
        log: Path | None = None,
        wait_seconds: float = 60,
        host: str = LOOPBACK,
        port: int | None = None,
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the server and waits until it is ready.

        Args:
            arguments: Further arguments of dragoman-serve, such as "--bundle", "DIR".
            log: File for its output; None for a temporary file.
            wait_seconds: Maximum seconds to wait.
            host: An address of the loopback interface.
            port: gRPC port; None for a free one.
            command: Command that runs the server, such as an emulator with its arguments; empty for dragoman-serve.
            environment: Environment of the process; None for that of this process.

        Raises:
            ServerStartError: It exited, or was not ready in time.
        """
        self.host = host
        self._command, self._environment = list(command), environment
        self._scratch = tempfile.TemporaryDirectory()
        self.log = log or Path(self._scratch.name) / "server.log"
        started = time.monotonic()
        try:
            while not self._start(arguments, port, started + wait_seconds):
                pass
        except BaseException:
            self._scratch.cleanup()
            raise
        self.start_seconds = time.monotonic() - started

    def _start(self, arguments: Sequence[str], port: int | None, deadline: float) -> bool:
        """Starts the process and waits until it serves.

        Returns:
            False if another process took a free port before the server did.
        """
        self.port, self.metrics_port = port or free_port(), free_port()
        self.address = f"{self.host}:{self.port}"
        listen = ["--host", self.host, "--port", str(self.port), "--metrics-port", str(self.metrics_port)]
        with self.log.open("wb") as output:
            command = [*(self._command or [serve_command()]), *listen, *arguments]
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self._environment
            )
        try:
            self._wait_until_serving(deadline)
        except BaseException as error:
            self.process.kill()
            self.process.wait()
            chosen = [self.metrics_port] if port else [self.port, self.metrics_port]
            if isinstance(error, ServerStartError) and any(f"port {number} of " in str(error) for number in chosen):
                return False
            raise
        return True

    def _wait_until_serving(self, deadline: float) -> None:
        """Probes over plain HTTP, which works whatever the gRPC port requires."""
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                with open_url(f"http://{self.host}:{self.metrics_port}/readyz", timeout=1):
                    return
            except OSError:
                time.sleep(POLL_SECONDS)  # not listening yet, or not ready
        exited = self.process.poll()
        reason = "was not serving in time" if exited is None else f"exited with {exited}"
        raise ServerStartError(f"dragoman-serve {reason}; its log ends with:\n{self.log_tail()}")

    def log_tail(self, lines: int = 15) -> str:
        """Returns the last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def metrics(self) -> dict[str, float]:
        """Returns the current metrics, by 'name{label="value"}'."""
        with open_url(f"http://{self.host}:{self.metrics_port}/metrics", timeout=10) as page:
            text: str = page.read().decode()
        samples = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def stop(self, wait_seconds: float = 30) -> int:
        """Drains and stops the server (SIGTERM).

        Returns:
            Its exit status, also if it has exited before.

        Raises:
            subprocess.TimeoutExpired: It did not exit in time.
        """
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(wait_seconds)
        self._scratch.cleanup()
        return status

    def kill(self) -> None:
        """Kills the server."""
        self.process.kill()
        self.process.wait()
        self._scratch.cleanup()

    def __enter__(self) -> "LocalServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            if self.process.poll() is None:
                self.kill()
