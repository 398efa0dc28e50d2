"""Fixtures: a scripted server and clients of it, and the shipped model in fp32 for comparisons with other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from dragoman import Client
from dragoman.local import LocalServer
from tests.support.blocking_client import QUICK, BlockingAsyncClient
from tests.support.bundles import SHIPPED_FP32
from tests.support.scripted_server import ScriptedServer

if TYPE_CHECKING:  # these import PyTorch and transformers, which most tests here do not need
    import ctranslate2

    from tests.support.parity import Shipped


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """A scripted server, which is also the default server of the `dragoman` command."""
    with ScriptedServer() as server:
        monkeypatch.setenv("DRAGOMAN_ADDRESS", server.address)
        yield server


@pytest.fixture(params=[Client, BlockingAsyncClient], ids=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes clients of an address, of each kind in turn, and closes them after the test."""
    clients: list[Any] = []

    def make(address: str, **arguments: Any) -> Any:
        clients.append(request.param(address, **{"retry": QUICK, "timeout": 20.0} | arguments))
        return clients[-1]

    yield make
    for each in clients:
        each.close()


@pytest.fixture
def client(connect: Callable[..., Any], scripted: ScriptedServer) -> Any:
    """A client of the scripted server, of each kind in turn."""
    return connect(scripted.address)


@pytest.fixture(scope="session")
def shipped() -> Shipped:
    from tests.support.parity import Shipped

    return Shipped()


@pytest.fixture(scope="session")
def translator(shipped: Shipped, tmp_path_factory: pytest.TempPathFactory) -> ctranslate2.Translator:
    """The shipped model in CTranslate2."""
    return shipped.translator(tmp_path_factory.mktemp("ctranslate2"))


@pytest.fixture(scope="session")
def shipped_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a server of the shipped model in fp32."""
    log = tmp_path_factory.mktemp("server") / "server.log"
    with LocalServer("--bundle", str(SHIPPED_FP32), log=log) as server, Client(server.address) as client:
        yield client
        assert server.stop() == 0, server.log_tail()
