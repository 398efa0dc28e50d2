"""Proxies: one that balances connections, not calls, like a Kubernetes Service, and nginx, which balances calls."""

import asyncio
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import cycle
from pathlib import Path

import pytest

from dragoman.local import LOOPBACK, LocalServer, free_port
from tests.support.waiting import until

PROBE_SECONDS = 0.1
# fail_timeout: nginx tries a failed server again after a second; by default after ten.
CONFIGURATION = """\
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log stderr error;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/client;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream servers {{
        {servers}
    }}
    server {{
        listen {address} http2;
        location / {{
            grpc_pass grpc://servers;
        }}
    }}
}}
"""


class ConnectionBalancer:
    """Forwards each new connection to the next ready server.

    Args:
        servers: The servers; the list may change.

    Attributes:
        address: Address for clients.
    """

    def __init__(self, servers: list[LocalServer]) -> None:
        self._servers = servers
        self._ready: list[int] = []
        self._turns = cycle(range(1 << 30))
        self.address = ""

    async def probe(self) -> None:
        """Probes the servers until cancelled."""
        while True:
            servers = list(self._servers)
            ready = await asyncio.gather(*(asyncio.to_thread(_is_ready, server) for server in servers))
            self._ready = [server.port for server, is_ready in zip(servers, ready, strict=True) if is_ready]
            await asyncio.sleep(PROBE_SECONDS)

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not self._ready:  # noqa: ASYNC110  # checked as often as probes run
            await asyncio.sleep(PROBE_SECONDS)
        with suppress(OSError):
            port = self._ready[next(self._turns) % len(self._ready)]
            server_reader, server_writer = await asyncio.open_connection(LOOPBACK, port)
            await asyncio.gather(_pump(reader, server_writer), _pump(server_reader, writer))


@asynccontextmanager
async def connection_balancer(servers: list[LocalServer]) -> AsyncIterator[ConnectionBalancer]:
    balancer = ConnectionBalancer(servers)
    probing = asyncio.create_task(balancer.probe())
    listener = await asyncio.start_server(balancer.forward, LOOPBACK, 0)
    balancer.address = f"{LOOPBACK}:{listener.sockets[0].getsockname()[1]}"
    try:
        yield balancer
    finally:
        listener.close()
        probing.cancel()


def _is_ready(server: LocalServer) -> bool:
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{server.metrics_port}/readyz", timeout=10):
            return True
    except OSError:
        return False


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextmanager
def nginx(servers: Sequence[str], folder: Path) -> Iterator[int]:
    """Runs nginx in front of the servers and yields its port; `folder` must be empty."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        reason = "needs nginx: on Debian, apt-get install nginx"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    port = free_port()
    lines = "\n        ".join(f"server {server} fail_timeout=1s;" for server in servers)
    configuration = folder / "nginx.conf"
    configuration.write_text(CONFIGURATION.format(folder=folder, servers=lines, address=f"{LOOPBACK}:{port}"))
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([program, "-c", str(configuration), "-e", "stderr"], stdout=output, stderr=output)
    try:
        until(lambda: process.poll() is not None or _listens(port), otherwise=log.read_text)
        assert process.poll() is None, log.read_text()
        yield port
    finally:
        process.terminate()
        process.wait()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection((LOOPBACK, port)):
        return True
    return False
