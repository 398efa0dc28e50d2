"""Devices, cache buffers and telemetry of ONNX Runtime, without a model."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from dragoman_server.bundle.manifest import Precision
from dragoman_server.runtime import device
from dragoman_server.runtime.buffers import HostMemory, StreamMemory, ort_element_type, unwritten_bytes
from dragoman_server.runtime.device import CPU, DeviceError, choose_device, precision_warning
from tests.gpu.host_stream import HostStream
from tests.support.bundles import SHIPPED_G2P

PROBE = Path("none.onnx")


@pytest.fixture
def device_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The device directory of a machine whose ONNX Runtime has only the CPU provider."""
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(device, "DEVICE_FILES", tmp_path)
    return tmp_path


def test_auto_is_the_cpu_on_a_machine_without_gpu(device_files: Path) -> None:
    (device_files / "nvidiactl").touch()
    assert choose_device("auto", PROBE) == CPU
    assert choose_device("auto", PROBE, "int8") == CPU
    with pytest.raises(DeviceError, match="no CUDA provider"):
        choose_device("cuda", PROBE)


@pytest.mark.parametrize(
    ("precision", "reason"),
    [("fp32", "nvidia3, but this ONNX Runtime has no CUDA provider"), ("int8", "nvidia3, but the model is int8")],
)
def test_auto_says_why_it_does_not_use_a_gpu(device_files: Path, precision: Precision, reason: str) -> None:
    (device_files / "nvidia3").touch()
    chosen = choose_device("auto", PROBE, precision)
    assert chosen.kind == "cpu"
    assert chosen.fallback is not None
    assert reason in chosen.fallback
    assert choose_device("cpu", PROBE, precision) == CPU, "no reason if the CPU was requested"


@pytest.mark.parametrize("precision", ["int8", "int8-weights", "int4"])
def test_integer_precisions_are_refused_on_gpus(device_files: Path, precision: Precision) -> None:
    with pytest.raises(DeviceError) as raised:
        choose_device("cuda:1", PROBE, precision)
    assert str(raised.value) == (
        f"device cuda:1: the model is {precision}, which is for CPUs; "
        "dragoman-export --precision fp16 makes one for GPUs"
    )


def test_bf16_is_refused_on_cpus(device_files: Path) -> None:
    reason = "the model is bf16, which is for GPUs; dragoman-export --precision int8 makes one for CPUs"
    for choice in ("cpu", "auto"):
        with pytest.raises(DeviceError) as raised:
            choose_device(choice, PROBE, "bf16")
        assert str(raised.value) == f"device {choice}: {reason}"
    (device_files / "nvidia0").touch()
    with pytest.raises(DeviceError) as raised:
        choose_device("auto", PROBE, "bf16")
    assert str(raised.value).startswith(f"device auto: {reason}; there is ")
    assert "no CUDA provider" in str(raised.value), "why the GPU is not used"


def test_warns_of_fp16_on_a_cpu() -> None:
    assert "int8 or fp32 is faster" in (precision_warning("fp16", "cpu") or "")
    assert precision_warning("fp16", "cuda") is None
    assert precision_warning("int8", "cpu") is None


SHAPES = {"heads": (4, 3, 2, 7, 8), "vectors": (4, 3, 1, 16)}


@pytest.fixture(params=list(SHAPES.values()), ids=list(SHAPES))
def shape(request: pytest.FixtureRequest) -> tuple[int, ...]:
    shape: tuple[int, ...] = request.param
    return shape


def filled_memory(shape: tuple[int, ...], dtype: type) -> tuple[HostMemory, NDArray[np.generic]]:
    """Returns memory in which every number is different, and a copy of it."""
    memory = HostMemory(shape, np.dtype(dtype))
    memory.array[:] = np.arange(memory.array.size).reshape(shape) + 2
    return memory, memory.array.copy()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_copy_row_copies_the_positions_and_nothing_else(shape: tuple[int, ...], dtype: type) -> None:
    memory, expected = filled_memory(shape, dtype)
    start, stop = (2, 5) if shape[-2] > 1 else (0, 1)
    memory.copy_row(1, 2, shape[-2], shape[-2])  # no positions
    np.testing.assert_array_equal(memory.array, expected)
    memory.copy_row(2, 0, start, stop)
    expected[:, 0, ..., start:stop, :] = expected[:, 2, ..., start:stop, :]
    np.testing.assert_array_equal(memory.array, expected)


