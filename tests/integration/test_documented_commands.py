"""The commands that the page on ways to decode shows, and what it says they print."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.local import LocalServer

PAGE = Path(__file__).parents[2] / "protos" / "decoding.md"
NUMBER = re.compile(r"-\d+\.\d+")
BLOCKS = re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def shown(block: str) -> list[tuple[str, str]]:
    """Each command of a block, with the output that stands under it."""
    return re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalServer(log=tmp_path_factory.mktemp("server") / "server.log") as server:
        yield server.address


@pytest.mark.parametrize("block", BLOCKS)
def test_commands_print_what_the_page_shows(block: str, address: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "DRAGOMAN_ADDRESS": address}
    for command, output in shown(block):
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, NUMBER.sub("N", done.stdout), done.stderr) == (0, NUMBER.sub("N", output), ""), command
        printed, told = (list(map(float, NUMBER.findall(text))) for text in (done.stdout, output))
        assert printed == pytest.approx(told, abs=1e-3), command  # another processor rounds otherwise


def test_there_are_commands() -> None:
    assert len(BLOCKS) >= 2
