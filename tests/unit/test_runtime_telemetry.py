"""ONNX Runtime tells its maker nothing of what is computed here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman_server.bundle.load import shipped_bundle

# What it keeps silent for by itself: the telemetry must be on wherever we don't turn it off.
SILENCED_BY = ("CI", "ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS")


def files_after_a_session(home: Path, before: str) -> list[Path]:
    """What a program writes to its home, which runs `before`, then a session."""
    elsewhere = [name for name in os.environ if name.startswith("XDG_")]
    environment = {name: value for name, value in os.environ.items() if name not in (*SILENCED_BY, *elsewhere)}
    graph = str(shipped_bundle() / "encoder.onnx")
    code = f"{before}\nimport onnxruntime\nonnxruntime.InferenceSession({graph!r}, providers=['CPUExecutionProvider'])"
    subprocess.run([sys.executable, "-c", code], env={**environment, "HOME": str(home)}, check=True)
    return [path for path in home.rglob("*") if path.is_file()]


@pytest.mark.parametrize("package", ["dragoman_server", "dragoman_export"])
def test_no_id_of_the_machine_and_no_events_are_kept(tmp_path: Path, package: str) -> None:
    assert files_after_a_session(tmp_path, f"import {package}") == []


def test_they_would_be(tmp_path: Path) -> None:
    """Or the test above could not fail."""
    assert "deviceid" in {path.name for path in files_after_a_session(tmp_path, "")}
