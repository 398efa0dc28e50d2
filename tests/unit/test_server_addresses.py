"""Which addresses a host stands for, where a name has several."""

import socket
from typing import Any

import pytest
from structlog.testing import capture_logs

from dragoman_server.core.errors import StartError
from dragoman_server.process import addresses
from dragoman_server.process.addresses import addresses_of, listen_on

ABSENT = "192.0.2.1"  # which no machine has


def resolve_to(monkeypatch: pytest.MonkeyPatch, *found: str) -> None:
    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_all_addresses_of_a_name_are_taken_that_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "127.0.0.2", ABSENT, "127.0.0.1", "127.0.0.2")
    assert addresses_of("name", 0, "--port") == ["127.0.0.2", "127.0.0.1"]
    resolve_to(monkeypatch, ABSENT)
    with pytest.raises(StartError, match="--host name is not an address of this machine: "):
        addresses_of("name", 0, "--port")


def test_one_that_is_in_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "127.0.0.1", "127.0.0.2")
    with socket.create_server(("127.0.0.2", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(StartError, match=f"port {port} of name is in use; choose another with --metrics-port"):
            addresses_of("name", port, "--metrics-port")


def test_all_have_the_same_port() -> None:
    asked: list[str] = []

    def add_port(target: str) -> int:
        asked.append(target)
        return 1234

    assert listen_on(["127.0.0.1", "::1"], 0, "--port", add_port) == 1234
    assert asked == ["127.0.0.1:0", "[::1]:1234"]


@pytest.mark.parametrize(
    ("routes", "warned"),
    [
        ({addresses.OUTSIDE_IPV4, "127.0.0.1"}, False),
        ({"127.0.0.1"}, False),
        ({"127.0.0.1", addresses.OUTSIDE_IPV6}, True),
    ],
)
def test_ipv4_that_leads_nowhere_is_told(monkeypatch: pytest.MonkeyPatch, routes: set[str], warned: bool) -> None:
    monkeypatch.setattr(addresses, "_reaches", routes.__contains__)
    with capture_logs() as logs:
        assert addresses_of("0.0.0.0", 0, "--port") == ["0.0.0.0"]
    assert ['use --host "::"' in line["event"] for line in logs] == [True] * warned


def test_no_ipv4_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_reaches", {addresses.OUTSIDE_IPV6}.__contains__)
    with pytest.raises(StartError, match=r'this machine has none; .* use --host "::"'):
        addresses_of("0.0.0.0", 0, "--port")
