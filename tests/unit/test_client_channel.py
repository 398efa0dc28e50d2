"""Addresses, proxies, credentials, and the errors of calls that reach no server or lose their connection."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman import AsyncClient, Client, RetryPolicy, Tls, UnavailableError
from dragoman.channel import channel_options, grpc_target, has_several_servers
from dragoman.cli.common import error_message
from dragoman.errors import from_rpc_error
from dragoman.proxies import is_loopback, proxy_variable, proxy_variable_for_url
from dragoman.retry import Attempts
from dragoman.v1 import generation_pb2_grpc
from tests.support.certificates import Authority

ADDRESS = "127.0.0.1:1"
PROXY = "http://proxy.example:3128"
LOCAL = ["127.0.0.1:1", "127.8.9.1:1", "[::1]:1", "localhost:1", "LOCALHOST:1", "[::ffff:127.0.0.1]:1", "0.0.0.0:1"]
DIRECT = ["unix:/run/dragoman", "unix-abstract:dragoman", "ipv4:127.0.0.1:1", "dns://1.1.1.1/localhost:1"]
REMOTE = ["10.0.0.1:1", "[2001:db8::1]:1", "dragoman.example:1", "localhost.example:1", "128.0.0.1:1"]
LOADING = "the model is still loading"


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "http_proxy", "https_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(params=[Client, AsyncClient])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize(
    ("address", "target", "several"),
    [
        ("localhost:50051", "dns:///localhost:50051", False),
        ("[::1]:50051", "dns:///[::1]:50051", False),
        ("10.0.0.1:1", "dns:///10.0.0.1:1", False),
        ("[2001:db8::1]:1", "dns:///[2001:db8::1]:1", False),
        ("dragoman.speech.svc:50051", "dns:///dragoman.speech.svc:50051", True),
        ("127.0.0.1:1,127.0.0.2:2", "ipv4:127.0.0.1:1,127.0.0.2:2", True),
        (["127.0.0.1:1", " 127.0.0.2:2"], "ipv4:127.0.0.1:1,127.0.0.2:2", True),
        ("[::1]:1,[::1]:2", "ipv6:[::1]:1,[::1]:2", True),
        ("unix:/run/dragoman.sock", "unix:/run/dragoman.sock", False),
        ("dns://10.0.0.9/dragoman:1", "dns://10.0.0.9/dragoman:1", True),
    ],
)
def test_an_address_becomes_a_target_of_one_or_several_servers(
    address: str | list[str], target: str, several: bool
) -> None:
    assert grpc_target(address) == target
    assert has_several_servers(target) == several


@pytest.mark.parametrize(
    "address",
    [
        *("", "localhost", "localhost:", ":50051", "localhost:0", "localhost:99999", "a:b", "a:1,"),
        *("http://localhost:50051", "localhost:50051/", "[::1:50051", "a b:1"),
    ],
)
def test_an_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="address: expected HOST:PORT"):
        grpc_target(address)


def test_an_address_that_no_host_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^address: .* lone surrogate"):
        grpc_target("a\udcff:1")
    with pytest.raises(ValueError, match=r"^address: the hosts of"):
        grpc_target(f"{'a' * 64}:1,127.0.0.1:1")


def test_addresses_of_two_ip_versions_are_refused() -> None:
    with pytest.raises(ValueError, match="one IP version"):
        grpc_target("127.0.0.1:1,[::1]:2")


@pytest.mark.parametrize("address", [*LOCAL, *DIRECT, "10.0.0.1:1,10.0.0.2:1"])
def test_this_machine_and_several_addresses_bypass_the_proxy(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("http_proxy", PROXY)
    target = grpc_target(address)
    assert ("grpc.enable_http_proxy", 0) in channel_options(target)
    assert proxy_variable(target) is None


@pytest.mark.parametrize("address", REMOTE)
def test_the_first_variable_sets_the_proxy_of_other_hosts(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    target = grpc_target(address)
    assert ("grpc.enable_http_proxy", 0) not in channel_options(target)
    assert proxy_variable(target) is None
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, PROXY)
        assert proxy_variable(target) == name
    for ignored in ("", "proxy.example:3128", "socks5://proxy.example:1080"):
        monkeypatch.setenv("grpc_proxy", ignored)
        assert proxy_variable(target) is None


@pytest.mark.parametrize(
    ("entries", "address", "bypassed"),
    [
        ("example", "a.example:1", True),
        (" .example , x", "a.EXAMPLE:1", True),
        ("a.example", "b.example:1", False),
        ("10.0.0.0/8", "10.2.3.4:1", True),
        ("10.0.0.0/8", "11.2.3.4:1", False),
        ("10.0.0.0/8,,2001:db8::/32", "[2001:db8::5]:1", True),
        ("10.2.3.4", "10.2.3.4:1", True),
    ],
)
def test_no_proxy_lists_suffixes_of_names_and_networks(
    monkeypatch: pytest.MonkeyPatch, entries: str, address: str, bypassed: bool
) -> None:
    monkeypatch.setenv("http_proxy", PROXY)
    monkeypatch.setenv("no_proxy", entries)
    assert (proxy_variable(grpc_target(address)) is None) == bypassed
    monkeypatch.setenv("no_grpc_proxy", "another.host")
    assert proxy_variable(grpc_target(address)) == "http_proxy"


def test_urls_use_the_variables_of_urllib(monkeypatch: pytest.MonkeyPatch) -> None:
    page = "http://a.example:9090/live.json"
    monkeypatch.setenv("grpc_proxy", PROXY)
    assert proxy_variable_for_url(page) is None
    monkeypatch.setenv("HTTP_PROXY", PROXY)
    assert proxy_variable_for_url(page) == "HTTP_PROXY"
    for direct in ("https://a.example/", "http://127.0.0.1:9090/", "http://localhost/", "http://[::1]:9090/x"):
        assert proxy_variable_for_url(direct) is None
    monkeypatch.setenv("no_proxy", "a.example")
    assert proxy_variable_for_url(page) is None


def test_other_names_are_not_loopback() -> None:
    assert not any(map(is_loopback, ["", "127.0.0.1.example", "loop", "::2"]))


def test_unusable_tls_files_are_named_with_the_reason(kind: Any, tmp_path: Path) -> None:
    pair = Authority(tmp_path, "ours").sign("client")
    text = tmp_path / "text"
    text.write_text("canary")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"ca": tmp_path / "nothing"}, f"^tls: ca {tmp_path}/nothing can't be read: No such file or directory$"),
        ({"ca": text}, f"^tls: ca {text} holds no certificate in PEM form$"),
        ({"ca": pair.key}, "holds no certificate in PEM form$"),
        ({"cert": pair.cert, "key": pair.cert}, "^tls: key .* holds no private key in PEM form$"),
        ({"cert": pair.cert}, "^tls: cert and key must be set together$"),
        ({"key": pair.key}, "^tls: cert and key must be set together$"),
    ]
    for tls, message in wrong:
        with pytest.raises(ValueError, match=message):
            kind(ADDRESS, tls=Tls(**tls))


@pytest.mark.parametrize("key", ["", "two words", "line\nbreak", "Ж", "\x00"])
def test_an_impossible_api_key_is_refused_and_not_quoted(kind: Any, key: str) -> None:
    with pytest.raises(ValueError, match=r"^api_key: expected printable ASCII without spaces$"):
        kind(ADDRESS, api_key=key)


class Failure(grpc.RpcError):
    """A failure as gRPC raises it."""

    def __init__(self, code: grpc.StatusCode, details: str = "went wrong", **trailing: str | bytes) -> None:
        self._code, self._details, self._trailing = code, details, trailing

    def code(self) -> Any:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return tuple((key.replace("_", "-"), value) for key, value in self._trailing.items())


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ("Tls handshake failed: SSL_ERROR_SSL: error:1:CERTIFICATE_VERIFY_FAILED: x: OK", "not signed by a trusted"),
        ("Tls handshake failed: SSL_ERROR_SSL: error:1:SSL routines::WRONG_VERSION_NUMBER: y", "does not speak TLS"),
        ("Hostname Verification Check failed.", "is for another name"),
        ("Peer name a is not in peer certificate", "is for another name"),
        ("Connection refused", "(connection refused)"),
        ("Socket closed", "(socket closed: something listens there, but it requires TLS or a client certificate"),
    ],
)
def test_a_failure_to_connect_is_explained(details: str, reason: str) -> None:
    details = f"failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: {details}"
    error = from_rpc_error(Failure(grpc.StatusCode.UNAVAILABLE, details), ADDRESS)
    assert str(error).startswith(f"no server can be reached at {ADDRESS} (")
    assert reason in str(error)


TIMED_OUT = "the timeout passed before the answer arrived (request id: ours)"


@pytest.mark.parametrize(
    ("failure", "request_id", "message"),
    [
        (Failure(grpc.StatusCode.INTERNAL, x_request_id="theirs"), "theirs", "went wrong (request id: theirs)"),
        (Failure(grpc.StatusCode.INTERNAL), "ours", "went wrong (request id: ours)"),
        (Failure(grpc.StatusCode.INVALID_ARGUMENT, x_request_id="theirs"), "theirs", "went wrong"),
        (Failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"), "ours", TIMED_OUT),
        (Failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Stream removed (Deadline Exceeded)"), "ours", TIMED_OUT),
        (
            Failure(grpc.StatusCode.UNKNOWN, "Stream removed (Data frame with END_STREAM flag received)"),
            "ours",
            "the connection to host:1 was lost (Data frame with END_STREAM flag received) (request id: ours)",
        ),
        (
            Failure(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; last error: x: Refused"),
            None,
            "no server can be reached at host:1 (refused)",
        ),
    ],
)
def test_an_error_has_the_request_id_of_the_server_s_log(
    failure: Failure, request_id: str | None, message: str
) -> None:
    error = from_rpc_error(failure, "host:1", "ours")
    assert (error.request_id, error_message(error)) == (request_id, message)


def test_damaged_details_of_an_error_are_left_out() -> None:
    error = from_rpc_error(Failure(grpc.StatusCode.INTERNAL, grpc_status_details_bin=b"\xff"), "host:1", "ours")
    assert error_message(error) == "went wrong (request id: ours)"


def test_a_call_whose_connection_was_lost_is_sent_again() -> None:
    lost = from_rpc_error(Failure(grpc.StatusCode.UNKNOWN, "Stream removed (Socket closed)"), "host:1")
    assert isinstance(lost, UnavailableError)
    assert Attempts(RetryPolicy(), 60).delay_after(lost) is not None
    other = from_rpc_error(Failure(grpc.StatusCode.UNKNOWN, "the model has no such word"), "host:1")
    assert not isinstance(other, UnavailableError)


class UnreadyServer(
    health_pb2_grpc.HealthServicer,  # type: ignore[misc]  # the stubs carry no types
    generation_pb2_grpc.GenerationServiceServicer,
):
    """A server that is loading its model."""

    def Generate(self, request: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.UNAVAILABLE, LOADING)

    GenerateStream = Generate

    def Check(self, request: Any, context: Any) -> Any:
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)

    def Watch(self, request: Any, context: Any) -> Any:
        gone = threading.Event()
        context.add_callback(gone.set)
        yield self.Check(request, context)
        gone.wait(30)


@contextmanager
def unready_server(credentials: grpc.ServerCredentials | None = None) -> Iterator[int]:
    """Yields the port of a server on 127.0.0.1 that is not ready."""
    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool)
        health_pb2_grpc.add_HealthServicer_to_server(servicer := UnreadyServer(), server)
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server)
        address = "127.0.0.1:0"
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait()


@contextmanager
def closed_port() -> Iterator[int]:
    """Yields a port of 127.0.0.1 at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]


