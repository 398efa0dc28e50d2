"""Models that come and go, with a repository and engines that are not real."""

import asyncio
import random
from typing import cast

import grpc
import pytest
from structlog.testing import capture_logs

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.config import ServerConfig
from dragoman_server.messages.api_error import ApiError
from dragoman_server.models.manager import NotLoadedError, UnknownModelError
from dragoman_server.models.repository import RepositoryError, RepositoryScan
from dragoman_server.models.settings import Latest, ModelSettings, Pinned, RepositorySettings
from tests.support.fake_models import FakePool, FakeSource, World, started
from tests.support.waiting import until_async


async def test_the_latest_version_is_served_and_the_only_model_is_the_default() -> None:
    world = World(FakeSource(m={"1": "a", "2": "a"}))
    assert world.answers() == "UNAVAILABLE"
    await world.manager.start()
    assert world.loads == ["m@2"]
    assert [world.answers(name) for name in ("", "m", "m@2", "m@latest")] == ["m@2"] * 4
    assert [world.answers(name) for name in ("n", "m@1", "m@", "@2", "m@2@2", "../m")] == ["NOT_FOUND"] * 6
    assert world.health == {"m": True}


async def test_several_models_need_a_default_for_requests_without_a_model() -> None:
    world, source = await started(m={"1": "a"}, n={"1": "a"})
    assert world.answers() == "INVALID_ARGUMENT"
    assert (world.answers("m"), world.answers("n")) == ("m@1", "n@1")
    source.settings = RepositorySettings(default="n")
    await world.manager.reload()
    assert world.answers() == "n@1"
    assert [model.name for model in world.registry.list()] == ["n", "m"]
    assert [model.default for model in world.registry.list()] == [True, False]


async def test_a_new_version_takes_over_once_loaded_and_the_old_one_finishes_its_calls() -> None:
    world, source = await started(m={"1": "a"})
    with world.registry.use("m") as old:
        source.models["m"]["2"] = "a"
        world.gate.clear()
        reloading = asyncio.create_task(world.manager.reload())
        await until_async(lambda: "m@2" in world.loads)
        assert world.answers("m") == "m@1"
        assert world.state("m@2") == ("LOADING", "")
        assert world.answers("m@2") == "UNAVAILABLE"
        world.gate.set()
        await reloading
        assert world.answers("m") == "m@2"
        assert world.answers("m@1") == "NOT_FOUND"
        assert old.version == "1"
        assert not world.pools("m@1")[0].closed
        assert [report.state for report in world.manager.reports() if report.loaded] == [
            pb.MODEL_STATE_READY,
            pb.MODEL_STATE_RETIRING,
        ]
        assert 'model="m",version="1"' in world.page()
    await until_async(lambda: world.state("m@1") == ("UNLOADED", ""))
    assert world.pools("m@1")[0].closed
    assert not world.pools("m@2")[0].closed
    assert world.state("m@1") == ("UNLOADED", "")
    assert 'model="m",version="1"' not in world.page()
    assert 'model="m",version="2"' in world.page()


async def test_a_retired_version_closes_when_its_calls_take_too_long() -> None:
    source = FakeSource(m={"1": "a"})
    world = World(source, ServerConfig(retire_seconds=0.01))
    await world.manager.start()
    with world.registry.use("m"):
        source.models["m"] = {"2": "a"}
        await world.manager.reload()
        await until_async(lambda: world.pools("m@1")[0].closed)


async def test_a_broken_version_is_refused_with_its_reason_and_the_old_one_stays() -> None:
    world, source = await started(m={"1": "a"})
    source.models["m"]["2"] = "broken"
    for _ in range(2):
        await world.manager._exclusively(world.manager._rescan)
    assert world.loads == ["m@1", "m@2"]  # it is tried once
    assert world.answers("m") == "m@1"
    assert world.answers("m@2") == "UNAVAILABLE"
    assert world.state("m@2") == ("FAILED", "/models/m/2 is broken")
    (refused,) = [model for model in world.registry.list() if model.version == "2"]
    assert (refused.state, refused.problem) == (pb.MODEL_STATE_FAILED, "/models/m/2 is broken")
    assert 'dragoman_model_load_failures_total{model="m"} 1.0' in world.page()
    source.models["m"]["2"] = "mended"
    await world.manager._exclusively(world.manager._rescan)
    assert world.answers("m") == "m@2"
    assert world.state("m@2") == ("READY", "")