@pytest.mark.parametrize("on_stream", [False, True])
def test_copy_rows_copies_neighbors_and_nothing_else(on_stream: bool) -> None:
    shape, stream = (3, 6, 2, 5, 4), HostStream()
    memory = StreamMemory(shape, np.dtype(np.float32), stream) if on_stream else HostMemory(shape, np.dtype(np.float32))
    expected = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 2
    for plane in range(shape[0]):
        memory.write(plane, 0, expected[plane])
    memory.copy_rows(1, 4, 2, 3)
    stream.synchronize()
    stop = shape[3] if on_stream else 3  # a stream copies whole rows
    expected[:, 4:6, ..., :stop, :] = expected[:, 1:3, ..., :stop, :]
    for plane in range(shape[0]):
        for row in range(shape[1]):
            np.testing.assert_array_equal(memory.read(plane, row), expected[plane, row])


def test_write_fills_the_start_of_rows(shape: tuple[int, ...]) -> None:
    memory, expected = filled_memory(shape, np.float32)
    memory.write(3, 1, np.ones((2, *shape[2:-2], 1, shape[-1]), np.float32))
    expected[3, 1:3, ..., :1, :] = 1
    np.testing.assert_array_equal(memory.array, expected)
    np.testing.assert_array_equal(memory.read(3, 1), expected[3, 1])


def test_rows_that_nobody_has_used_take_no_memory() -> None:
    before = unwritten_bytes()
    memory = HostMemory((4, 64, 2, 128, 64), np.dtype(np.float32))
    row = memory.nbytes // (4 * 64)
    assert unwritten_bytes() == before + memory.nbytes
    memory.write(2, 0, np.ones((1, 2, 128, 64), np.float32))
    written = before + memory.nbytes - unwritten_bytes()
    assert row <= written <= row + mmap.PAGESIZE
    del memory
    assert unwritten_bytes() == before


@pytest.mark.parametrize(
    ("dtype", "element_type"),
    [(np.float32, TensorProto.FLOAT), (np.float16, TensorProto.FLOAT16), (np.uint16, TensorProto.BFLOAT16)],
)
def test_graphs_read_and_write_every_cache_type(dtype: type, element_type: int) -> None:
    """NumPy has no bf16, so memory holds the bits."""
    x, y = (helper.make_tensor_value_info(name, element_type, [5]) for name in "xy")
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [5])
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [y], [shape]), opset_imports=[helper.make_opsetid("", 24)], ir_version=10
    )
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    memory = HostMemory((2, 1, 1, 5), np.dtype(dtype))
    memory.array[0] = [1, 2, 3, 65000, 0]
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, ort_element_type(memory.dtype), (5,), memory.address(0))
    binding.bind_output("y", "cpu", 0, ort_element_type(memory.dtype), (5,), memory.address(1))
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(memory.array[1], memory.array[0])


# Each disables ONNX Runtime's telemetry by itself, which must be on unless the package turns it off.
DISABLED_BY = ("CI", "ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS")


def telemetry_files(home: Path, prelude: str) -> list[Path]:
    """Returns the files that a program writes to its home when it runs `prelude` and opens a session."""
    unset = {*DISABLED_BY, *(name for name in os.environ if name.startswith("XDG_"))}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    graph = str(SHIPPED_G2P / "encoder.onnx")
    code = f"{prelude}\nimport onnxruntime\nonnxruntime.InferenceSession({graph!r}, providers=['CPUExecutionProvider'])"
    subprocess.run([sys.executable, "-c", code], env={**environment, "HOME": str(home)}, check=True)
    return [path for path in home.rglob("*") if path.is_file()]


@pytest.mark.parametrize("package", ["dragoman_server", "dragoman_export"])
def test_telemetry_is_off(tmp_path: Path, package: str) -> None:
    assert telemetry_files(tmp_path, f"import {package}") == []


def test_telemetry_is_on_by_default(tmp_path: Path) -> None:
    """Checks that the test above can fail."""
    assert "deviceid" in {path.name for path in telemetry_files(tmp_path, "")}
