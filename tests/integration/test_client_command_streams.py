"""The `dragoman` command where its standard input or output is not what it hopes for."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.cli import runner
from tests.support.scripted_server import ScriptedServer

COMMAND = [sys.executable, "-c", "from dragoman.cli import main; main()"]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        monkeypatch.setenv("DRAGOMAN_ADDRESS", server.address)
        yield server


async def read(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    with path.open("rb") as file:
        monkeypatch.setattr(runner, "STDIN", file.fileno())
        return [line async for line in runner.stdin_lines()]


async def test_lines_may_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text"
    for size in (65_534, 65_535, 65_536, 131_071):  # about the size of what is read at once
        text.write_bytes(b"x" * size + b"\r\n\n\r\nend")
        assert await read(text, monkeypatch) == ["x" * size, "", "", "end"]


async def test_a_long_line_costs_no_more_than_its_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"x" * 100_000_000)
    started = time.process_time()
    [line] = await read(text, monkeypatch)
    assert len(line) == 100_000_000
    assert time.process_time() - started < 5


def test_an_input_that_can_not_be_read_is_told(scripted: ScriptedServer, tmp_path: Path) -> None:
    with (tmp_path / "only-for-writing").open("wb") as stdin:
        done = subprocess.run([*COMMAND, "generate"], stdin=stdin, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"dragoman: standard input can't be read: Bad file descriptor\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["generate", "a"], ["models"], ["health"]])
def test_an_output_that_is_full_is_told(scripted: ScriptedServer, arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as stdout:
        done = subprocess.run([*COMMAND, *arguments], stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, b"dragoman: No space left on device\n")


@pytest.mark.parametrize("arguments", [["generate", "a"], ["models"], ["tokenize", "a"]])
def test_every_command_ends_quietly_where_nobody_reads(scripted: ScriptedServer, arguments: list[str]) -> None:
    reader, stdout = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([*COMMAND, *arguments], stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(stdout)
    assert (done.returncode, done.stderr) == (141, b"")
