"""What a manifest says of the programs that made the bundle and those that can run it."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.version import Version
from structlog.testing import capture_logs

from dragoman_export.bundle.write import OLDEST_ONNXRUNTIME
from dragoman_server.bundle.load import load_manifest, shipped_bundle
from dragoman_server.models import loading
from dragoman_server.runtime.device import CPU, Device
from tests.support.bundles import SHIPPED_FP32

ROOT = Path(__file__).parents[2]


def test_tests_run_on_the_oldest_onnxruntime_that_is_allowed() -> None:
    """So what a manifest says of it holds for as long as CI passes."""
    [pinned] = re.findall(r"^onnxruntime==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    [bound] = re.findall(r'"onnxruntime>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert pinned == OLDEST_ONNXRUNTIME
    assert Version(pinned) == Version(bound)


@pytest.mark.parametrize("bundle", [shipped_bundle(), SHIPPED_FP32])
def test_bundles_say_what_made_them(bundle: Path) -> None:
    manifest = load_manifest(bundle)[1]
    assert manifest.exporter.keys() == {"dragoman", "onnx", "onnxscript", "torch"}
    assert manifest.oldest_onnxruntime == OLDEST_ONNXRUNTIME


@pytest.mark.parametrize(
    ("installed", "oldest", "warned"),
    [
        ("1.31.1", "1.32.0", True),
        ("1.32.0", "1.32.0", False),
        ("1.100.0", "1.32.0", False),
        ("2.0.0", "1.32.0", False),
        ("1.9.0", "1.32.0", True),
        ("1.31.1", "", False),
    ],
)
def test_an_older_onnxruntime_is_warned_of(
    installed: str, oldest: str, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "onnxruntime", SimpleNamespace(__version__=installed))
    with capture_logs() as entries:
        for device in (CPU, None, Device("cuda")):
            loading._compare_runtime("m", oldest, device)
    assert [entry.get("onnxruntime") for entry in entries] == ([installed] * 2 if warned else []), "none of a GPU"
