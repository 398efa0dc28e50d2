"""A model that there is not the memory for is not called broken, and what helps is said."""

from pathlib import Path
from typing import Any

import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from dragoman_server.bundle.load import BundleError, load_bundle, shipped_bundle
from dragoman_server.config import ServerConfig
from dragoman_server.engine.engine_options import EngineOptions
from dragoman_server.engine.host import LocalHost
from dragoman_server.models.loading import LoadError, load_version
from dragoman_server.runtime.device import DeviceError
from dragoman_server.runtime.runtime import Runtime

# As ONNX Runtime puts it, which has no exception of its own for that.
WITHOUT_MEMORY = [
    MemoryError(),
    RuntimeError("BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 4096"),
    Fail("CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc(&p, size)"),
]


def failing(error: Exception) -> Any:
    def fail(*_: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("error", WITHOUT_MEMORY, ids=lambda error: type(error).__name__)
def test_a_first_run_without_memory_is_not_the_fault_of_the_bundle(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(Runtime, "warm_up", failing(error))
    model = LocalHost().load(load_bundle(shipped_bundle()), EngineOptions(device="cpu", engines=1))
    with pytest.raises(DeviceError) as refused:
        model.runtime(0, 4)
    said = "cpu ran out of memory at the first run of an engine with 4 cache rows; lower --max-rows, or give it more"
    assert str(refused.value) == f"{said} memory"


def test_another_error_of_the_first_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runtime, "warm_up", failing(Fail("Got invalid dimensions for input: source_ids")))
    model = LocalHost().load(load_bundle(shipped_bundle()), EngineOptions(device="cpu", engines=1))
    with pytest.raises(BundleError, match="the graphs do not run as the manifest says: Fail: Got invalid dimensions"):
        model.runtime(0, 4)


@pytest.mark.parametrize("error", WITHOUT_MEMORY, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("rows", "remedy"), [(None, ""), (8, "lower --max-rows, or ")])
async def test_what_helps_is_said_where_there_is_not_the_memory_to_load(
    monkeypatch: pytest.MonkeyPatch, error: Exception, rows: int | None, remedy: str
) -> None:
    monkeypatch.setattr("dragoman_server.models.loading.load_bundle", failing(error))
    with pytest.raises(LoadError) as refused:
        await load_version(Path("nowhere"), "a", "1", ServerConfig(max_rows=rows), lambda: None)
    assert str(refused.value) == f"there is not enough memory to load it; {remedy}give it more memory"


async def test_a_fault_of_ours_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman_server.models.loading.load_bundle", failing(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        await load_version(Path("nowhere"), "a", "1", ServerConfig(), lambda: None)