@pytest.mark.parametrize("after", [{"2": "mended"}, {}, {"2": "broken", "3": "a"}], ids=["mended", "gone", "followed"])
async def test_refused_versions_are_counted_while_they_matter(after: dict[str, str]) -> None:
    world, source = await started(m={"1": "a"})
    assert 'dragoman_model_refused{model="m"} 0.0' in world.page()
    source.models["m"]["2"] = "broken"
    for _ in range(2):
        await world.manager.reload()
        assert 'dragoman_model_refused{model="m"} 1.0' in world.page()
    source.models["m"] = {"1": "a", **after}
    await world.manager.reload()
    assert 'dragoman_model_refused{model="m"} 0.0' in world.page()
    source.models["m"] = {"9": "broken"}
    await world.manager.reload()
    assert 'dragoman_model_refused{model="m"} 1.0' in world.page()
    del source.models["m"]
    await world.manager.reload()
    assert "dragoman_model_refused{" not in world.page()


async def test_a_bug_in_loading_does_not_affect_other_models() -> None:
    world, _ = await started(m={"1": "bug"}, n={"1": "a"})
    assert world.answers("n") == "n@1"
    assert world.state("m@1") == ("FAILED", "ZeroDivisionError: by")
    assert world.health == {"m": False, "n": True}


async def test_changed_files_replace_the_served_version_and_broken_ones_do_not() -> None:
    world, source = await started(m={"1": "a"})
    source.models["m"]["1"] = "broken"
    await world.manager.reload()
    assert world.answers("m@1") == "m@1"
    assert world.state("m@1") == ("READY", "the current files could not replace it: /models/m/1 is broken")
    source.models["m"]["1"] = "b"
    await world.manager.reload()
    await until_async(lambda: [pool.closed for pool in world.pools("m@1")] == [True, False])
    assert world.answers("m@1") == "m@1"
    assert world.state("m@1") == ("READY", "")
    assert 'dragoman_model_load_seconds{model="m",version="1"} 0.5' in world.page()


async def test_an_incomplete_copy_is_reported_and_not_loaded() -> None:
    source = FakeSource(m={"1": "a", "2": "a"})
    source.incomplete.add("m@2")
    world = World(source)
    await world.manager.start()
    assert world.answers("m") == "m@1"
    assert world.state("m@2") == ("FAILED", "weights.bin is missing")
    source.incomplete.clear()
    await world.manager.reload()
    assert world.answers("m") == "m@2"


async def test_aliases_and_options_follow_the_settings() -> None:
    source = FakeSource(m={"1": "a", "2": "a", "3": "a"})
    source.settings = RepositorySettings(models={"m": ModelSettings(Latest(), {"stable": "2", "lost": "9"})})
    world = World(source)
    await world.manager.start()
    assert (world.answers("m"), world.answers("m@stable")) == ("m@3", "m@2")
    assert world.answers("m@lost") == "NOT_FOUND"
    assert {model.version: list(model.aliases) for model in world.registry.list()} == {"3": [], "2": ["stable"]}
    source.settings = RepositorySettings(
        models={"m": ModelSettings(Pinned(frozenset({"1"})), {"stable": "1"}, {"max_beam_size": 3})}
    )
    await world.manager.reload()
    assert (world.answers("m"), world.answers("m@stable"), world.answers("m@3")) == ("m@1", "m@1", "NOT_FOUND")
    assert world.options[-1].max_beam_size == 3
    # Changed options cause a reload, unchanged settings do not.
    await world.manager.reload()
    assert world.loads == ["m@3", "m@2", "m@1"]
    source.settings = RepositorySettings(models={"m": ModelSettings(Pinned(frozenset({"1"})))})
    await world.manager.reload()
    assert world.loads == ["m@3", "m@2", "m@1", "m@1"]
    assert world.options[-1].max_beam_size == ServerConfig().max_beam_size


async def test_a_removed_model_is_forgotten() -> None:
    world, source = await started(m={"1": "a", "2": "broken"}, n={"1": "a"})
    del source.models["m"]
    await world.manager.reload()
    assert world.answers("m") == "NOT_FOUND"
    assert world.answers() == "n@1"
    assert world.health == {"n": True}
    await until_async(lambda: 'model="m"' not in world.page())


async def test_a_renamed_model_is_served_before_the_old_name_disappears() -> None:
    world, source = await started(m={"1": "a"})
    source.models = {"n": {"1": "a"}}
    source.settings = RepositorySettings(default="n")
    world.gate.clear()
    reloading = asyncio.create_task(world.manager.reload())
    await until_async(lambda: "n@1" in world.loads)
    assert world.answers("m") == "m@1"
    world.gate.set()
    await reloading
    assert (world.answers(), world.answers("m")) == ("n@1", "NOT_FOUND")


async def test_a_missing_default_is_logged_once() -> None:
    source = FakeSource(m={"1": "a"}, n={"1": "a"})
    world = World(source)
    with capture_logs() as entries:
        await world.manager.start()
        await world.manager.reload()
    # On one core there is a warning about threads as well.
    warnings = [entry["event"] for entry in entries if entry["log_level"] == "warning"]
    expected = "requests that name no model are refused: repository.yaml names no default"
    assert [event for event in warnings if "default" in event] == [expected]


