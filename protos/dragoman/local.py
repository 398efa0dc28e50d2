"""A server process of one's own, for demos, tests and benchmarks: started, waited for, stopped.

    with LocalServer() as server, Client(server.address) as client:
        print(client.generate("dragoman").text)

Needs the `server` extra, as it runs the `dragoman-serve` that is installed beside this Python.
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
    """The server did not come up; the message ends with the last lines of its log."""


def free_port() -> int:
    """A port of the loopback interface that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port


def serve_command() -> str:
    """Path of `dragoman-serve`.

    Raises:
        ServerStartError: it is not installed.
    """
    beside = Path(sys.executable).with_name("dragoman-serve")
    found = str(beside) if beside.exists() else shutil.which("dragoman-serve")
    if found is None:
        raise ServerStartError(
            "dragoman-serve is not installed; `pip install '.[server]'` in a clone of Dragoman brings it"
        )
    return found


class LocalServer:
    """A `dragoman-serve` on loopback ports.

    Attributes:
        host, port, metrics_port: where it listens.
        address: HOST:PORT for a client.
        process: the process, for those who want to send it signals.
        log: the file that its standard output and error go to.
        start_seconds: from the start of the process until it is ready.
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
            arguments: more arguments of dragoman-serve, such as "--bundle", "DIR".
            log: where its output goes; a temporary file when None.
            wait_seconds: how long to wait at most.
            host: an address of the loopback interface.
            port: for gRPC; a free one when None.
            command: what runs the server, such as an emulator with its arguments; dragoman-serve when empty.
            environment: of the process; this one's when None.

        Raises:
            ServerStartError: it exited, or was not serving in time.
        """
        self.host = host
        self._command, self._environment = list(command), environment
        self._scratch = tempfile.TemporaryDirectory()
        self.log = log or Path(self._scratch.name) / "server.log"
        started = time.monotonic()
        try:
            while not self._starts(arguments, port, started + wait_seconds):
                pass
        except BaseException:
            self._scratch.cleanup()
            raise
        self.start_seconds = time.monotonic() - started

    def _starts(self, arguments: Sequence[str], port: int | None, deadline: float) -> bool:
        """Starts the process, and waits until it serves.

        Returns:
            false where a free port was taken by somebody else before the server could have it.
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
            found = [self.metrics_port] if port else [self.port, self.metrics_port]
            if isinstance(error, ServerStartError) and any(f"port {each} of " in str(error) for each in found):
                return False
            raise
        return True

    def _wait_until_serving(self, deadline: float) -> None:
        """Asks over plain HTTP, which works with every setting of the gRPC port."""
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                with open_url(f"http://{self.host}:{self.metrics_port}/readyz", timeout=1):
                    return
            except OSError:
                time.sleep(POLL_SECONDS)  # not listening yet, or not ready
        exited = self.process.poll()
        reason = "was not serving in time" if exited is None else f"exited with {exited}"
        raise ServerStartError(f"dragoman-serve {reason}; it said:\n{self.log_tail()}")

    def log_tail(self, lines: int = 15) -> str:
        """The end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def metrics(self) -> dict[str, float]:
        """What the metrics page says now: 'name{label="value"}' -> value."""
        with open_url(f"http://{self.host}:{self.metrics_port}/metrics", timeout=10) as page:
            text: str = page.read().decode()
        samples = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def stop(self, wait_seconds: float = 30) -> int:
        """Asks the server to drain and end (SIGTERM), and gives its exit status; that of an ended one is given again.

        Raises:
            subprocess.TimeoutExpired: it did not end in time.
        """
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(wait_seconds)
        self._scratch.cleanup()
        return status

    def kill(self) -> None:
        """Ends the server at once."""
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
