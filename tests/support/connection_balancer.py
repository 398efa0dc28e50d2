"""A proxy that balances connections, not calls, like a Kubernetes Service."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import cycle

from dragoman.local import LOOPBACK, LocalServer

PROBE_SECONDS = 0.1


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
