"""The plain HTTP port: what it answers while the server starts, serves, drains, fails and hangs."""

import json
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from dragoman_server.live.history import History
from dragoman_server.metrics import ModelLoad, ServerMetrics
from dragoman_server.process.readiness import MIN_HANG_SECONDS, Probes
from dragoman_server.process.web import MAX_CONNECTIONS, serve_http

HANG_SECONDS = 10.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def probes(clock: Clock) -> Probes:
    return Probes(HANG_SECONDS, clock)


@pytest.fixture
def port(probes: Probes) -> Iterator[int]:
    registry = CollectorRegistry()
    Counter("calls", "What was called.", registry=registry).inc(3)
    server = serve_http("127.0.0.1", 0, registry, probes)
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture
def page_port(probes: Probes) -> Iterator[int]:
    """Of a server that has a page."""
    metrics = ServerMetrics()
    metrics.loaded("m", "1", ModelLoad(1.0, "cpu", "fp32", fallback=False))
    metrics.model("m")
    history = History(metrics)
    history.sample()
    server = serve_http("127.0.0.1", 0, metrics.registry, probes, history)
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


def test_a_loop_that_is_busy_for_a_moment_does_not_hang(clock: Clock) -> None:
    probes = Probes(0.01, clock)
    clock.now = MIN_HANG_SECONDS
    assert probes.livez() is None
    clock.now += 0.1
    assert probes.livez() == "the event loop has been hanging for 1 s"


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


def test_clients_that_say_nothing_take_no_more_than_their_share(port: int) -> None:
    """However many there are: threads stay few, the probes are answered, and so is the one that came last."""
    before = threading.active_count()
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(3 * MAX_CONNECTIONS)]
    try:
        for connection in silent:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        for path in ("/livez", "/metrics", "/startupz"):
            assert get(port, path)[0] in (200, 503)
        assert threading.active_count() - before <= MAX_CONNECTIONS
        silent[-1].sendall(b"y\r\n\r\n")
        assert silent[-1].recv(15) == b"HTTP/1.0 200 OK"
        assert silent[0].recv(1) == b"", "the oldest has had its time"
    finally:
        for connection in silent:
            connection.close()


def test_the_page_and_its_parts_are_there_and_ask_nobody_else(page_port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{page_port}/", timeout=10) as page:
        headers, text = page.headers, page.read().decode()
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'; script-src 'self';" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    parts = re.findall(r'(?:src|href)="([^"]+)"', text)
    assert {"style.css", "page.js", "icon.svg", "metrics"} == set(parts)
    files = [f"/{part}" for part in parts] + ["/cards.js", "/chart.js", "/format.js"]
    bodies = [get(page_port, file) for file in files]
    assert [status for status, _ in bodies] == [200] * len(files)
    own = [body for file, (_, body) in zip(files, bodies, strict=True) if file != "/metrics"]
    outside = set(re.findall(r"https?://[^\s\"']+", text + "".join(own)))
    assert outside == {"http://www.w3.org/2000/svg"}, "the name of a language, which is not asked for"


def test_the_page_is_told_of_the_state_and_refuses_nonsense(page_port: int, probes: Probes) -> None:
    told = json.loads(get(page_port, "/live.json")[1])
    assert (told["state"], told["models"][0]["name"], len(told["points"])) == ("the model is loading", "m@1", 1)
    probes.serving()
    assert json.loads(get(page_port, "/live.json?model=m@1")[1])["state"] == "serving"
    assert get(page_port, "/live.json?model=canary") == (404, "no such model is served\n")
    assert get(page_port, "/live.json?after=canary") == (400, "after is a number: seconds since 1970\n")
    assert get(page_port, "/../probes.py")[0] == get(page_port, "/index.html")[0] == 404


def test_what_a_client_asks_for_is_not_repeated(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    status, page = get(port, "/canary?word=canary")
    assert status == 404
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"canary\r\n\r\n")
        answer = b""
        while received := client.recv(4096):
            answer += received
    assert "canary" not in page + "".join(capfd.readouterr())
