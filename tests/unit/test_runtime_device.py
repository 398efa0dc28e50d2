"""The CPU is taken in silence only where there is no GPU."""

from pathlib import Path

import onnxruntime
import pytest

from server.runtime import device
from server.runtime.device import CPU, DeviceError, choose_device


@pytest.fixture(autouse=True)
def device_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a machine whose ONNX Runtime knows the CPU alone."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(device, "DEVICE_FILES", tmp_path)
    return tmp_path


def test_without_a_gpu_there_is_nothing_to_tell(device_files: Path) -> None:
    (device_files / "nvidiactl").touch()
    assert choose_device("auto", Path("none.onnx")) == CPU
    with pytest.raises(DeviceError, match="no CUDA provider"):
        choose_device("cuda", Path("none.onnx"))


def test_a_gpu_that_this_onnx_runtime_can_not_use_is_told(device_files: Path) -> None:
    (device_files / "nvidia3").touch()
    chosen = choose_device("auto", Path("none.onnx"))
    assert chosen.kind == "cpu"
    assert chosen.fallback is not None
    assert "nvidia3" in chosen.fallback
    assert "no CUDA provider" in chosen.fallback
    assert choose_device("cpu", Path("none.onnx")) == CPU, "where the CPU was asked for there is nothing to tell"
