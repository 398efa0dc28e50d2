"""What a client is told of credentials that can't be used, before anything is sent."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import grpc
import pytest

from dragoman import AsyncClient, Client, RetryPolicy, Tls, UnavailableError
from dragoman.errors import from_rpc_error
from tests.certificates import Authority

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
            "nobody",
        ),
        (
            "Tls handshake failed: SSL_ERROR_SSL: error:1:SSL routines::WRONG_VERSION_NUMBER: y",
            "does not talk TLS",
        ),
        ("Hostname Verification Check failed.", "is for another name"),
        ("Peer name a is not in peer certificate", "is for another name"),
        ("Connection refused", "connection refused"),
    ],
)
def test_what_tls_stumbles_over_is_said_in_words(words: str, reason: str) -> None:
    details = f"failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: {words}"
    error = from_rpc_error(Failure(details), ADDRESS)
    assert str(error).startswith(f"no server can be reached at {ADDRESS} (")
    assert reason in str(error)


HANDSHAKE = "ipv4:127.0.0.1:1: Tls handshake failed: SSL_ERROR_SSL: error:1:CERTIFICATE_VERIFY_FAILED: x: OK"
REFUSED = "ipv6:%5B::1%5D:1: Failed to connect to remote host: Connection refused"


class Refusing:
    """Stands for a stub whose server has two addresses: each attempt tells of the other one, as gRPC does."""

    def __init__(self, *told: str) -> None:
        self._told = itertools.cycle(
            f"connections to all backends failing; last error: UNKNOWN: {each}" for each in told
        )

    def Generate(self, request: Any, **sent: Any) -> Any:
        raise Failure(next(self._told))


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ((HANDSHAKE, REFUSED), "nobody who is trusted here has signed"),
        ((REFUSED, HANDSHAKE), "nobody who is trusted here has signed"),
        ((REFUSED, REFUSED), "connection refused"),
        ((HANDSHAKE, "backend unhealthy"), "it is not ready"),
    ],
)
def test_of_several_addresses_the_one_with_which_tls_fails_is_told(kind: Any, told: tuple[str, str], said: str) -> None:
    client = kind("localhost:1", retry=RetryPolicy(attempts=2, initial_delay=0.001))
    client._stub = Refusing(*told)
    with pytest.raises(UnavailableError, match=rf"^no server can be reached at localhost:1 \({said}"):
        asyncio.run(client.generate("a")) if kind is AsyncClient else client.generate("a")
