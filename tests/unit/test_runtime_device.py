"""The CPU is taken in silence only where there is no GPU."""

from pathlib import Path

import onnxruntime
import pytest

from dragoman_server.runtime import device
from dragoman_server.runtime.device import CPU, DeviceError, choose_device, precision_warning


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


def test_integers_are_for_cpus(device_files: Path) -> None:
    assert choose_device("auto", Path("none.onnx"), "int8") == CPU, "no GPU, nothing to tell"
    for precision in ("int8", "int8-weights", "int4"):
        with pytest.raises(DeviceError) as raised:
            choose_device("cuda:1", Path("none.onnx"), precision)
        assert str(raised.value) == (
            f"device cuda:1: the model is {precision}, which is for CPUs; "
            "dragoman-export --precision fp16 makes one for GPUs"
        )
    (device_files / "nvidia0").touch()
    chosen = choose_device("auto", Path("none.onnx"), "int8")
    assert chosen.kind == "cpu"
    assert chosen.fallback is not None
    assert "nvidia0, but the model is int8" in chosen.fallback


def test_bf16_is_for_gpus(device_files: Path) -> None:
    reason = "the model is bf16, which is for GPUs; dragoman-export --precision int8 makes one for CPUs"
    for choice in ("cpu", "auto"):
        with pytest.raises(DeviceError) as raised:
            choose_device(choice, Path("none.onnx"), "bf16")
        assert str(raised.value) == f"device {choice}: {reason}"
    (device_files / "nvidia0").touch()
    with pytest.raises(DeviceError) as raised:
        choose_device("auto", Path("none.onnx"), "bf16")
    assert str(raised.value).startswith(f"device auto: {reason}; there is ")
    assert "no CUDA provider" in str(raised.value), "why the GPU is not used"


def test_half_precision_on_a_cpu_is_warned_about() -> None:
    told = precision_warning("fp16", "cpu")
    assert told is not None
    assert "int8 or fp32 is faster" in told
    assert precision_warning("fp16", "cuda") is None
    assert precision_warning("int8", "cpu") is None
