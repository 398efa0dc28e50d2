"""Starting a server: configuration from three sources at once, and the addresses of --host."""

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from dragoman import Client
from dragoman.local import LocalServer, free_port, serve_command
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from tests.conftest import StartServer
from tests.support.waiting import until


def test_a_server_merges_file_environment_and_flags(
    start_server: StartServer, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bundle").symlink_to(tiny_bundle)
    file = tmp_path / "server.yaml"
    file.write_text("bundle: bundle  # beside this file\nmax_rows: 3\nqueue_size: 4\nmetrics_port: 1\nengines: 1\n")
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(file))
    monkeypatch.setenv("DRAGOMAN_MAX_BATCH_ITEMS", "5")
    monkeypatch.setenv("DRAGOMAN_QUEUE_SIZE", "6")
    monkeypatch.setenv("DRAGOMAN_PORT", "tcp://10.0.0.7:50051")  # as Kubernetes has it
    server = start_server("--max-hypotheses", "2")
    with Client(server.address) as client:
        assert client.generate("42").text == "forty two"
        [model] = client.models()
        assert (model.limits.beam_size, model.limits.hypotheses, model.limits.batch_items) == (3, 3, 5)
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics").read().decode()
    assert "dragoman_rows" in metrics
    log = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert log[0]["event"] == "configured"
    options = log[0]["options"]
    assert options["max_rows"] == f"3 ({file}:2)"
    assert options["queue_size"] == "6 (DRAGOMAN_QUEUE_SIZE)"
    assert options["max_hypotheses"] == "2 (--max-hypotheses)"
    assert options["metrics_port"] == f"{server.metrics_port} (--metrics-port)"
    assert "drain_seconds" not in options


def test_a_wrong_configuration_stops_the_start_with_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("max_rows: none\n")
    command = [serve_command(), "--config", str(file), "--port", str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == f"dragoman-serve: {file}:1: max_rows is 'none'; expected a whole number of at least 1\n"
    environment = os.environ | {"DRAGOMAN_THREADS": "2"}
    done = subprocess.run([serve_command()], capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 2
    assert done.stderr.startswith("dragoman-serve: DRAGOMAN_THREADS is not an option; ")
    assert done.stdout == ""


@pytest.mark.parametrize("option", ["--print-config", "--example-config"])
def test_output_that_can_not_be_written_is_an_error(option: str) -> None:
    with Path("/dev/full").open("w") as full:
        command = [serve_command(), option]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "dragoman-serve: can't write to standard output: No space left on device\n"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("workers", [[], ["--workers", "1"]], ids=["engines", "workers"])
def test_a_server_runs_without_standard_files(tiny_bundle: Path, workers: list[str]) -> None:
    command = ["sh", "-c", f'exec {serve_command()} "$@" <&- >&- 2>&-', "sh"]
    with LocalServer("--bundle", str(tiny_bundle), *workers, command=command) as server:
        for process in (found := psutil.Process(server.process.pid), *found.children()):
            standard = [Path(f"/proc/{process.pid}/fd/{number}").readlink() for number in range(3)]
            assert standard == [Path(os.devnull)] * 3
        with Client(server.address) as client:
            assert client.generate("42").text == "forty two"


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
    """Returns the addresses of each port that a process listens on."""
    found: dict[int, set[str]] = {}
    for each in psutil.Process(pid).net_connections("tcp"):
        if each.status == psutil.CONN_LISTEN:
            found.setdefault(each.laddr.port, set()).add(each.laddr.ip.removeprefix("::ffff:"))  # of IPv4 alone
    return found


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "localhost"])
def test_both_ports_listen_on_the_host_only(start_server: StartServer, host: str) -> None:
    server = start_server("--host", host)
    resolved = {str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    there = {address for address in resolved if has(address)}
    assert listening(server.process.pid) == {server.port: there, server.metrics_port: there}
    with grpc.insecure_channel(server.address) as channel:
        request = pb.GenerateRequest(input=pb.Input(text="court"))
        assert generation_pb2_grpc.GenerationServiceStub(channel).Generate(request).hypotheses


def has(address: str) -> bool:
    """Returns whether this machine has an address."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


@pytest.fixture
def command() -> list[str]:
    """Returns a command that starts a server without IPv4; append its arguments."""
    allowed = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    if allowed.returncode != 0 and not os.environ.get("CI"):
        pytest.skip(f"needs a namespace for networks, which this machine does not allow: {allowed.stderr}")
    return [*NAMESPACE, sys.executable, "-c", ONLY_IPV6]


def test_all_ipv4_addresses_are_refused_without_ipv4(command: list[str]) -> None:
    done = subprocess.run([*command, "--host", "0.0.0.0"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].endswith(
        "--host 0.0.0.0 means all IPv4 addresses, and this machine has none; "
        'to listen on all IPv4 and IPv6 addresses, use --host "::"'
    )


@pytest.fixture
def ipv6_server(command: list[str], tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """Starts a server that listens on "::"; yields its process id and its log."""
    log = tmp_path / "server.log"
    with log.open("wb") as file, subprocess.Popen([*command, "--host", "::"], stderr=file, stdout=file) as process:
        yield process.pid, log
        process.terminate()


def test_both_ports_listen_on_ipv6_without_ipv4(ipv6_server: tuple[int, Path]) -> None:
    pid, log = ipv6_server
    until(lambda: '"listening"' in log.read_text(), otherwise=log.read_text)
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp6").read_text().splitlines()[1:]]
    assert [local.split(":")[0] for _, local, _, state, *_ in lines if state == LISTEN] == ["0" * 32] * 2