CALLS: dict[str, Callable[[Any], Any]] = {
    "generate": lambda client: client.generate("a"),
    "stream": lambda client: client.generate_stream("a"),
    "many": lambda client: client.generate_many(["a"]),
}


def messages(kind: Any, address: str, tls: Tls | bool, call: Callable[[Any], Any]) -> list[str]:
    """Returns the errors of two calls of one client; at the second, the channel knows of the failure."""

    async def run() -> list[str]:
        client = kind(address, tls=tls, retry=RetryPolicy(attempts=3, initial_delay=0.02))
        found = []
        for _ in range(2):
            try:
                pending = call(client)
                if kind is AsyncClient:
                    await (anext(pending) if hasattr(pending, "__anext__") else pending)
                elif hasattr(pending, "__next__"):
                    next(pending)
            except UnavailableError as error:
                found.append(str(error))
        closing = client.close()
        if kind is AsyncClient:
            await closing
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("name", CALLS)
def test_the_unready_one_of_several_addresses_gives_the_reason(kind: Any, name: str) -> None:
    """Not the other one, at which nobody listens, as at one address of localhost."""
    with unready_server() as port, closed_port() as other:
        for address in (f"127.0.0.1:{port},127.0.0.1:{other}", f"localhost:{port}"):
            assert messages(kind, address, False, CALLS[name]) == [LOADING, LOADING]


