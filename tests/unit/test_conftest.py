"""tests/conftest.py in small suites: which tests are tried again when they fail, and settings that it restores."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

# Each passes at its second try. What a module has is made once; only where that failed is it made again.
SUITE = """
from pathlib import Path
import pytest

def times(what):
    file = Path(__file__).with_name(f"{Path(__file__).stem}-{what}")
    with file.open("a") as log:
        log.write("x")
    return file.stat().st_size

@pytest.fixture(scope="module")
def sound():
    yield times("sound")
    times("end")

@pytest.fixture(scope="module")
def unsound():
    assert times("unsound") > 1, "it could not be made"

def test_fails_once(sound):
    assert (sound, times("test")) == (1, 2), "once is chance"

def test_without_what_it_needs(sound, unsound):
    assert sound == 1

def test_passes(sound, unsound):
    assert sound == 1
"""
ALWAYS = """
import pytest

@pytest.mark.parametrize("number", range(9))
def test_fails(number):
    raise AssertionError("always")
"""

# Kills its process, once.
DEADLY = """
import os
import signal
from pathlib import Path

def test_before():
    pass

def test_deadly():
    died = Path(__file__).with_suffix(".died")
    if not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)

def test_after():
    pass
"""
ALONE = """
def test_alone():
    pass
"""

# A test changes what it likes, a fixture what the tests of its module need.
SETTINGS = """
import logging
import signal
import sys
import threading
import pytest
import structlog
from dragoman_server.offline.setup import prepare_process

def settings():
    handlers = any(type(handler) is logging.StreamHandler for handler in logging.root.handlers)
    logs = handlers, structlog.is_configured(), threading.excepthook
    return *logs, sys.getswitchinterval(), signal.getsignal(signal.SIGTERM)

AT_FIRST = settings()

def change():
    prepare_process()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

def unchanged():
    return [now == before for now, before in zip(settings(), AT_FIRST, strict=True)]

@pytest.fixture(scope="module")
def changed():
    change()

def test_before():
    assert all(unchanged())

def test_that_changes():
    change()
    assert not any(unchanged())

def test_after():
    assert all(unchanged())

@pytest.mark.parametrize("number", range(2))
def test_with_fixture(changed, number):
    assert not any(unchanged())
"""

# Those that pyproject.toml has settings for. To import the others that are installed takes longer than these tests.
PLUGINS = ("xdist", "rerunfailures", "timeout", "asyncio")


def run(folder: Path, processes: int, ci: str, **files: str) -> tuple[dict[str, int], str]:
    """Runs tests like ours in a folder of their own.

    Returns:
        how many passed, failed and so on, and all that pytest said.
    """
    shutil.copy(ROOT / "pyproject.toml", folder)
    for tier in ("integration", "unit"):
        (folder / "tests" / tier).mkdir(parents=True)
        for name, content in files.items():
            (folder / "tests" / tier / f"test_{name}.py").write_text(content)
    (folder / "tests" / "support").mkdir()
    for name in (
        "conftest.py",
        "support/bundles.py",
        "support/process_settings.py",
        "support/servers.py",
        "support/shared_work.py",
        "support/whole_files.py",
    ):
        shutil.copy(ROOT / "tests" / name, folder / "tests" / name)
    plugins = [f"-p{name}" for name in PLUGINS]
    command = [sys.executable, "-m", "pytest", *plugins, f"--numprocesses={processes}", "--dist=loadfile", "tests"]
    variables = {**os.environ, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120, check=False)
    counts = {what: int(count) for count, what in re.findall(r"(\d+) ([a-z]+)", done.stdout.splitlines()[-1])}
    return counts, done.stdout + done.stderr


@pytest.mark.parametrize("processes", [0, 2])
def test_whole_programs_get_a_second_try_in_ci_which_is_told(tmp_path: Path, processes: int) -> None:
    counts, said = run(tmp_path, processes, "true", sometimes=SUITE)
    assert counts["rerun"] == 2, said
    assert (counts["passed"], counts["failed"], counts["errors"]) == (3, 1, 2), said
    assert (tmp_path / "tests" / "integration" / "test_sometimes-end").read_text() == "x"
    [tried_again] = re.findall(r"=+ rerun test summary info =+\n(.*?)\n=====", said, re.DOTALL)
    assert set(re.findall(r"RERUN (\S+)", tried_again)) == {
        f"tests/integration/test_sometimes.py::{test}" for test in ("test_fails_once", "test_without_what_it_needs")
    }
    assert "once is chance" in tried_again
    assert "it could not be made" in tried_again


def test_nothing_gets_a_second_try_elsewhere(tmp_path: Path) -> None:
    counts, said = run(tmp_path, 0, "", sometimes=SUITE)
    assert "rerun" not in counts
    assert (counts["failed"], counts["errors"]) == (2, 4), said


def test_where_much_fails_not_everything_is_tried_again(tmp_path: Path) -> None:
    counts, said = run(tmp_path, 2, "true", always=ALWAYS)
    assert (counts["failed"], counts["rerun"]) == (18, 5), said


def test_all_tests_end_though_one_kills_its_process(tmp_path: Path) -> None:
    counts, said = run(tmp_path, 1, "true", alone=ALONE, deadly=DEADLY, last=ALONE)
    assert (counts["passed"], counts["failed"], counts["rerun"]) == (4 + 3 + 2, 1, 1), said
    assert re.findall(r"^(?:FAILED|RERUN) (\S+)", said, re.MULTILINE) == [
        f"tests/{tier}/test_deadly.py::test_deadly" for tier in ("integration", "unit")
    ]


def test_no_test_and_no_module_leaves_settings_behind(tmp_path: Path) -> None:
    counts, said = run(tmp_path, 0, "", settings=SETTINGS)
    assert counts == {"passed": 10}, said
