"""Models that come and go, with a repository and engines that are not real."""

import asyncio
import random
from typing import Any, cast

import grpc
import pytest
from structlog.testing import capture_logs

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.config import ServerConfig
from dragoman_server.messages.api_error import ApiError
from dragoman_server.models.manager import NotLoadedError, UnknownModelError
from dragoman_server.models.repository import RepositoryError, RepositoryScan
from dragoman_server.models.settings import Latest, ModelSettings, Pinned, RepositorySettings
from tests.support.fake_models import FakePool, FakeSource, ManagerHarness, started
from tests.support.waiting import until_async


async def test_the_latest_version_is_served_and_the_only_model_is_the_default() -> None:
    harness = ManagerHarness(FakeSource(m={"1": "a", "2": "a"}))
    assert harness.answers() == "UNAVAILABLE"
    await harness.manager.start()
    assert harness.loads == ["m@2"]
    assert [harness.answers(name) for name in ("", "m", "m@2", "m@latest")] == ["m@2"] * 4
    assert [harness.answers(name) for name in ("n", "m@1", "m@", "@2", "m@2@2", "../m")] == ["NOT_FOUND"] * 6
    assert harness.health == {"m": True}


async def test_several_models_need_a_default_for_requests_without_a_model() -> None:
    harness, source = await started(m={"1": "a"}, n={"1": "a"})
    assert harness.answers() == "INVALID_ARGUMENT"
    assert (harness.answers("m"), harness.answers("n")) == ("m@1", "n@1")
    source.settings = RepositorySettings(default="n")
    await harness.manager.reload()
    assert harness.answers() == "n@1"
    assert [model.name for model in harness.registry.list()] == ["n", "m"]
    assert [model.default for model in harness.registry.list()] == [True, False]


async def test_a_new_version_takes_over_once_loaded_and_the_old_one_finishes_its_calls() -> None:
    harness, source = await started(m={"1": "a"})
    with harness.registry.use("m") as old:
        source.models["m"]["2"] = "a"
        harness.gate.clear()
        reloading = asyncio.create_task(harness.manager.reload())
        await until_async(lambda: "m@2" in harness.loads)
        assert harness.answers("m") == "m@1"
        assert harness.state("m@2") == ("LOADING", "")
        assert harness.answers("m@2") == "UNAVAILABLE"
        harness.gate.set()
        await reloading
        assert harness.answers("m") == "m@2"
        assert harness.answers("m@1") == "NOT_FOUND"
        assert old.version == "1"
        assert not harness.pools("m@1")[0].closed
        assert [report.state for report in harness.manager.reports() if report.loaded] == [
            pb.MODEL_STATE_READY,
            pb.MODEL_STATE_RETIRING,
        ]
        assert 'model="m",version="1"' in harness.page()
    await until_async(lambda: harness.state("m@1") == ("UNLOADED", ""))
    assert harness.pools("m@1")[0].closed
    assert not harness.pools("m@2")[0].closed
    assert harness.state("m@1") == ("UNLOADED", "")
    assert 'model="m",version="1"' not in harness.page()
    assert 'model="m",version="2"' in harness.page()


async def test_a_retired_version_closes_when_its_calls_take_too_long() -> None:
    source = FakeSource(m={"1": "a"})
    harness = ManagerHarness(source, ServerConfig(retire_seconds=0.01))
    await harness.manager.start()
    with harness.registry.use("m"):
        source.models["m"] = {"2": "a"}
        await harness.manager.reload()
        await until_async(lambda: harness.pools("m@1")[0].closed)


async def test_a_broken_version_is_refused_with_its_reason_and_the_old_one_stays() -> None:
    harness, source = await started(m={"1": "a"})
    source.models["m"]["2"] = "broken"
    for _ in range(2):
        await harness.manager._exclusively(harness.manager._rescan)
    assert harness.loads == ["m@1", "m@2"]  # it is tried once
    assert harness.answers("m") == "m@1"
    assert harness.answers("m@2") == "UNAVAILABLE"
    assert harness.state("m@2") == ("FAILED", "/models/m/2 is broken")
    (refused,) = [model for model in harness.registry.list() if model.version == "2"]
    assert (refused.state, refused.problem) == (pb.MODEL_STATE_FAILED, "/models/m/2 is broken")
    assert 'dragoman_model_load_failures_total{model="m"} 1.0' in harness.page()
    source.models["m"]["2"] = "mended"
    await harness.manager._exclusively(harness.manager._rescan)
    assert harness.answers("m") == "m@2"
    assert harness.state("m@2") == ("READY", "")