def test_the_tls_failure_of_one_of_several_addresses_gives_the_reason(kind: Any, tmp_path: Path) -> None:
    ours, others = Authority(tmp_path, "ours"), Authority(tmp_path, "others")
    pair = ours.sign("server")
    chain = [(pair.key.read_bytes(), pair.cert.read_bytes())]
    credentials = grpc.ssl_server_credentials(chain)
    mutual = grpc.ssl_server_credentials(chain, others.ca.read_bytes(), require_client_auth=True)
    cases: list[tuple[grpc.ServerCredentials | None, Tls | bool, str]] = [
        (None, Tls(ca=ours.ca), "it does not speak TLS"),
        (credentials, Tls(ca=others.ca), "not signed by a trusted authority"),
        (credentials, Tls(ca=ours.ca, server_name="x.example"), "the server's certificate is for another name"),
        (credentials, Tls(ca=ours.ca, server_name="localhost"), LOADING),
        (credentials, False, "something listens there, but it requires TLS"),
        (mutual, Tls(ca=ours.ca, server_name="localhost"), "it requires TLS or a client certificate"),
    ]
    for server_credentials, tls, expected in cases:
        with unready_server(server_credentials) as port, closed_port() as other:
            found = messages(kind, f"127.0.0.1:{port},127.0.0.1:{other}", tls, CALLS["generate"])
            assert [expected in message for message in found] == [True, True], found


def test_closed_ports_refuse_the_connection(kind: Any) -> None:
    with closed_port() as port, closed_port() as other:
        address = f"127.0.0.1:{port},127.0.0.1:{other}"
        for tls in (False, True):
            expected = f"no server can be reached at {address} (connection refused)"
            assert messages(kind, address, tls, CALLS["generate"]) == [expected, expected]
