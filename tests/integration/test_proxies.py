"""Clients behind proxies: an HTTP proxy set in the environment, and nginx that balances calls among servers."""

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dragoman import AsyncClient, Client, UnavailableError
from dragoman.cli.live_feed import LiveError, LiveFeed
from dragoman.local import LocalServer
from tests.support.name_server import name_server
from tests.support.proxies import nginx
from tests.support.scripted_server import ScriptedServer
from tests.support.servers import G2PServer
from tests.support.steady_load import constant_load, steady_ports
from tests.support.waiting import until_async

VARIABLES = ("grpc_proxy", "http_proxy", "https_proxy", "no_grpc_proxy", "no_proxy")
ELSEWHERE = "192.0.2.1"  # an address for documentation
BYPASS = "add the host to no_proxy to bypass the proxy"
WORD = "transformer"
OPTIONS = ("--engines", "1", "--log-requests", "failed", "--drain-delay-seconds", "1.5")
GENERATE = 'dragoman_requests_total{code="OK",method="dragoman.v1.GenerationService/Generate"}'
NAME = "proxy.example"


@pytest.fixture
def dead_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy at which nobody listens."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")


@pytest.fixture
def refusing_proxy(dead_proxy: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A proxy that answers every request with 405."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        monkeypatch.setenv("http_proxy", f"http://user:secret@127.0.0.1:{listener.getsockname()[1]}")
        yield
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.usefixtures("dead_proxy")
async def test_calls_to_this_machine_bypass_the_proxy() -> None:
    with ScriptedServer() as scripted:
        port = scripted.address.rpartition(":")[2]
        for address in (scripted.address, f"localhost:{port}", [scripted.address, scripted.address]):
            with Client(address, timeout=5) as client:
                assert client.generate("a").text == "A"
                assert client.health().value == "SERVING"
            async with AsyncClient(address, timeout=5) as asynchronous:
                assert (await asynchronous.generate("a")).text == "A"


def test_pages_and_commands_on_this_machine_bypass_the_proxy(dead_proxy: None, tmp_path: Path) -> None:
    with G2PServer("--engines", "1", log=tmp_path / "log", wait_seconds=30) as server:
        assert server.metrics()
        for address in (f"127.0.0.1:{server.metrics_port}", f"http://localhost:{server.metrics_port}"):
            assert LiveFeed(address).fetch()["points"] is not None
        for command in (["health", "--address", server.address], ["top", "--once", f"127.0.0.1:{server.metrics_port}"]):
            program = Path(sys.executable).with_name("dragoman")
            done = subprocess.run([program, *command], capture_output=True, timeout=60, check=False)
            assert (done.returncode, done.stderr) == (0, b"")


async def errors(address: str) -> list[str]:
    """Returns the error of each client for a remote server."""
    with Client(address, timeout=0.5) as client, pytest.raises(UnavailableError) as one:
        client.generate("a")
    async with AsyncClient(address, timeout=0.5) as asynchronous:
        with pytest.raises(UnavailableError) as another:
            await asynchronous.generate("a")
        with pytest.raises(UnavailableError):
            await asynchronous.health()
    return [str(one.value), str(another.value)]


@pytest.mark.usefixtures("dead_proxy")
async def test_an_unreachable_proxy_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    address = f"{ELSEWHERE}:50051"
    way = "through the proxy in https_proxy"
    assert await errors(address) == [f"no server can be reached at {address} ({way}: connection refused; {BYPASS})"] * 2


@pytest.mark.usefixtures("refusing_proxy")
async def test_a_refusing_proxy_is_reported() -> None:
    address = f"{ELSEWHERE}:50051"
    reason = f"through the proxy in http_proxy: the proxy answered with HTTP status 405; {BYPASS}"
    assert await errors(address) == [f"no server can be reached at {address} ({reason})"] * 2


@pytest.mark.parametrize(
    ("proxy", "reason"), [("refusing_proxy", "HTTP status 405"), ("dead_proxy", "Connection refused")]
)
def test_a_failing_proxy_of_pages_is_reported(request: pytest.FixtureRequest, proxy: str, reason: str) -> None:
    request.getfixturevalue(proxy)
    address = f"{ELSEWHERE}:9090"
    expected = f"{address} can't be reached through the proxy in http_proxy: {reason}; {BYPASS}"
    with pytest.raises(LiveError) as caught:
        LiveFeed(address).fetch()
    assert str(caught.value) == expected


def test_a_name_in_no_proxy_bypasses_the_proxy(dead_proxy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "example, invalid")
    with Client("dragoman.invalid:1", timeout=0.5) as client, pytest.raises(UnavailableError) as caught:
        client.generate("a")
    message: Any = str(caught.value)
    assert "proxy" not in message


async def test_no_call_fails_while_servers_behind_nginx_restart_one_by_one(tmp_path: Path) -> None:
    """nginx connects each health watch to any one of the servers."""

    def start(port: int) -> LocalServer:
        return G2PServer(*OPTIONS, log=tmp_path / f"{port}.log", port=port)

    async def gets_calls(server: LocalServer) -> bool:
        return (await asyncio.to_thread(server.metrics)).get(GENERATE, 0) >= 20

    ports = steady_ports(2)
    servers = list(await asyncio.gather(*(asyncio.to_thread(start, port) for port in ports)))
    folder = tmp_path / "nginx"
    folder.mkdir()
    try:
        with nginx([server.address for server in servers], folder) as port:
            async with (
                name_server(NAME, port) as names,
                AsyncClient(f"127.0.0.1:{port}") as by_address,
                AsyncClient(names.target) as by_name,
                AsyncClient(names.target, follow_health=False) as ignoring_health,
            ):
                names.addresses = ["127.0.0.1"]
                calls = {
                    "by address": lambda: by_address.generate(WORD),
                    "by name": lambda: by_name.generate(WORD),
                    "stream": lambda: by_name.generate_stream(WORD).result(),
                    "ignoring health": lambda: ignoring_health.generate(WORD),
                }
                async with constant_load(calls, concurrency=2) as ended:
                    for index, server in enumerate(servers):
                        await until_async(partial(gets_calls, server))
                        assert await asyncio.to_thread(server.stop) == 0, server.log_tail()
                        servers[index] = await asyncio.to_thread(start, server.port)
                    await until_async(partial(gets_calls, servers[-1]))
    finally:
        for server in servers:
            server.kill()
    assert {outcome for _, outcome in ended} == {"OK"}, ended
    assert {name for name, _ in ended} == set(calls)