async def test_an_unreadable_repository_changes_nothing() -> None:
    world, source = await started(m={"1": "a"})
    source.error = "the disk is gone"
    with pytest.raises(NotLoadedError, match="the disk is gone"):
        await world.manager.reload()
    assert world.manager.problem == "the disk is gone"
    assert world.answers("m") == "m@1"
    source.error = ""
    source.settings, source.problem = None, "repository.yaml is wrong"
    source.models["m"]["2"] = "a"
    with pytest.raises(NotLoadedError, match=r"repository.yaml is wrong"):
        await world.manager.reload()
    assert world.answers("m") == "m@2"  # by the previous settings
    source.settings, source.problem = RepositorySettings(), ""
    await world.manager.reload()
    assert world.manager.problem == ""


async def test_wrong_settings_stop_the_start() -> None:
    source = FakeSource(m={"1": "a"})
    source.settings, source.problem = None, "repository.yaml is wrong"
    with pytest.raises(RepositoryError, match=r"repository.yaml is wrong"):
        await World(source).manager.start()


async def test_watching_continues_after_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    world, source = await started(m={"1": "a"})
    scan, bugs = source.scan, iter([True])

    def buggy() -> RepositoryScan:
        if next(bugs, False):
            raise KeyError("a bug")
        return scan()

    monkeypatch.setattr(source, "scan", buggy)
    watching = asyncio.create_task(world.manager.watch(0.001))
    source.models["m"]["2"] = "a"
    await until_async(lambda: world.answers("m") == "m@2")
    watching.cancel()


async def test_more_than_two_threads_per_core_are_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman_server.models.manager.usable_cpus", lambda: 2)
    source = FakeSource(m={"1": "a"}, n={"1": "a"})
    world = World(source)
    with capture_logs() as entries:
        await world.manager.start()
        assert not [entry for entry in entries if "threads" in entry]  # four for two cores
        source.models["o"] = {"1": "a"}
        await world.manager.reload()
        await world.manager.reload()
    assert [entry["threads"] for entry in entries if "threads" in entry] == [6]


async def test_a_failed_engine_is_noticed_and_close_closes_all() -> None:
    world, _ = await started(m={"1": "a"}, n={"1": "a"})
    world.pools("m@1")[0].failed.set()
    await asyncio.wait_for(world.manager.failed.wait(), 5)
    await world.manager.close()
    assert all(pool.closed for name in ("m@1", "n@1") for pool in world.pools(name))


async def test_the_registry_gives_the_reason_of_a_refusal() -> None:
    world, _ = await started(m={"1": "broken"}, n={"1": "a"})

    def refusal(name: str) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(ApiError) as error:
            world.registry.find(name)
        return error.value.code, error.value.message

    assert refusal("") == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "model is empty, but this server has no default model: name one of m, n",
    )
    assert refusal("m") == (grpc.StatusCode.UNAVAILABLE, "no version of model m could be loaded")
    assert refusal("m@1") == (grpc.StatusCode.UNAVAILABLE, "version 1 of model m could not be loaded")
    assert refusal("n@2") == (grpc.StatusCode.NOT_FOUND, "model 'n@2' is not served here; available: n@1")
    await world.manager.unload("n")
    await world.manager.unload("m")
    assert refusal("") == (grpc.StatusCode.UNAVAILABLE, "no model is loaded")
    assert refusal("n") == (grpc.StatusCode.NOT_FOUND, "model 'n' is not served here; available: none")


@pytest.mark.parametrize("seed", range(3))
async def test_no_version_is_closed_while_it_is_used(seed: int) -> None:
    """Changes files, loads and unloads by hand, and calls, all concurrently in random order."""
    chance = random.Random(seed)
    world, source = await started(m={"1": "a"}, n={"1": "a"})
    used = 0
    refusals: set[grpc.StatusCode] = set()

    async def call() -> None:
        nonlocal used
        try:
            with world.registry.use(chance.choice(["m", "n", "m@1", "m@2"])) as model:
                (loaded,) = [each for each in world.loaded if each.served.model is model]
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
            await chance.choice([world.manager.load, world.manager.unload])(name)
            await world.manager.reload()
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
        await world.manager.load(name)
    assert (world.answers("m"), world.answers("n")) == ("m@1", "n@1")
    await until_async(lambda: sum(not cast(FakePool, loaded.pool).closed for loaded in world.loaded) == 2)
    await until_async(lambda: 'version="2"' not in world.page())
    await world.manager.close()
    assert all(cast(FakePool, loaded.pool).closed for loaded in world.loaded)
