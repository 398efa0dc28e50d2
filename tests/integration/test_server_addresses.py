"""Both ports listen on what --host says, and on nothing else."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from tests.conftest import StartServer
from tests.support.waiting import until

# A network of its own, with the loopback interface alone, and without any address of IPv4 on it.
ONLY_IPV6 = """
import fcntl, os, socket, struct, sys
SIOCSIFADDR, SIOCSIFFLAGS, UP = 0x8916, 0x8914, 1
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", UP))
    fcntl.ioctl(control, SIOCSIFADDR, struct.pack("16sHH4s8x", b"lo", socket.AF_INET, 0, bytes(4)))
os.execv(sys.executable, [sys.executable, "-m", "dragoman_server", "--port", "0", "--metrics-port", "0", *sys.argv[1:]])
"""
LISTEN = "0A"  # in /proc
NAMESPACE = ["unshare", "--net", *(["--user", "--map-root-user"] if os.geteuid() else [])]


def listening(pid: int) -> dict[int, set[str]]:
    """The addresses of each port that a process listens on."""
    found: dict[int, set[str]] = {}
    for each in psutil.Process(pid).net_connections("tcp"):
        if each.status == psutil.CONN_LISTEN:
            found.setdefault(each.laddr.port, set()).add(each.laddr.ip.removeprefix("::ffff:"))  # of IPv4 alone
    return found


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "localhost"])
def test_both_ports_listen_on_what_was_asked(start_server: StartServer, host: str) -> None:
    server = start_server("--host", host)
    resolved = {str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    there = {address for address in resolved if has(address)}
    assert listening(server.process.pid) == {server.port: there, server.metrics_port: there}
    with grpc.insecure_channel(server.address) as channel:
        request = pb.GenerateRequest(input=pb.Input(text="court"))
        assert generation_pb2_grpc.GenerationServiceStub(channel).Generate(request).hypotheses


def has(address: str) -> bool:
    """Whether an address is this machine's."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


@pytest.fixture
def command() -> list[str]:
    """Starts a server where there is no IPv4; its arguments follow."""
    allowed = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    if allowed.returncode != 0 and not os.environ.get("CI"):
        pytest.skip(f"needs a namespace for networks, which this machine does not allow: {allowed.stderr}")
    return [*NAMESPACE, sys.executable, "-c", ONLY_IPV6]


def test_without_ipv4_all_of_it_is_refused(command: list[str]) -> None:
    done = subprocess.run([*command, "--host", "0.0.0.0"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].endswith(
        "--host 0.0.0.0 means all IPv4 addresses, and this machine has none; "
        'to listen on all IPv4 and IPv6 addresses, use --host "::"'
    )


@pytest.fixture
def ipv6_server(command: list[str], tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """The process of a server that listens on "::", and its log."""
    log = tmp_path / "server.log"
    with log.open("wb") as file, subprocess.Popen([*command, "--host", "::"], stderr=file, stdout=file) as process:
        yield process.pid, log
        process.terminate()


def test_without_ipv4_both_ports_listen_on_ipv6(ipv6_server: tuple[int, Path]) -> None:
    pid, log = ipv6_server
    until(lambda: '"listening"' in log.read_text(), otherwise=log.read_text)
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp6").read_text().splitlines()[1:]]
    assert [local.split(":")[0] for _, local, _, state, *_ in lines if state == LISTEN] == ["0" * 32] * 2
