"""The plain HTTP port: what it answers while the server starts, serves, drains, fails and hangs."""

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from server.probes import HANG_SECONDS, Probes, serve_http


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def probes(clock: Clock) -> Probes:
    return Probes(clock)


@pytest.fixture
def port(probes: Probes) -> Iterator[int]:
    registry = CollectorRegistry()
    Counter("calls", "What was called.", registry=registry).inc(3)
    server = serve_http("127.0.0.1", 0, registry, probes)
    yield server.server_port
    server.shutdown()
    server.server_close()


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def states(port: int) -> dict[str, int]:
    return {path: get(port, f"/{path}")[0] for path in ("startupz", "readyz", "livez")}


def test_the_probes_differ_from_start_to_end(port: int, probes: Probes) -> None:
    assert states(port) == {"startupz": 503, "readyz": 503, "livez": 200}
    assert get(port, "/readyz") == (503, "the model is loading\n")
    probes.serving()
    assert states(port) == {"startupz": 200, "readyz": 200, "livez": 200}
    assert get(port, "/readyz") == (200, "ok\n")
    probes.not_serving("the server is draining")
    assert states(port) == {"startupz": 200, "readyz": 503, "livez": 200}
    probes.failed("an engine failed")
    assert states(port) == {"startupz": 200, "readyz": 503, "livez": 503}
    assert get(port, "/livez") == (503, "an engine failed\n")


def test_an_event_loop_that_hangs_is_not_alive(port: int, probes: Probes, clock: Clock) -> None:
    probes.serving()
    clock.now = HANG_SECONDS - 1
    assert states(port) == {"startupz": 200, "readyz": 200, "livez": 200}
    clock.now = HANG_SECONDS + 1
    assert states(port) == {"startupz": 200, "readyz": 503, "livez": 503}
    assert get(port, "/livez") == (503, f"the event loop has been hanging for {HANG_SECONDS + 1:.0f} s\n")
    probes.beat()
    assert states(port) == {"startupz": 200, "readyz": 200, "livez": 200}


def test_metrics_are_there_and_else_only_the_probes(port: int) -> None:
    status, page = get(port, "/metrics")
    assert status == 200
    assert "calls_total 3.0" in page
    assert get(port, "/readyz?verbose")[0] == 503
    assert get(port, "/livez", "HEAD") == (200, "")
    assert get(port, "/") == (404, "there is /metrics /livez /readyz /startupz\n")
    assert get(port, "/livez", "POST")[0] == 501


def test_a_client_that_says_nothing_keeps_nobody_waiting(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)) as half:
        half.sendall(b"GET /livez HT")
        assert get(port, "/livez") == (200, "ok\n")


def test_what_a_client_asks_for_is_not_repeated(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    status, page = get(port, "/canary?word=canary")
    assert status == 404
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"canary\r\n\r\n")
        answer = b""
        while received := client.recv(4096):
            answer += received
    assert "canary" not in page + "".join(capfd.readouterr())
