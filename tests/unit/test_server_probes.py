"""Probes over HTTP, the live page's data, and health checks on their own port."""

import json
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry, Counter
from structlog.testing import capture_logs

from dragoman_server.api.generation_service import SERVICE
from dragoman_server.api.health_service import Health
from dragoman_server.config import ServerConfig
from dragoman_server.core.errors import StartError
from dragoman_server.live.history import History
from dragoman_server.metrics import ModelLoad, ServerMetrics
from dragoman_server.process.health_port import MAX_WATCHES, HealthPort
from dragoman_server.process.readiness import MIN_HANG_SECONDS, Probes, Readiness
from dragoman_server.process.web import MAX_CONNECTIONS, serve_http
from tests.support.clock import Clock
from tests.support.waiting import PATIENCE, until

HANG_SECONDS = 10.0
Request = health_pb2.HealthCheckRequest
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


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
    """Returns the port of a server with the live page."""
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


def test_the_probes_from_start_to_end(port: int, probes: Probes) -> None:
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


def test_a_hanging_event_loop_is_not_alive(port: int, probes: Probes, clock: Clock) -> None:
    probes.serving()
    clock.now += HANG_SECONDS - 1
    assert states(port) == {"startupz": 200, "readyz": 200, "livez": 200}
    clock.now += 2
    assert states(port) == {"startupz": 200, "readyz": 503, "livez": 503}
    assert get(port, "/livez") == (503, f"the event loop has been hanging for {HANG_SECONDS + 1:.0f} s\n")
    probes.beat()
    assert states(port) == {"startupz": 200, "readyz": 200, "livez": 200}


def test_a_briefly_busy_event_loop_does_not_hang(clock: Clock) -> None:
    probes = Probes(0.01, clock)
    clock.now += MIN_HANG_SECONDS
    assert probes.livez() is None
    clock.now += 0.1
    assert probes.livez() == "the event loop has been hanging for 1 s"


