"""Loading and unloading by hand, and loads that run out of memory."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from dragoman_server.bundle.load import BundleError, load_bundle
from dragoman_server.config import ServerConfig
from dragoman_server.engine.engine_options import EngineOptions
from dragoman_server.engine.host import LocalHost
from dragoman_server.messages.api_error import ApiError
from dragoman_server.models.loading import LoadError, load_version
from dragoman_server.models.manager import NotLoadedError, UnknownModelError
from dragoman_server.models.settings import ModelSettings, Pinned, RepositorySettings
from dragoman_server.runtime.device import DeviceError
from dragoman_server.runtime.runtime import Runtime
from tests.support.bundles import SHIPPED_G2P, altered_copy, edit_manifest
from tests.support.fake_models import FakeSource, ManagerHarness, started
from tests.support.waiting import until_async

# The errors of ONNX Runtime, which has no exception of its own for this.
OUT_OF_MEMORY = [
    MemoryError(),
    RuntimeError("BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 4096"),
    Fail("CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc(&p, size)"),
]


def failing(error: Exception) -> Any:
    def fail(*_: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_running_out_of_memory_in_the_first_run_is_not_blamed_on_the_bundle(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(Runtime, "warm_up", failing(error))
    model = LocalHost().load(load_bundle(SHIPPED_G2P), EngineOptions(device="cpu", engines=1))
    with pytest.raises(DeviceError) as refused:
        model.runtime(0, 4)
    start = "cpu ran out of memory at the first run of an engine with 4 cache rows; lower --max-rows, "
    assert str(refused.value) == f"{start}or give it more memory"


def test_another_error_in_the_first_run_is_blamed_on_the_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runtime, "warm_up", failing(Fail("Got invalid dimensions for input: source_ids")))
    model = LocalHost().load(load_bundle(SHIPPED_G2P), EngineOptions(device="cpu", engines=1))
    with pytest.raises(BundleError, match="the graphs do not run as the manifest says: Fail: Got invalid dimensions"):
        model.runtime(0, 4)


async def test_damaged_defaults_are_refused_before_an_engine_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = edit_manifest(lambda document: document.update(generation={"options": {"beams": 4}}))
    bundle = altered_copy(SHIPPED_G2P, tmp_path / "bundle", change)
    monkeypatch.setattr("dragoman_server.models.loading._start", failing(AssertionError("an engine starts")))
    with pytest.raises(LoadError, match=r"generation\.options: .*beams"):
        await load_version(bundle, "a", "1", ServerConfig(), lambda: None)


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("rows", "remedy"), [(None, ""), (8, "lower --max-rows, or ")])
async def test_running_out_of_memory_while_loading_names_a_remedy(
    monkeypatch: pytest.MonkeyPatch, error: Exception, rows: int | None, remedy: str
) -> None:
    monkeypatch.setattr("dragoman_server.models.loading.load_bundle", failing(error))
    with pytest.raises(LoadError) as refused:
        await load_version(Path("nowhere"), "a", "1", ServerConfig(max_rows=rows), lambda: None)
    assert str(refused.value) == f"there is not enough memory to load it; {remedy}give it more memory"


async def test_a_bug_in_loading_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman_server.models.loading.load_bundle", failing(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        await load_version(Path("nowhere"), "a", "1", ServerConfig(), lambda: None)


async def test_a_failed_load_by_hand_counts_as_refused_only_if_the_settings_ask_for_it() -> None:
    harness, source = await started(m={"1": "a", "2": "broken"})
    with pytest.raises(NotLoadedError, match="/models/m/2 is broken"):
        await harness.manager.load("m@2")
    assert 'dragoman_model_refused{model="m"} 1.0' in harness.page()
    source.settings = RepositorySettings(models={"m": ModelSettings(Pinned(frozenset({"1"})))})
    await harness.manager.reload()
    assert 'dragoman_model_refused{model="m"} 0.0' in harness.page()
    with pytest.raises(NotLoadedError, match="/models/m/2 is broken"):
        await harness.manager.load("m@2")
    assert 'dragoman_model_refused{model="m"} 0.0' in harness.page()
    source.models["m"]["2"] = "mended"
    await harness.manager.reload()
    assert harness.answers("m@2") == "NOT_FOUND"  # no longer requested
    await harness.manager.load("m@2")
    source.models["m"]["2"] = "broken"
    await harness.manager.reload()
    assert (harness.answers("m@2"), harness.answers("m")) == ("m@2", "m@1")  # a successful load by hand stays in force
    assert 'dragoman_model_refused{model="m"} 1.0' in harness.page()


async def test_a_removed_version_can_not_be_loaded() -> None:
    harness, source = await started(m={"1": "a"})
    source.models["m"] = {"2": "broken"}
    await harness.manager.reload()
    assert harness.answers("m") == "m@1"
    with pytest.raises(UnknownModelError, match="there is no version 1 of model m"):
        await harness.manager.load("m@1")
    assert harness.answers("m") == "m@1"
    await harness.manager.unload("m@1")
    assert harness.answers("m") == "UNAVAILABLE"


async def test_models_are_unloaded_and_loaded_by_hand() -> None:
    harness, _ = await started(m={"1": "a", "2": "a"}, n={"1": "a"})
    await harness.manager.unload("m")
    await harness.manager.reload()
    assert harness.answers("m") == "NOT_FOUND"
    assert harness.answers("n") == "n@1"
    assert harness.health == {"n": True}
    assert [report.held for report in harness.manager.reports() if report.model == "m"] == [True, True]
    await until_async(lambda: harness.pools("m@2")[0].closed)
    await harness.manager.load("m")
    assert harness.answers("m") == "m@2"
    await harness.manager.unload("m@2")  # rolls back
    assert harness.answers("m") == "m@1"
    await harness.manager.load("m@2")
    assert harness.answers("m") == "m@2"
    await harness.manager.load("m@1")
    assert (harness.answers("m"), harness.answers("m@1")) == ("m@2", "m@1")
    for name in ("x", "m@7", "../m", "m@"):
        with pytest.raises(UnknownModelError):
            await harness.manager.load(name)
        with pytest.raises(UnknownModelError):
            await harness.manager.unload(name)


async def test_a_load_by_hand_reports_why_it_failed_and_can_be_retried() -> None:
    source = FakeSource(m={"1": "a", "2": "broken"}, n={"1": "broken"})
    source.incomplete.add("m@3")
    source.models["m"]["3"] = "a"
    harness = ManagerHarness(source)
    await harness.manager.start()
    for name, problem in (
        ("m", "/models/m/2 is broken"),
        ("m@2", "version 2 of model m was not loaded: /models/m/2 is broken"),
        ("m@3", "version 3 of model m was not loaded: weights.bin is missing"),
        ("n", "/models/n/1 is broken"),
    ):
        with pytest.raises(NotLoadedError) as failed:
            await harness.manager.load(name)
        assert str(failed.value) == problem
    assert harness.answers("m") == "m@1"
    harness.broken.clear()
    await harness.manager.load("n")
    assert harness.answers("n") == "n@1"


async def test_loading_again_replaces_an_unchanged_version() -> None:
    harness, _ = await started(m={"1": "a"})
    await harness.manager.load("m")
    assert harness.loads == ["m@1"]
    await harness.manager.load("m", again=True)
    assert harness.loads == ["m@1", "m@1"]
    await until_async(lambda: [pool.closed for pool in harness.pools("m@1")] == [True, False])
    harness.broken.add("a")
    with pytest.raises(NotLoadedError):
        await harness.manager.load("m@1", again=True)
    assert harness.answers("m") == "m@1"
    assert not harness.pools("m@1")[1].closed


async def test_a_cancelled_caller_does_not_stop_the_load() -> None:
    harness, _ = await started(m={"1": "a"})
    await harness.manager.unload("m")
    harness.gate.clear()
    loading = asyncio.create_task(harness.manager.load("m"))
    await until_async(lambda: harness.loads == ["m@1", "m@1"])
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    harness.gate.set()
    await until_async(lambda: harness.answers("m") == "m@1")


async def test_changes_still_pending_at_shutdown_are_unavailable() -> None:
    harness, _ = await started(m={"1": "a"})
    harness.gate.clear()
    changes = [
        asyncio.create_task(harness.manager.load("m", again=True)),
        asyncio.create_task(harness.manager.reload()),
    ]
    await until_async(lambda: len(harness.loads) == 2)
    await harness.manager.close()
    for change in (*changes, harness.manager.unload("m")):
        with pytest.raises(ApiError, match="the server is shutting down") as refused:
            await change
        assert refused.value.code is grpc.StatusCode.UNAVAILABLE
