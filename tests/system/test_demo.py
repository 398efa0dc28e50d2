"""The demo, and the local server that the demo and the tests use."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman import demo, local
from dragoman.local import LocalServer, ServerStartError


def test_demo_shows_answers_and_metrics() -> None:
    command = [sys.executable, "-m", "dragoman.demo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for expected in (
        "Good morning.",
        "test BLEU",
        f"{len(demo.BATCH) - 1} of {len(demo.BATCH)} texts answered",
        "dragoman_step_rows",
    ):
        assert expected in done.stdout
    assert re.search(r"^interpreters IH( [A-Z]{1,2}){4,}", done.stdout, re.MULTILINE)
    assert done.stderr == ""


def test_demo_reports_why_the_server_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "serve_command", lambda: "false")
    with pytest.raises(SystemExit) as exit_:
        demo.main()
    assert str(exit_.value).startswith("The demo failed: dragoman-serve exited with 1")


def test_local_server_error_quotes_the_servers_log(tmp_path: Path) -> None:
    missing = tmp_path / "no-bundle-here"
    with pytest.raises(ServerStartError, match="no-bundle-here"):
        LocalServer("--bundle", str(missing))


@pytest.mark.parametrize("taken", [0, 1], ids=["port", "metrics port"])
def test_local_server_retries_if_its_free_port_is_taken(monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    with socket.socket() as other:
        other.bind((local.LOOPBACK, 0))
        other.listen()
        ports = [local.free_port() for _ in range(4)]
        ports[taken] = other.getsockname()[1]
        remaining = iter(ports)
        monkeypatch.setattr(local, "free_port", lambda: next(remaining))
        with LocalServer() as server:
            assert [server.port, server.metrics_port] == ports[2:]


def test_local_server_does_not_replace_a_given_port() -> None:
    with socket.socket() as other:
        other.bind((local.LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ServerStartError, match=f"port {port} of 127.0.0.1 is in use"):
            LocalServer(port=port)


def test_local_server_stops_its_process_when_the_block_fails() -> None:
    with pytest.raises(RuntimeError, match="from the block"), LocalServer() as server:
        raise RuntimeError("from the block")
    assert server.process.returncode == 0
