"""How many connections the limit of open files leaves room for."""

import resource

import pytest

from dragoman_server.config import ServerConfig
from dragoman_server.core.errors import StartError
from dragoman_server.process import connections
from dragoman_server.process.connections import allow_connections, server_options


class Limits:
    """Stands in for the system's limit of open files."""

    RLIMIT_NOFILE, RLIM_INFINITY = resource.RLIMIT_NOFILE, resource.RLIM_INFINITY

    def __init__(self, soft: int, hard: int) -> None:
        self.now = (soft, hard)

    def getrlimit(self, _: int) -> tuple[int, int]:
        return self.now

    def setrlimit(self, _: int, limits: tuple[int, int]) -> None:
        self.now = limits


@pytest.mark.parametrize(
    ("soft", "hard", "asked", "allowed", "then"),
    [
        (1024, 4096, 100, 100, 1024),
        (1024, 4096, 1000, 1000, 1256),
        (1024, 1100, 1000, 844, 1100),
        (300, 300, 4096, 44, 300),
        (272, 272, 4096, 16, 272),
        (259, 259, 3, 3, 259),
        (1024, resource.RLIM_INFINITY, 4096, 4096, 4352),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 4096, 4096, resource.RLIM_INFINITY),
    ],
)
def test_files_are_asked_for_and_connections_held_to_those_there_are(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, asked: int, allowed: int, then: int
) -> None:
    limits = Limits(soft, hard)
    monkeypatch.setattr(connections, "resource", limits)
    config = ServerConfig(max_connections=asked)
    assert allow_connections(config) == allowed
    assert limits.now == (then, hard)
    assert dict(server_options(config, allowed))["grpc.max_allowed_incoming_connections"] == allowed


@pytest.mark.parametrize(("limit", "asked", "least"), [(271, 4096, 272), (64, 4096, 272), (258, 3, 259)])
def test_too_few_files_are_told(monkeypatch: pytest.MonkeyPatch, limit: int, asked: int, least: int) -> None:
    monkeypatch.setattr(connections, "resource", Limits(limit, limit))
    with pytest.raises(StartError) as refused:
        allow_connections(ServerConfig(max_connections=asked))
    said = f"the system allows this process {limit} open files (ulimit -n); it needs at least {least}"
    assert str(refused.value) == said
