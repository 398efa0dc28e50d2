"""A short `make soak`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

SECONDS, DIFFERENT_CALLS = 10, 80


@pytest.mark.slow
def test_server_survives_a_short_soak(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.soak", "--seconds", str(SECONDS), "--different", str(DIFFERENT_CALLS)]
    done = subprocess.run(
        [*command, "--output", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    report = json.loads((tmp_path / "soak.json").read_text())
    assert "Failed:" not in done.stdout
    assert report["counts"]["right"] > DIFFERENT_CALLS
    assert max(sample["waiting"] for sample in report["during"]) > 0, "the server was never at capacity"
    assert max(sample["connections"] for sample in report["during"]) > 20