def test_the_port_serves_metrics_and_probes_only(port: int) -> None:
    status, page = get(port, "/metrics")
    assert status == 200
    assert "calls_total 3.0" in page
    assert get(port, "/readyz?verbose")[0] == 503
    assert get(port, "/livez", "HEAD") == (200, "")
    assert get(port, "/") == (404, "there is /metrics /livez /readyz /startupz\n")
    assert get(port, "/livez", "POST")[0] == 501


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics HTTP/1.0\r\nAccept: application/openmetrics-text;version=one", b"200 OK"),
        (b"GET /metrics HTTP/1.0\r\nAccept: text/plain;version=one;escaping=values", b"200 OK"),
        (b"GET http://[/livez HTTP/1.0", b"400 Bad Request"),
    ],
)
def test_odd_requests_are_answered(port: int, request_: bytes, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(request_ + b"\r\n\r\n")
        assert client.makefile("rb").readline() == b"HTTP/1.0 " + status + b"\r\n"


def test_a_request_that_fails_is_logged_unless_its_client_has_left(
    port: int, probes: Probes, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes.serving()
    for error, expected in ((BrokenPipeError(), []), (KeyError("a bug"), ["an HTTP request failed"])):

        def livez(error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(probes, "livez", livez)
        with capture_logs() as entries, socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
            assert client.recv(1) == b""
        assert [entry["event"] for entry in entries] == expected


def test_a_silent_client_does_not_delay_others(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)) as half:
        half.sendall(b"GET /livez HT")
        assert get(port, "/livez") == (200, "ok\n")


def test_silent_clients_can_not_use_up_the_connections(port: int) -> None:
    """Threads stay few, probes are answered, and so is the last client."""
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
        assert silent[0].recv(1) == b"", "the oldest is closed"
    finally:
        for connection in silent:
            connection.close()


def test_the_page_is_complete_and_contacts_no_other_host(page_port: int) -> None:
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
    assert outside == {"http://www.w3.org/2000/svg"}, "a namespace, which is not fetched"


def test_the_page_data_has_the_state_and_refuses_bad_queries(page_port: int, probes: Probes) -> None:
    document = json.loads(get(page_port, "/live.json")[1])
    assert (document["state"], document["models"][0]["name"], len(document["points"])) == (
        "the model is loading",
        "m@1",
        1,
    )
    probes.serving()
    assert json.loads(get(page_port, "/live.json?model=m@1")[1])["state"] == "serving"
    assert get(page_port, "/live.json?model=canary") == (404, "no such model is served\n")
    assert get(page_port, "/live.json?after=canary") == (400, "after is a number: seconds since 1970\n")
    assert get(page_port, "/../probes.py")[0] == get(page_port, "/index.html")[0] == 404


def test_requests_are_not_echoed(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    status, page = get(port, "/canary?word=canary")
    assert status == 404
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"canary\r\n\r\n")
        answer = b""
        while received := client.recv(4096):
            answer += received
    assert "canary" not in page + "".join(capfd.readouterr())


def test_a_server_is_ready_once_all_models_were_tried_and_one_serves() -> None:
    health, probes = Health([]), Probes()
    readiness = Readiness(health, probes)
    readiness.models({"a": True})
    assert (probes.startupz(), probes.readyz(), health.serving) == ("the model is loading",) * 2 + (False,)
    readiness.start()
    assert (probes.startupz(), probes.readyz(), health.serving) == (None, None, True)
    readiness.models({"a": False})
    assert (probes.startupz(), probes.readyz(), health.serving) == (None, "no model can answer at the moment", False)
    readiness.models({"a": False, "b": True})
    assert (probes.readyz(), health.serving) == (None, True)
    readiness.end()
    readiness.models({"a": True})
    assert (probes.readyz(), probes.livez(), health.serving) == ("the server is draining", None, False)


def test_a_server_without_models_has_started_but_is_not_ready() -> None:
    health, probes = Health([]), Probes()
    readiness = Readiness(health, probes)
    readiness.start()
    readiness.models({})
    assert (probes.startupz(), probes.readyz(), health.serving) == (None, "no model is loaded", False)
    readiness.end("an engine failed")
    assert probes.livez() == "an engine failed"


@pytest.fixture
def health() -> Health:
    """Returns a health service. No event loop runs in these tests, as if it hung."""
    return Health([SERVICE])


@pytest.fixture
def health_port(health: Health, probes: Probes) -> Iterator[int]:
    opened = HealthPort(ServerConfig(health_port=0), health, probes)
    assert opened.number
    yield opened.number
    opened.close()


@pytest.fixture
def stub(health_port: int) -> Iterator[Any]:
    with grpc.insecure_channel(f"127.0.0.1:{health_port}") as channel:
        yield health_pb2_grpc.HealthStub(channel)


def check(stub: Any, service: str = "") -> int:
    status: int = stub.Check(Request(service=service), timeout=PATIENCE).status
    return status


@pytest.mark.parametrize("service", ["", SERVICE, "model:a"])
def test_the_health_port_reports_the_same_as_the_main_port(stub: Any, health: Health, service: str) -> None:
    health.set_models({"a": True, "b": False})
    for serving in (False, True, False):
        health.set_serving(serving)
        assert check(stub, service) == (SERVING if serving else NOT_SERVING)


def test_an_unknown_service_is_not_found(stub: Any) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        check(stub, "dragoman.v0")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert next(stub.Watch(Request(service="dragoman.v0"))).status == UNKNOWN


def test_nothing_is_serving_while_the_event_loop_hangs(stub: Any, health: Health, clock: Clock) -> None:
    health.set_serving(True)
    watch = stub.Watch(Request(), timeout=PATIENCE)
    clock.now += HANG_SECONDS
    assert (check(stub), next(watch).status) == (SERVING, SERVING), "still within the limit"
    clock.now += 1
    assert check(stub) == check(stub, SERVICE) == NOT_SERVING
    assert next(watch).status == NOT_SERVING, "though no change was announced"
    clock.now -= HANG_SECONDS
    assert check(stub) == next(watch).status == SERVING


def test_watches_receive_changes_and_end_with_the_server(stub: Any, health: Health) -> None:
    watches = [stub.Watch(Request(service=SERVICE), timeout=PATIENCE) for _ in range(3)]
    assert [next(watch).status for watch in watches] == [NOT_SERVING] * 3
    watches.pop().cancel()
    health.set_serving(True)
    assert [next(watch).status for watch in watches] == [SERVING] * 2
    health.end()
    assert [list(watch) for watch in watches] == [[]] * 2


def test_the_number_of_watches_is_limited(stub: Any, health: Health) -> None:
    """One more is refused, checks are still answered, and a watch that ends makes room."""
    watches = [stub.Watch(Request(), timeout=PATIENCE) for _ in range(MAX_WATCHES)]
    assert [next(watch).status for watch in watches] == [NOT_SERVING] * MAX_WATCHES
    with pytest.raises(grpc.RpcError) as refused:
        next(stub.Watch(Request(), timeout=PATIENCE))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert check(stub) == NOT_SERVING
    watches.pop().cancel()

    def admitted() -> bool:
        try:
            return bool(next(stub.Watch(Request(), timeout=PATIENCE)).status == NOT_SERVING)
        except grpc.RpcError:
            return False

    until(admitted)


def test_silent_calls_do_not_delay_checks(stub: Any, health_port: int) -> None:
    """A delayed kubelet would kill the process. A silent call holds a thread until it has sent its request."""
    over = threading.Event()

    def silent() -> Iterator[Any]:
        over.wait(PATIENCE)
        yield Request()

    with grpc.insecure_channel(f"127.0.0.1:{health_port}") as channel:
        check_later: Any = channel.stream_unary("/grpc.health.v1.Health/Check", Request.SerializeToString)
        calls = [check_later.future(silent(), timeout=PATIENCE) for _ in range(MAX_WATCHES + 24)]
        assert check(stub) == NOT_SERVING
        assert not any(call.done() for call in calls)
        over.set()
        assert {call.code() for call in calls} == {grpc.StatusCode.OK}


def test_closing_ends_all_threads(health: Health) -> None:
    """A watch that goes on would keep the process from exiting."""
    before = set(threading.enumerate())
    opened = HealthPort(ServerConfig(health_port=0), health, Probes())
    with grpc.insecure_channel(f"127.0.0.1:{opened.number}") as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(Request(), timeout=PATIENCE)
        next(watch)
        opened.close()
        with pytest.raises(grpc.RpcError):
            next(watch)
    until(lambda: not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("health")])


def test_the_health_port_is_optional_and_a_port_in_use_is_refused(health: Health, health_port: int) -> None:
    nowhere = HealthPort(ServerConfig(), health, Probes())
    assert nowhere.number is None
    nowhere.close()
    with pytest.raises(
        StartError, match=f"port {health_port} of 127.0.0.1 is in use; choose another with --health-port"
    ):
        HealthPort(ServerConfig(health_port=health_port), health, Probes())
