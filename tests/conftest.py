"""Fixtures shared by several test tiers."""

import functools
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.local import LocalServer
from tests.support.process_settings import restored_settings
from tests.support.servers import G2PServer
from tests.support.shared_work import make_once, remember_graphs, shared_folder

ROOT = Path(__file__).parent.parent
StartServer = Callable[..., LocalServer]
# These tests run whole programs, which depend on timing.
WHOLE_PROGRAMS = tuple(ROOT / "tests" / tier for tier in ("deploy", "integration", "system"))

# Imports make hardly any garbage, and looking for it takes a fifth of their time; see `pytest_collection_finish`.
gc.disable()

# Shells make background jobs ignore SIGINT, and nohup makes them ignore SIGHUP. Programs under test would inherit that,
# and wait forever.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# Test processes share the cores, and PyTorch's threads wait for each other without pause: with two in each process,
# tests of small models take ten times as long.
os.environ["OMP_NUM_THREADS"] = "1"

# gRPC and urllib would use the user's proxy even for this machine.
for variable in ("no_proxy", "NO_PROXY"):
    os.environ[variable] = ",".join(filter(None, [os.environ.get(variable), "localhost,127.0.0.1,127.0.0.0/8,::1"]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs the longest tests first, and in CI gives tests of whole programs a second try.

    Emulated processors and training take minutes each: run last, they would occupy one process while the other idles.
    CI machines may stall for seconds. Outside CI nothing is retried, because a flaky test reveals a defect. The summary
    reports retries with their first failure; pyproject.toml limits their number.
    """
    items.sort(key=lambda item: not item.path.is_relative_to(ROOT / "tests" / "system"))
    if os.environ.get("CI") != "true":
        return
    for item in items:
        if any(item.path.is_relative_to(tier) for tier in WHOLE_PROGRAMS):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Replaces the scheduler of pytest-xdist by one that survives the death of a test process."""
    from tests.support.whole_files import make_scheduler

    return make_scheduler(config, log)


def pytest_collection_finish() -> None:
    """Starts garbage collection, seldom, and not of what was imported: with PyTorch, that takes a third of a second.

    Tracing a graph makes a million objects. By default, looking for garbage among them takes a tenth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def settings_of_module() -> Iterator[None]:
    """Restores what fixtures of a whole module change in this process."""
    with restored_settings():
        yield


@pytest.fixture(autouse=True)
def settings_of_test(settings_of_module: None) -> Iterator[None]:
    """Restores what a test changes in this process."""
    with restored_settings():
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of public corpora beside the checkout; without it, tests that use it are skipped."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the corpora in {folder}")
    return folder


def run_program(name: str, *arguments: str | Path) -> None:
    """Runs one of our programs, as installed beside this Python; if it fails, so does the test, with its output."""
    command = [str(Path(sys.executable).with_name(name)), *map(str, arguments)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False
    )
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}", pytrace=False)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the recipe `tiny`, which spells numbers out: "42" -> "forty two". Do not change it."""

    def train(run: Path) -> None:
        run_program("dragoman-train", "tiny", "--out", run, "--device", "cpu", "--threads", "1")

    return make_once(shared_folder(tmp_path_factory) / "tiny-run", train)


@pytest.fixture(scope="session")
def tiny_bundle(tiny_run: Path) -> Path:
    """The bundle exported from `tiny_run`. Do not change it; copy it to damage it."""
    return make_once(tiny_run.with_name("tiny-bundle"), lambda bundle: run_program("dragoman-export", tiny_run, bundle))


@pytest.fixture(scope="module")
def shared_graphs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Shares the graphs of equal models among tests that export, in all test processes."""
    from torch.onnx._internal._lazy_import import onnxscript_apis  # type: ignore[attr-defined]

    from dragoman_export.bundle import write

    with pytest.MonkeyPatch.context() as patch:
        # PyTorch asks for them once per graph, which takes a tenth of the time.
        patch.setattr(onnxscript_apis, "get_torchlib_ops", functools.cache(onnxscript_apis.get_torchlib_ops))
        patch.setattr(write, "trace_graphs", remember_graphs(write.trace_graphs, shared_folder(tmp_path_factory)))
        yield


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers: `start_server("--bundle", str(folder))`.

    Servers that still run at the end of the test must stop with exit status 0.
    """
    servers: list[LocalServer] = []

    def start(*arguments: str, wait_seconds: float = 60) -> LocalServer:
        log = tmp_path / f"server-{len(servers)}.log"
        servers.append(G2PServer(*arguments, log=log, wait_seconds=wait_seconds))
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
    """A server of `tiny_bundle` shared by all tests, for requests that do not change its state."""
    log = tmp_path_factory.mktemp("server") / "server.log"
    with LocalServer("--bundle", str(tiny_bundle), log=log) as server:
        yield server
        assert server.stop() == 0, server.log_tail()
