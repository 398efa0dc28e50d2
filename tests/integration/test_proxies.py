"""Clients and programs on a machine whose environment names a proxy."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dragoman import AsyncClient, Client, UnavailableError
from dragoman.cli.live_feed import LiveError
from dragoman.cli.live_feed import LiveFeed as Live
from dragoman.local import LocalServer
from tests.support.scripted_server import ScriptedServer

VARIABLES = ("grpc_proxy", "http_proxy", "https_proxy", "no_grpc_proxy", "no_proxy")
ELSEWHERE = "192.0.2.1"  # an address for documentation
WITHOUT = "add the host to no_proxy to bypass the proxy"


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy at which nobody listens."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")


@pytest.fixture
def refusing(nobody: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A proxy that answers whatever it is asked with 405."""
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


@pytest.mark.usefixtures("nobody")
async def test_this_machine_is_called_without_it() -> None:
    with ScriptedServer() as scripted:
        port = scripted.address.rpartition(":")[2]
        for address in (scripted.address, f"localhost:{port}", [scripted.address, scripted.address]):
            with Client(address, timeout=5) as client:
                assert client.generate("a").text == "A"
                assert client.health().value == "SERVING"
            async with AsyncClient(address, timeout=5) as asynchronous:
                assert (await asynchronous.generate("a")).text == "A"


def test_so_are_its_pages_and_the_programs_that_ask_for_them(nobody: None, tmp_path: Path) -> None:
    with LocalServer("--engines", "1", log=tmp_path / "log", wait_seconds=30) as server:
        assert server.metrics()
        for address in (f"127.0.0.1:{server.metrics_port}", f"http://localhost:{server.metrics_port}"):
            assert Live(address).fetch()["points"] is not None
        for command in (["health", "--address", server.address], ["top", "--once", f"127.0.0.1:{server.metrics_port}"]):
            program = Path(sys.executable).with_name("dragoman")
            done = subprocess.run([program, *command], capture_output=True, timeout=60, check=False)
            assert (done.returncode, done.stderr) == (0, b"")


async def told(address: str) -> list[str]:
    """What each client says of a server elsewhere."""
    with Client(address, timeout=0.5) as client, pytest.raises(UnavailableError) as one:
        client.generate("a")
    async with AsyncClient(address, timeout=0.5) as asynchronous:
        with pytest.raises(UnavailableError) as another:
            await asynchronous.generate("a")
        with pytest.raises(UnavailableError):
            await asynchronous.health()
    return [str(one.value), str(another.value)]


@pytest.mark.usefixtures("nobody")
async def test_where_it_can_not_be_reached_its_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    address = f"{ELSEWHERE}:50051"
    way = "through the proxy in https_proxy"
    assert await told(address) == [f"no server can be reached at {address} ({way}: connection refused; {WITHOUT})"] * 2


@pytest.mark.usefixtures("refusing")
async def test_where_it_refuses_that_is_said_in_words() -> None:
    address = f"{ELSEWHERE}:50051"
    reason = f"through the proxy in http_proxy: the proxy answered with HTTP status 405; {WITHOUT}"
    assert await told(address) == [f"no server can be reached at {address} ({reason})"] * 2


@pytest.mark.parametrize(("proxy", "said"), [("refusing", "HTTP status 405"), ("nobody", "Connection refused")])
def test_so_it_is_of_pages(request: pytest.FixtureRequest, proxy: str, said: str) -> None:
    request.getfixturevalue(proxy)
    address = f"{ELSEWHERE}:9090"
    expected = f"{address} can't be reached through the proxy in http_proxy: {said}; {WITHOUT}"
    with pytest.raises(LiveError) as caught:
        Live(address).fetch()
    assert str(caught.value) == expected


def test_a_name_in_no_proxy_is_reached_without_it(nobody: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "example, invalid")
    with Client("dragoman.invalid:1", timeout=0.5) as client, pytest.raises(UnavailableError) as caught:
        client.generate("a")
    message: Any = str(caught.value)
    assert "proxy" not in message
