"""Fixtures that several tiers share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dragoman.local import LocalServer

ROOT = Path(__file__).parent.parent
StartServer = Callable[..., LocalServer]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public corpora beside the checkout; tests that want it are skipped where it is not there."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the corpora in {folder}, which this machine does not have")
    return folder


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers: `start_server("--bundle", str(folder))`. Each still running at the end must then stop with exit status 0."""
    servers: list[LocalServer] = []

    def start(*arguments: str, wait_seconds: float = 60) -> LocalServer:
        log = tmp_path / f"server-{len(servers)}.log"
        server = LocalServer(*arguments, log=log, wait_seconds=wait_seconds)
        servers.append(server)
        return server

    try:
        yield start
        for server in servers:
            if server.process.poll() is None:
                assert server.stop() == 0, server.last_words()
    finally:
        for server in servers:
            if server.process.poll() is None:
                server.kill()