@pytest.mark.parametrize("after", [{"2": "mended"}, {}, {"2": "broken", "3": "a"}], ids=["mended", "gone", "followed"])
async def test_refused_versions_are_counted_while_they_matter(after: dict[str, str]) -> None:
    harness, source = await started(m={"1": "a"})
    assert 'dragoman_model_refused{model="m"} 0.0' in harness.page()
    source.models["m"]["2"] = "broken"
    for _ in range(2):
        await harness.manager.reload()
        assert 'dragoman_model_refused{model="m"} 1.0' in harness.page()
    source.models["m"] = {"1": "a", **after}
    await harness.manager.reload()
    assert 'dragoman_model_refused{model="m"} 0.0' in harness.page()
    source.models["m"] = {"9": "broken"}
    await harness.manager.reload()
    assert 'dragoman_model_refused{model="m"} 1.0' in harness.page()
    del source.models["m"]
    await harness.manager.reload()
    assert "dragoman_model_refused{" not in harness.page()


async def test_a_bug_in_loading_does_not_affect_other_models() -> None:
    harness, _ = await started(m={"1": "bug"}, n={"1": "a"})
    assert harness.answers("n") == "n@1"
    assert harness.state("m@1") == ("FAILED", "ZeroDivisionError: by")
    assert harness.health == {"m": False, "n": True}


async def test_changed_files_replace_the_served_version_and_broken_ones_do_not() -> None:
    harness, source = await started(m={"1": "a"})
    source.models["m"]["1"] = "broken"
    await harness.manager.reload()
    assert harness.answers("m@1") == "m@1"
    assert harness.state("m@1") == ("READY", "the current files could not replace it: /models/m/1 is broken")
    source.models["m"]["1"] = "b"
    await harness.manager.reload()
    await until_async(lambda: [pool.closed for pool in harness.pools("m@1")] == [True, False])
    assert harness.answers("m@1") == "m@1"
    assert harness.state("m@1") == ("READY", "")
    assert 'dragoman_model_load_seconds{model="m",version="1"} 0.5' in harness.page()


async def test_an_incomplete_copy_is_reported_and_not_loaded() -> None:
    source = FakeSource(m={"1": "a", "2": "a"})
    source.incomplete.add("m@2")
    harness = ManagerHarness(source)
    await harness.manager.start()
    assert harness.answers("m") == "m@1"
    assert harness.state("m@2") == ("FAILED", "weights.bin is missing")
    source.incomplete.clear()
    await harness.manager.reload()
    assert harness.answers("m") == "m@2"


async def test_aliases_and_options_follow_the_settings() -> None:
    source = FakeSource(m={"1": "a", "2": "a", "3": "a"})
    source.settings = RepositorySettings(models={"m": ModelSettings(Latest(), {"stable": "2", "lost": "9"})})
    harness = ManagerHarness(source)
    await harness.manager.start()
    assert (harness.answers("m"), harness.answers("m@stable")) == ("m@3", "m@2")
    assert harness.answers("m@lost") == "NOT_FOUND"
    assert {model.version: list(model.aliases) for model in harness.registry.list()} == {"3": [], "2": ["stable"]}
    source.settings = RepositorySettings(
        models={"m": ModelSettings(Pinned(frozenset({"1"})), {"stable": "1"}, {"max_beam_size": 3})}
    )
    await harness.manager.reload()
    assert (harness.answers("m"), harness.answers("m@stable"), harness.answers("m@3")) == ("m@1", "m@1", "NOT_FOUND")
    assert harness.options[-1].max_beam_size == 3
    # Changed options cause a reload, unchanged settings do not.
    await harness.manager.reload()
    assert harness.loads == ["m@3", "m@2", "m@1"]
    source.settings = RepositorySettings(models={"m": ModelSettings(Pinned(frozenset({"1"})))})
    await harness.manager.reload()
    assert harness.loads == ["m@3", "m@2", "m@1", "m@1"]
    assert harness.options[-1].max_beam_size == ServerConfig().max_beam_size


