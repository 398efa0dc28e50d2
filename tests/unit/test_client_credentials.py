"""What a client is told of credentials that can't be used, before anything is sent."""

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
from dragoman.errors import from_rpc_error
from dragoman.v1 import generation_pb2_grpc
from tests.support.certificates import Authority

ADDRESS = "127.0.0.1:1"


@pytest.fixture(params=[Client, AsyncClient])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_files_are_named_with_what_is_wrong(kind: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    pair = authority.sign("client")
    text = tmp_path / "text"
    text.write_text("canary")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"ca": tmp_path / "nothing"}, f"^tls: ca {tmp_path}/nothing can't be read: No such file or directory$"),
        ({"ca": text}, f"^tls: ca {text} holds no certificate in PEM form$"),
        ({"ca": pair.key}, "holds no certificate in PEM form$"),
        ({"cert": pair.cert, "key": pair.cert}, "^tls: key .* holds no private key in PEM form$"),
        ({"cert": pair.cert}, "^tls: cert and key need each other$"),
        ({"key": pair.key}, "^tls: cert and key need each other$"),
    ]
    for tls, words in wrong:
        with pytest.raises(ValueError, match=words):
            kind(ADDRESS, tls=Tls(**tls))


@pytest.mark.parametrize("key", ["", "two words", "line\nbreak", "Ж", "\x00"])
def test_a_key_that_can_not_be_one_is_refused_and_not_quoted(kind: Any, key: str) -> None:
    with pytest.raises(ValueError, match=r"^api_key: expected printable ASCII without spaces$"):
        kind(ADDRESS, api_key=key)


class Failure(grpc.RpcError):
    """What gRPC raises where it finds no server."""

    def __init__(self, details: str) -> None:
        self._details = details

    def code(self) -> Any:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[()]:
        return ()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            "Tls handshake failed: SSL_ERROR_SSL: error:1:CERTIFICATE_VERIFY_FAILED: x: OK",
            "not signed by a trusted",
        ),
        (
            "Tls handshake failed: SSL_ERROR_SSL: error:1:SSL routines::WRONG_VERSION_NUMBER: y",
            "does not speak TLS",
        ),
        ("Hostname Verification Check failed.", "is for another name"),
        ("Peer name a is not in peer certificate", "is for another name"),
        ("Connection refused", "(connection refused)"),
        ("Socket closed", "(socket closed: something listens there, but it requires TLS or a client"),
    ],
)
def test_what_tls_stumbles_over_is_said_in_words(words: str, reason: str) -> None:
    details = f"failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: {words}"
    error = from_rpc_error(Failure(details), ADDRESS)
    assert str(error).startswith(f"no server can be reached at {ADDRESS} (")
    assert reason in str(error)


LOADING = "the model is still loading"


class _Unready(
    health_pb2_grpc.HealthServicer,  # type: ignore[misc]  # the stubs carry no types
    generation_pb2_grpc.GenerationServiceServicer,
):
    """A server that loads its model."""

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
def serving(credentials: grpc.ServerCredentials | None = None) -> Iterator[int]:
    """A server that is not ready, at a port of 127.0.0.1."""
    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool)
        servicer = _Unready()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server)
        port = (
            server.add_insecure_port("127.0.0.1:0")
            if credentials is None
            else server.add_secure_port("127.0.0.1:0", credentials)
        )
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait()


@contextmanager
def silent() -> Iterator[int]:
    """A port of 127.0.0.1 at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]


def told(kind: Any, address: str, tls: Tls | bool, call: Callable[[Any], Any]) -> list[str]:
    """What two calls of one client are told, the second of them when the first has had the news."""

    async def ask() -> list[str]:
        client = kind(address, tls=tls, retry=RetryPolicy(attempts=3, initial_delay=0.02))
        messages = []
        for _ in range(2):
            try:
                made = call(client)
                if kind is AsyncClient:
                    await (anext(made) if hasattr(made, "__anext__") else made)
                elif hasattr(made, "__next__"):
                    next(made)
            except UnavailableError as error:
                messages.append(str(error))
        if kind is AsyncClient:
            await client.close()
        else:
            client.close()
        return messages

    return asyncio.run(ask())


CALLS: dict[str, Callable[[Any], Any]] = {
    "generate": lambda client: client.generate("a"),
    "stream": lambda client: client.generate_stream("a"),
    "many": lambda client: client.generate_many(["a"]),
}


@pytest.mark.parametrize("name", CALLS)
def test_of_several_addresses_the_one_that_is_not_ready_says_why(kind: Any, name: str) -> None:
    """And not that nobody listens at the other, as at one of localhost's. It is asked, whatever its health says."""
    with serving() as port, silent() as other:
        for address in (f"127.0.0.1:{port},127.0.0.1:{other}", f"localhost:{port}"):
            assert told(kind, address, False, CALLS[name]) == [LOADING, LOADING]


def test_of_several_addresses_the_one_with_which_tls_fails_is_told(kind: Any, tmp_path: Path) -> None:
    ours, others = Authority(tmp_path, "ours"), Authority(tmp_path, "others")
    pair = ours.sign("server")
    chain = [(pair.key.read_bytes(), pair.cert.read_bytes())]
    credentials = grpc.ssl_server_credentials(chain)
    mutual = grpc.ssl_server_credentials(chain, others.ca.read_bytes(), require_client_auth=True)
    wrong: list[tuple[grpc.ServerCredentials | None, Tls | bool, str]] = [
        (None, Tls(ca=ours.ca), "it does not speak TLS"),
        (credentials, Tls(ca=others.ca), "not signed by a trusted authority"),
        (credentials, Tls(ca=ours.ca, server_name="x.example"), "the server's certificate is for another name"),
        (credentials, Tls(ca=ours.ca, server_name="localhost"), LOADING),
        (credentials, False, "something listens there, but it requires TLS"),
        (mutual, Tls(ca=ours.ca, server_name="localhost"), "something listens there, but it requires TLS or a client"),
    ]
    for of_server, tls, said in wrong:
        with serving(of_server) as port, silent() as other:
            messages = told(kind, f"127.0.0.1:{port},127.0.0.1:{other}", tls, CALLS["generate"])
            assert [said in message for message in messages] == [True, True], messages


def test_where_nobody_listens_at_all_that_is_told(kind: Any) -> None:
    with silent() as port, silent() as other:
        address = f"127.0.0.1:{port},127.0.0.1:{other}"
        for tls in (False, True):
            said = f"no server can be reached at {address} (connection refused)"
            assert told(kind, address, tls, CALLS["generate"]) == [said, said]
