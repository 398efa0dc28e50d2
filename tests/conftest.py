"""Fixtures that several tiers share."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dragoman.local import LocalServer

ROOT = Path(__file__).parent.parent
StartServer = Callable[..., LocalServer]
# Their tests run whole programs, which must keep to the clock.
WHOLE_PROGRAMS = tuple(ROOT / "tests" / tier for tier in ("deploy", "integration", "system"))

# A shell lets what it starts in the background ignore Ctrl-C. Programs under test would inherit that, and wait forever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nor is a proxy of the user's asked for what stands on this machine, which gRPC and urllib would do.
for variable in ("no_proxy", "NO_PROXY"):
    os.environ[variable] = ",".join(filter(None, [os.environ.get(variable), "localhost,127.0.0.1,127.0.0.0/8,::1"]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starts the longest tests first, and in CI gives tests of whole programs a second try.

    Emulated processors and training take minutes each: started last, one process would run them while the other idles.
    CI machines may stall for seconds. Nothing is retried elsewhere, since a test that fails now and then shows a
    defect. Retries are reported at the end, with the first failure; pyproject.toml limits their number.
    """
    items.sort(key=lambda item: not item.path.is_relative_to(ROOT / "tests" / "system"))
    if os.environ.get("CI") != "true":
        return
    for item in items:
        if any(item.path.is_relative_to(tier) for tier in WHOLE_PROGRAMS):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public corpora beside the checkout; tests that want it are skipped where it is not there."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the corpora in {folder}, which this machine does not have")
    return folder


def run_program(name: str, *arguments: str | Path) -> None:
    """Runs one of our programs, as installed beside this Python; fails the test with its words where it fails."""
    command = [str(Path(sys.executable).with_name(name)), *map(str, arguments)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False
    )
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)} exited with {done.returncode} and said:\n{done.stdout}", pytrace=False)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the recipe `tiny`, trained here: reads numbers out, "42" -> "forty two". Not to be changed."""
    run = tmp_path_factory.mktemp("tiny") / "run"
    run_program("dragoman-train", "tiny", "--out", run, "--device", "cpu", "--threads", "1")
    return run


@pytest.fixture(scope="session")
def tiny_bundle(tiny_run: Path) -> Path:
    """The bundle exported from `tiny_run`. Not to be changed; copy it to damage it."""
    bundle = tiny_run.parent / "bundle"
    run_program("dragoman-export", tiny_run, bundle)
    return bundle


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers: `start_server("--bundle", str(folder))`.

    Each that still runs when the test ends must then stop with exit status 0.
    """
    servers: list[LocalServer] = []

    def start(*arguments: str, wait_seconds: float = 60) -> LocalServer:
        log = tmp_path / f"server-{len(servers)}.log"
        servers.append(LocalServer(*arguments, log=log, wait_seconds=wait_seconds))
        return servers[-1]

    try:
        yield start
        for server in servers:
            if server.process.poll() is None:
                assert server.stop() == 0, server.log_tail()
    finally:
        for server in servers:
            if server.process.poll() is None:
                server.kill()


@pytest.fixture(scope="session")
def tiny_server(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server of `tiny_bundle` that all tests share: for requests that leave it as it was."""
    log = tmp_path_factory.mktemp("server") / "server.log"
    with LocalServer("--bundle", str(tiny_bundle), log=log) as server:
        yield server
        assert server.stop() == 0, server.log_tail()
