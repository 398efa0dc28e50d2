"""Addresses to listen on, the limit of open files, garbage collection, and the first process of a container."""

import os
import resource
import socket
import subprocess
import sys
from typing import Any

import pytest
from structlog.testing import capture_logs

from dragoman_server.config import ServerConfig
from dragoman_server.core.errors import StartError
from dragoman_server.metrics import ServerMetrics
from dragoman_server.process import addresses, connections, ports
from dragoman_server.process.addresses import addresses_of, listen_on
from dragoman_server.process.connections import allow_connections, server_options
from dragoman_server.process.readiness import Probes

ABSENT = "192.0.2.1"  # no machine has it


def resolve_to(monkeypatch: pytest.MonkeyPatch, *found: str) -> None:
    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_a_name_stands_for_those_of_its_addresses_that_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "127.0.0.2", ABSENT, "127.0.0.1", "127.0.0.2")
    assert addresses_of("name", 0, "--port") == ["127.0.0.2", "127.0.0.1"]
    resolve_to(monkeypatch, ABSENT)
    with pytest.raises(StartError, match="--host name is not an address of this machine: "):
        addresses_of("name", 0, "--port")


def test_an_address_in_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "127.0.0.1", "127.0.0.2")
    with socket.create_server(("127.0.0.2", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(StartError, match=f"port {port} of name is in use; choose another with --metrics-port"):
            addresses_of("name", port, "--metrics-port")


def test_ports_that_are_taken_after_the_look_at_them_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "addresses_of", lambda *_: ["127.0.0.1"])
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(StartError, match=rf"^port {port} of 127.0.0.1 is in use; choose another with --metrics-p"):
            ports.serve_metrics(ServerConfig(metrics_port=port), ServerMetrics(), Probes())

    def add_port(target: str) -> int:
        raise RuntimeError(f"Failed to bind to address {target}")

    with pytest.raises(StartError, match=r"^can't listen on port 4321 of ::1; choose others with --host and --port$"):
        listen_on(["::1"], 4321, "--port", add_port)


def test_all_addresses_get_the_same_port() -> None:
    targets: list[str] = []

    def add_port(target: str) -> int:
        targets.append(target)
        return 1234

    assert listen_on(["127.0.0.1", "::1"], 0, "--port", add_port) == 1234
    assert targets == ["127.0.0.1:0", "[::1]:1234"]


@pytest.mark.parametrize(
    ("routes", "warned"),
    [
        ({addresses.OUTSIDE_IPV4, "127.0.0.1"}, False),
        ({"127.0.0.1"}, False),
        ({"127.0.0.1", addresses.OUTSIDE_IPV6}, True),
    ],
)
def test_ipv4_without_a_route_is_warned_about(monkeypatch: pytest.MonkeyPatch, routes: set[str], warned: bool) -> None:
    monkeypatch.setattr(addresses, "_reaches", routes.__contains__)
    with capture_logs() as logs:
        assert addresses_of("0.0.0.0", 0, "--port") == ["0.0.0.0"]
    assert ['use --host "::"' in line["event"] for line in logs] == [True] * warned


def test_all_ipv4_addresses_are_refused_without_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_reaches", {addresses.OUTSIDE_IPV6}.__contains__)
    with pytest.raises(StartError, match=r'this machine has none; .* use --host "::"'):
        addresses_of("0.0.0.0", 0, "--port")


class Limits:
    """Replaces the system's limit of open files."""

    RLIMIT_NOFILE, RLIM_INFINITY = resource.RLIMIT_NOFILE, resource.RLIM_INFINITY

    def __init__(self, soft: int, hard: int) -> None:
        self.now = (soft, hard)

    def getrlimit(self, _: int) -> tuple[int, int]:
        return self.now

    def setrlimit(self, _: int, limits: tuple[int, int]) -> None:
        self.now = limits


@pytest.mark.parametrize(
    ("soft", "hard", "asked", "allowed", "then"),
    [
        (1024, 4096, 100, 100, 1024),
        (1024, 4096, 1000, 1000, 1256),
        (1024, 1100, 1000, 844, 1100),
        (300, 300, 4096, 44, 300),
        (272, 272, 4096, 16, 272),
        (259, 259, 3, 3, 259),
        (1024, resource.RLIM_INFINITY, 4096, 4096, 4352),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 4096, 4096, resource.RLIM_INFINITY),
    ],
)
def test_the_limit_of_open_files_is_raised_and_bounds_the_connections(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, asked: int, allowed: int, then: int
) -> None:
    limits = Limits(soft, hard)
    monkeypatch.setattr(connections, "resource", limits)
    config = ServerConfig(max_connections=asked)
    assert allow_connections(config) == allowed
    assert limits.now == (then, hard)
    assert dict(server_options(config, allowed))["grpc.max_allowed_incoming_connections"] == allowed


@pytest.mark.parametrize(("limit", "asked", "least"), [(271, 4096, 272), (64, 4096, 272), (258, 3, 259)])
def test_too_few_open_files_are_refused(monkeypatch: pytest.MonkeyPatch, limit: int, asked: int, least: int) -> None:
    monkeypatch.setattr(connections, "resource", Limits(limit, limit))
    with pytest.raises(StartError) as refused:
        allow_connections(ServerConfig(max_connections=asked))
    said = f"the system allows this process {limit} open files (ulimit -n); it needs at least {least}"
    assert str(refused.value) == said


# A replacement of the CLI that imports nothing, and sends itself SIGTERM.
CODE = """
import os, signal, sys, types
cli = types.ModuleType("dragoman_server.process.cli")
def app():
    assert os.getpid() == 1
    os.kill(1, signal.SIGTERM)
    for _ in range(1000):
        pass
    os._exit(9)
cli.app = app
sys.modules["dragoman_server.process.cli"] = cli
from dragoman_server.__main__ import main
main()
"""
NAMESPACE = ["unshare", "--pid", "--fork", *(["--user", "--map-root-user"] if os.geteuid() else [])]


def test_the_first_process_of_a_container_can_be_stopped_before_it_serves() -> None:
    allowed = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    if allowed.returncode != 0 and not os.environ.get("CI"):
        pytest.skip(f"needs a namespace for processes, which this machine does not allow: {allowed.stderr}")
    done = subprocess.run([*NAMESPACE, sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


SERVED = """
import gc, sys
from dragoman_server import __main__
from dragoman_server.process import app

async def run(config, lines):
    print(gc.isenabled(), gc.get_freeze_count() > 10_000)
    return 0

app.run = run
sys.argv = ["dragoman-serve"]
gc.enable()
__main__.main()
"""


def test_garbage_is_collected_once_the_server_runs_but_imports_are_exempt() -> None:
    served = subprocess.run([sys.executable, "-c", SERVED], capture_output=True, text=True, check=True, timeout=60)
    assert served.stdout == "True True\n"