async def test_a_removed_model_is_forgotten() -> None:
    harness, source = await started(m={"1": "a", "2": "broken"}, n={"1": "a"})
    del source.models["m"]
    await harness.manager.reload()
    assert harness.answers("m") == "NOT_FOUND"
    assert harness.answers() == "n@1"
    assert harness.health == {"n": True}
    await until_async(lambda: 'model="m"' not in harness.page())


async def test_a_renamed_model_is_served_before_the_old_name_disappears() -> None:
    harness, source = await started(m={"1": "a"})
    source.models = {"n": {"1": "a"}}
    source.settings = RepositorySettings(default="n")
    harness.gate.clear()
    reloading = asyncio.create_task(harness.manager.reload())
    await until_async(lambda: "n@1" in harness.loads)
    assert harness.answers("m") == "m@1"
    harness.gate.set()
    await reloading
    assert (harness.answers(), harness.answers("m")) == ("n@1", "NOT_FOUND")


async def test_a_renamed_only_model_stays_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, source = await started(m={"1": "a"})
    source.models = {"n": {"1": "a"}}
    harness.gate.clear()
    found: list[str] = []
    publish = harness.registry.update

    def update(*entries: Any) -> None:
        publish(*entries)
        found.append(harness.answers())

    monkeypatch.setattr(harness.registry, "update", update)
    reloading = asyncio.create_task(harness.manager.reload())
    await until_async(lambda: "n@1" in harness.loads)
    harness.gate.set()
    await reloading
    assert list(dict.fromkeys(found)) == ["m@1", "n@1"]


async def test_a_missing_default_is_logged_once() -> None:
    source = FakeSource(m={"1": "a"}, n={"1": "a"})
    harness = ManagerHarness(source)
    with capture_logs() as entries:
        await harness.manager.start()
        await harness.manager.reload()
    # On one core there is a warning about threads as well.
    warnings = [entry["event"] for entry in entries if entry["log_level"] == "warning"]
    expected = "requests that name no model are refused: repository.yaml names no default"
    assert [event for event in warnings if "default" in event] == [expected]


async def test_an_unreadable_repository_changes_nothing() -> None:
    harness, source = await started(m={"1": "a"})
    source.error = "the disk is gone"
    with pytest.raises(NotLoadedError, match="the disk is gone"):
        await harness.manager.reload()
    assert harness.manager.problem == "the disk is gone"
    assert harness.answers("m") == "m@1"
    source.error = ""
    source.settings, source.problem = None, "repository.yaml is wrong"
    source.models["m"]["2"] = "a"
    with pytest.raises(NotLoadedError, match=r"repository.yaml is wrong"):
        await harness.manager.reload()
    assert harness.answers("m") == "m@2"  # by the previous settings
    source.settings, source.problem = RepositorySettings(), ""
    await harness.manager.reload()
    assert harness.manager.problem == ""


async def test_wrong_settings_stop_the_start() -> None:
    source = FakeSource(m={"1": "a"})
    source.settings, source.problem = None, "repository.yaml is wrong"
    with pytest.raises(RepositoryError, match=r"repository.yaml is wrong"):
        await ManagerHarness(source).manager.start()


async def test_watching_continues_after_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, source = await started(m={"1": "a"})
    scan, bugs = source.scan, iter([True])

    def buggy() -> RepositoryScan:
        if next(bugs, False):
            raise KeyError("a bug")
        return scan()

    monkeypatch.setattr(source, "scan", buggy)
    watching = asyncio.create_task(harness.manager.watch(0.001))
    source.models["m"]["2"] = "a"
    await until_async(lambda: harness.answers("m") == "m@2")
    watching.cancel()


async def test_more_than_two_threads_per_core_are_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman_server.models.manager.usable_cpus", lambda: 2)
    source = FakeSource(m={"1": "a"}, n={"1": "a"})
    harness = ManagerHarness(source)
    with capture_logs() as entries:
        await harness.manager.start()
        assert not [entry for entry in entries if "threads" in entry]  # four for two cores
        source.models["o"] = {"1": "a"}
        await harness.manager.reload()
        await harness.manager.reload()
    assert [entry["threads"] for entry in entries if "threads" in entry] == [6]


async def test_a_failed_engine_is_noticed_and_close_closes_all() -> None:
    harness, _ = await started(m={"1": "a"}, n={"1": "a"})
    harness.pools("m@1")[0].failed.set()
    await asyncio.wait_for(harness.manager.failed.wait(), 5)
    await harness.manager.close()
    assert all(pool.closed for name in ("m@1", "n@1") for pool in harness.pools(name))


async def test_the_registry_gives_the_reason_of_a_refusal() -> None:
    harness, _ = await started(m={"1": "broken"}, n={"1": "a"})

    def refusal(name: str) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(ApiError) as error:
            harness.registry.find(name)
        return error.value.code, error.value.message

    assert refusal("") == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "model is empty, but this server has no default model: name one of m, n",
    )
    assert refusal("m") == (grpc.StatusCode.UNAVAILABLE, "no version of model m could be loaded")
    assert refusal("m@1") == (grpc.StatusCode.UNAVAILABLE, "version 1 of model m could not be loaded")
    assert refusal("n@2") == (grpc.StatusCode.NOT_FOUND, "model 'n@2' is not served here; available: n@1")
    await harness.manager.unload("n")
    await harness.manager.unload("m")
    assert refusal("") == (grpc.StatusCode.UNAVAILABLE, "no model is loaded")
    assert refusal("n") == (grpc.StatusCode.NOT_FOUND, "model 'n' is not served here; available: none")


@pytest.mark.parametrize("seed", range(3))
async def test_no_version_is_closed_while_it_is_used(seed: int) -> None:
    """Changes files, loads and unloads by hand, and calls, all concurrently in random order."""
    chance = random.Random(seed)
    harness, source = await started(m={"1": "a"}, n={"1": "a"})
    used = 0
    refusals: set[grpc.StatusCode] = set()

    async def call() -> None:
        nonlocal used
        try:
            with harness.registry.use(chance.choice(["m", "n", "m@1", "m@2"])) as model:
                (loaded,) = [each for each in harness.loaded if each.served.model is model]
                await asyncio.sleep(chance.random() * 0.01)
                assert not cast(FakePool, loaded.pool).closed
                used += 1
        except ApiError as error:
            refusals.add(error.code)

    async def change() -> None:
        models = {name: dict(versions) for name, versions in source.models.items()}
        versions = models.setdefault(chance.choice("mn"), {})
        versions[chance.choice("123")] = chance.choice(["a", "b", "c", "broken"])
        if chance.random() < 0.3:
            versions.pop(chance.choice("123"), None)
        if chance.random() < 0.1:
            models.pop(chance.choice("mn"), None)
        source.models = models  # in one step, since a thread may be looking

    async def administer() -> None:
        name = chance.choice(["m", "n", "m@1", "m@2", "n@3"])
        try:
            await chance.choice([harness.manager.load, harness.manager.unload])(name)
            await harness.manager.reload()
        except (UnknownModelError, NotLoadedError):
            pass

    async with asyncio.TaskGroup() as tasks:
        for _ in range(300):
            tasks.create_task(chance.choice([call, call, call, change, administer])())
            await asyncio.sleep(chance.random() * 0.002)
    assert used > 10
    assert refusals <= {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE}
    source.models = {"m": {"1": "a"}, "n": {"1": "a"}}
    for name in ("m", "n"):
        await harness.manager.load(name)
    assert (harness.answers("m"), harness.answers("n")) == ("m@1", "n@1")
    await until_async(lambda: sum(not cast(FakePool, loaded.pool).closed for loaded in harness.loaded) == 2)
    await until_async(lambda: 'version="2"' not in harness.page())
    await harness.manager.close()
    assert all(cast(FakePool, loaded.pool).closed for loaded in harness.loaded)
