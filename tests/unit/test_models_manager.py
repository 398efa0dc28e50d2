"""Models that come and go, with a repository and engines that are not real."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.config import ServerConfig
from dragoman_server.engine.pool import EnginePool
from dragoman_server.engine.scorer import Scorer
from dragoman_server.messages.api_error import ApiError
from dragoman_server.messages.limits import request_limits
from dragoman_server.messages.served_model import ServedModel
from dragoman_server.metrics import ModelMetrics, ServerMetrics
from dragoman_server.models.loading import LoadedVersion, LoadError
from dragoman_server.models.manager import ModelManager, NotLoadedError, UnknownModelError
from dragoman_server.models.registry import ModelRegistry, ServedVersion
from dragoman_server.models.repository import ModelSource, Repository, RepositoryError, RepositoryScan, VersionFiles
from dragoman_server.models.settings import Latest, ModelSettings, Pinned, RepositorySettings
from dragoman_server.runtime.device import CPU
from tests.support.fake_engines import FakeEngines, FakeScorerSession, letters_bundle
from tests.support.waiting import until_async


class FakePool:
    """Stands for an EnginePool that has started."""

    def __init__(self, bundle: Any) -> None:
        self.bundle, self.device = bundle, CPU
        self.failed = asyncio.Event()
        self.closed = False
        self.available = True
        self.engines, self.threads = 2, 1

    async def close(self, seconds: float | None = None) -> None:
        self.closed = True


class FakeSource:
    """A repository that holds what a test says.

    Attributes:
        models: content of each version of each model.
        incomplete: versions, as NAME@VERSION, that are not there as a whole.
        error: why it can't be looked at.
    """

    def __init__(self, **models: dict[str, str]) -> None:
        self.path = Path("/models")
        self.models = models
        self.settings: RepositorySettings | None = RepositorySettings()
        self.problem = ""
        self.incomplete: set[str] = set()
        self.error = ""

    def scan(self) -> RepositoryScan:
        if self.error:
            raise RepositoryError(self.error)
        models = {
            name: {
                version: VersionFiles(
                    self.path / name / version,
                    content,
                    content,
                    "weights.bin is missing" if f"{name}@{version}" in self.incomplete else "",
                )
                for version, content in versions.items()
            }
            for name, versions in self.models.items()
        }
        return RepositoryScan(models, self.settings, self.problem)


class World:
    """A manager, what it manages, and a view of what clients would get.

    Attributes:
        loads: versions, in the order in which loading them began.
        broken: contents that can't be loaded.
        gate: loading waits for it.
        health: as last told.
    """

    def __init__(self, source: ModelSource, config: ServerConfig | None = None) -> None:
        self.source = source
        self.registry = ModelRegistry()
        self.metrics = ServerMetrics()
        self.loads: list[str] = []
        self.broken = {"broken"}
        self.loaded: list[LoadedVersion] = []
        self.options: list[ServerConfig] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.health: Mapping[str, bool] = {}
        self.manager = ModelManager(
            source, config or ServerConfig(), self.registry, self.metrics, self._load, self._changed
        )

    async def rescan(self) -> None:
        await self.manager.reload()

    def answers(self, name: str = "") -> str:
        """Name and version of the model that a request for `name` would get, or the code of the error."""
        try:
            with self.registry.use(name) as model:
                return f"{model.name}@{model.version}"
        except ApiError as error:
            return error.code.name

    def pools(self, version: str) -> list[FakePool]:
        return [cast(FakePool, each.pool) for each in self.loaded if f"{each.name}@{each.version}" == version]

    def state(self, name: str) -> tuple[str, str]:
        """What is reported of NAME@VERSION."""
        report = next(each for each in self.manager.reports() if f"{each.model}@{each.version}" == name)
        return pb.ModelState.Name(report.state).removeprefix("MODEL_STATE_"), report.problem

    def page(self) -> str:
        return generate_latest(self.metrics.registry).decode()

    async def _load(
        self, path: Path, name: str, version: str, config: ServerConfig, on_change: Callable[[], None]
    ) -> LoadedVersion:
        self.loads.append(f"{name}@{version}")
        content = self.source.models[name][version] if isinstance(self.source, FakeSource) else ""
        await self.gate.wait()
        if content in self.broken:
            raise LoadError(f"{path} is broken")
        if content == "mistaken":
            raise ZeroDivisionError("by\nzero")
        self.options.append(config)
        bundle = letters_bundle()
        bundle = replace(bundle, manifest=bundle.manifest.model_copy(update={"name": name, "version": version}))
        metrics = ModelMetrics()
        scorer = Scorer(FakeScorerSession().load, bundle.manifest.shape, 10, metrics)
        limits = request_limits(config, 64, bundle.manifest.shape)
        served = ServedVersion(
            ServedModel(bundle, cast(EnginePool, FakeEngines()), scorer, "cpu", limits, lambda: None)
        )
        pool = cast(EnginePool, FakePool(bundle))
        self.loaded.append(LoadedVersion(served, pool, scorer, metrics, 0.5))
        return self.loaded[-1]

    def _changed(self, serving: Mapping[str, bool]) -> None:
        self.health = serving


async def test_the_latest_of_every_model_is_served_and_the_only_one_is_the_default() -> None:
    world = World(FakeSource(m={"1": "a", "2": "a"}))
    assert world.answers() == "UNAVAILABLE"
    await world.manager.start()
    assert world.loads == ["m@2"]
    assert [world.answers(name) for name in ("", "m", "m@2", "m@latest")] == ["m@2"] * 4
    assert [world.answers(name) for name in ("n", "m@1", "m@", "@2", "m@2@2", "../m")] == ["NOT_FOUND"] * 6
    assert world.health == {"m": True}


async def test_several_models_need_a_default_to_answer_who_names_none() -> None:
    source = FakeSource(m={"1": "a"}, n={"1": "a"})
    world = World(source)
    await world.manager.start()
    assert world.answers() == "INVALID_ARGUMENT"
    assert (world.answers("m"), world.answers("n")) == ("m@1", "n@1")
    source.settings = RepositorySettings(default="n")
    await world.rescan()
    assert world.answers() == "n@1"
    assert [model.name for model in world.registry.list()] == ["n", "m"]
    assert [model.default for model in world.registry.list()] == [True, False]


async def test_a_new_version_takes_over_when_it_is_loaded_and_the_old_one_finishes_its_calls() -> None:
    source = FakeSource(m={"1": "a"})
    world = World(source)
    await world.manager.start()
    with world.registry.use("m") as old:
        source.models["m"]["2"] = "a"
        world.gate.clear()
        reloading = asyncio.create_task(world.rescan())
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


async def test_calls_of_a_retired_version_are_not_waited_for_for_ever() -> None:
    source = FakeSource(m={"1": "a"})
    world = World(source, ServerConfig(retire_seconds=0.01))
    await world.manager.start()
    with world.registry.use("m"):
        source.models["m"] = {"2": "a"}
        await world.rescan()
        await until_async(lambda: world.pools("m@1")[0].closed)


async def test_a_broken_version_is_refused_with_its_reason_and_the_old_one_stays() -> None:
    source = FakeSource(m={"1": "a"})
    world = World(source)
    await world.manager.start()
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
async def test_refused_versions_are_counted_until_they_matter_no_more(after: dict[str, str]) -> None:
    source = FakeSource(m={"1": "a"})
    world = World(source)
    await world.manager.start()
    assert 'dragoman_model_refused{model="m"} 0.0' in world.page()
    source.models["m"]["2"] = "broken"
    for _ in range(2):
        await world.rescan()
        assert 'dragoman_model_refused{model="m"} 1.0' in world.page()
    source.models["m"] = {"1": "a", **after}
    await world.rescan()
    assert 'dragoman_model_refused{model="m"} 0.0' in world.page()
    source.models["m"] = {"9": "broken"}
    await world.rescan()
    assert 'dragoman_model_refused{model="m"} 1.0' in world.page()
    del source.models["m"]
    await world.rescan()
    assert "dragoman_model_refused{" not in world.page()


async def test_a_version_that_was_tried_by_hand_in_vain_counts_only_as_long_as_the_settings_want_it() -> None:
    source = FakeSource(m={"1": "a", "2": "broken"})
    world = World(source)
    await world.manager.start()
    with pytest.raises(NotLoadedError, match="/models/m/2 is broken"):
        await world.manager.load("m@2")
    assert 'dragoman_model_refused{model="m"} 1.0' in world.page()
    source.settings = RepositorySettings(models={"m": ModelSettings(Pinned(frozenset({"1"})))})
    await world.rescan()
    assert 'dragoman_model_refused{model="m"} 0.0' in world.page()
    with pytest.raises(NotLoadedError, match="/models/m/2 is broken"):
        await world.manager.load("m@2")
    assert 'dragoman_model_refused{model="m"} 0.0' in world.page()
    source.models["m"]["2"] = "mended"
    await world.rescan()
    assert world.answers("m@2") == "NOT_FOUND"  # nobody wants it now
    await world.manager.load("m@2")
    source.models["m"]["2"] = "broken"
    await world.rescan()
    assert (world.answers("m@2"), world.answers("m")) == ("m@2", "m@1")  # an order that was carried out holds
    assert 'dragoman_model_refused{model="m"} 1.0' in world.page()


async def test_whatever_loading_raises_harms_nobody_else() -> None:
    world = World(FakeSource(m={"1": "mistaken"}, n={"1": "a"}))
    await world.manager.start()
    assert world.answers("n") == "n@1"
    assert world.state("m@1") == ("FAILED", "ZeroDivisionError: by")
    assert world.health == {"m": False, "n": True}


async def test_changed_files_replace_what_is_served_and_broken_ones_do_not() -> None:
    source = FakeSource(m={"1": "a"})
    world = World(source)
    await world.manager.start()
    source.models["m"]["1"] = "broken"
    await world.rescan()
    assert world.answers("m@1") == "m@1"
    assert world.state("m@1") == ("READY", "the current files could not replace it: /models/m/1 is broken")
    source.models["m"]["1"] = "b"
    await world.rescan()
    await until_async(lambda: [pool.closed for pool in world.pools("m@1")] == [True, False])
    assert world.answers("m@1") == "m@1"
    assert world.state("m@1") == ("READY", "")
    assert 'dragoman_model_load_seconds{model="m",version="1"} 0.5' in world.page()


async def test_an_incomplete_copy_waits_and_is_told() -> None:
    source = FakeSource(m={"1": "a", "2": "a"})
    source.incomplete.add("m@2")
    world = World(source)
    await world.manager.start()
    assert world.answers("m") == "m@1"
    assert world.state("m@2") == ("FAILED", "weights.bin is missing")
    source.incomplete.clear()
    await world.rescan()
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
    await world.rescan()
    assert (world.answers("m"), world.answers("m@stable"), world.answers("m@3")) == ("m@1", "m@1", "NOT_FOUND")
    assert world.options[-1].max_beam_size == 3
    # Other options need another load; the same settings do not.
    await world.rescan()
    assert world.loads == ["m@3", "m@2", "m@1"]
    source.settings = RepositorySettings(models={"m": ModelSettings(Pinned(frozenset({"1"})))})
    await world.rescan()
    assert world.loads == ["m@3", "m@2", "m@1", "m@1"]
    assert world.options[-1].max_beam_size == ServerConfig().max_beam_size


async def test_a_model_that_is_gone_is_forgotten() -> None:
    source = FakeSource(m={"1": "a", "2": "broken"}, n={"1": "a"})
    world = World(source)
    await world.manager.start()
    del source.models["m"]
    await world.rescan()
    assert world.answers("m") == "NOT_FOUND"
    assert world.answers() == "n@1"
    assert world.health == {"n": True}
    await until_async(lambda: 'model="m"' not in world.page())


async def test_a_bundle_that_takes_another_name_is_served_before_the_old_one_goes() -> None:
    source = FakeSource(m={"1": "a"})
    world = World(source)
    await world.manager.start()
    source.models = {"n": {"1": "a"}}
    source.settings = RepositorySettings(default="n")
    world.gate.clear()
    reloading = asyncio.create_task(world.rescan())
    await until_async(lambda: "n@1" in world.loads)
    assert world.answers("m") == "m@1"
    world.gate.set()
    await reloading
    assert (world.answers(), world.answers("m")) == ("n@1", "NOT_FOUND")


async def test_a_version_that_is_gone_from_the_repository_can_not_be_loaded() -> None:
    source = FakeSource(m={"1": "a"})
    world = World(source)
    await world.manager.start()
    source.models["m"] = {"2": "broken"}
    await world.rescan()
    assert world.answers("m") == "m@1"
    with pytest.raises(UnknownModelError, match="there is no version 1 of model m"):
        await world.manager.load("m@1")
    assert world.answers("m") == "m@1"
    await world.manager.unload("m@1")
    assert world.answers("m") == "UNAVAILABLE"


async def test_no_default_is_told_once() -> None:
    source = FakeSource(m={"1": "a"}, n={"1": "a"})
    world = World(source)
    with capture_logs() as entries:
        await world.manager.start()
        await world.rescan()
    # On one core there is a warning about threads, too.
    warnings = [entry["event"] for entry in entries if entry["log_level"] == "warning"]
    told = "requests that name no model are refused: repository.yaml names no default"
    assert [event for event in warnings if "default" in event] == [told]


async def test_a_repository_that_can_not_be_read_changes_nothing() -> None:
    source = FakeSource(m={"1": "a"})
    world = World(source)
    await world.manager.start()
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
    assert world.answers("m") == "m@2"  # by the settings of before
    source.settings, source.problem = RepositorySettings(), ""
    await world.rescan()
    assert world.manager.problem == ""


async def test_a_start_with_wrong_settings_is_refused() -> None:
    source = FakeSource(m={"1": "a"})
    source.settings, source.problem = None, "repository.yaml is wrong"
    with pytest.raises(RepositoryError, match=r"repository.yaml is wrong"):
        await World(source).manager.start()


def repository(folder: Path, *versions: str) -> Repository:
    """A real one of versions, NAME/VERSION, that FakeEngines can stand for."""
    for version in versions:
        (folder / version).mkdir(parents=True)
        (folder / version / "manifest.json").write_text('{"files": {}}')
    return Repository(folder, ServerConfig())


async def test_a_default_that_is_not_there_is_refused_and_the_one_before_holds(tmp_path: Path) -> None:
    settings = tmp_path / "repository.yaml"
    world = World(repository(tmp_path, "m/1", "n/1"))
    settings.write_text("default: zz")
    with pytest.raises(RepositoryError, match=r"^repository.yaml names zz, which "):
        await world.manager.start()
    settings.write_text("default: n")
    await world.manager.start()
    settings.write_text("default: zz")
    with pytest.raises(NotLoadedError, match=r"repository.yaml names zz"):
        await world.manager.reload()
    assert world.answers() == "n@1"
    repository(tmp_path, "zz/1")
    await world.rescan()
    assert world.answers() == "zz@1"


async def test_the_only_model_stays_the_default_while_another_that_is_not_there_is_named(tmp_path: Path) -> None:
    world = World(repository(tmp_path, "m/1"))
    await world.manager.start()
    (tmp_path / "repository.yaml").write_text("default: zz")
    with pytest.raises(NotLoadedError, match=r"repository.yaml names zz"):
        await world.manager.reload()
    assert world.answers() == "m@1"


async def test_a_default_that_is_taken_away_is_missed_by_name_and_the_others_go_on(tmp_path: Path) -> None:
    world = World(repository(tmp_path, "m/1", "n/1"))
    (tmp_path / "repository.yaml").write_text("default: n")
    await world.manager.start()
    (tmp_path / "n").rename(tmp_path / ".n")
    with pytest.raises(NotLoadedError, match=r"repository.yaml names n, which "):
        await world.manager.reload()
    assert world.answers("m") == "m@1"
    with pytest.raises(ApiError, match=r"^the default model, n, does not exist now: name one of m$") as missed:
        world.registry.find("")
    assert missed.value.code is grpc.StatusCode.UNAVAILABLE
    (tmp_path / ".n").rename(tmp_path / "n")
    await world.rescan()
    assert world.answers() == "n@1"


async def test_models_are_unloaded_and_loaded_by_hand() -> None:
    world = World(FakeSource(m={"1": "a", "2": "a"}, n={"1": "a"}))
    await world.manager.start()
    await world.manager.unload("m")
    await world.rescan()
    assert world.answers("m") == "NOT_FOUND"
    assert world.answers("n") == "n@1"
    assert world.health == {"n": True}
    assert [report.held for report in world.manager.reports() if report.model == "m"] == [True, True]
    await until_async(lambda: world.pools("m@2")[0].closed)
    await world.manager.load("m")
    assert world.answers("m") == "m@2"
    await world.manager.unload("m@2")  # rolls back
    assert world.answers("m") == "m@1"
    await world.manager.load("m@2")
    assert world.answers("m") == "m@2"
    await world.manager.load("m@1")
    assert (world.answers("m"), world.answers("m@1")) == ("m@2", "m@1")
    for name in ("x", "m@7", "../m", "m@"):
        with pytest.raises(UnknownModelError):
            await world.manager.load(name)
        with pytest.raises(UnknownModelError):
            await world.manager.unload(name)


async def test_loading_by_hand_tells_why_it_failed_and_can_be_tried_again() -> None:
    source = FakeSource(m={"1": "a", "2": "broken"}, n={"1": "broken"})
    source.incomplete.add("m@3")
    source.models["m"]["3"] = "a"
    world = World(source)
    await world.manager.start()
    for name, said in (
        ("m", "/models/m/2 is broken"),
        ("m@2", "version 2 of model m was not loaded: /models/m/2 is broken"),
        ("m@3", "version 3 of model m was not loaded: weights.bin is missing"),
        ("n", "/models/n/1 is broken"),
    ):
        with pytest.raises(NotLoadedError) as failed:
            await world.manager.load(name)
        assert str(failed.value) == said
    assert world.answers("m") == "m@1"
    world.broken.clear()
    await world.manager.load("n")
    assert world.answers("n") == "n@1"


async def test_loading_again_replaces_what_has_not_changed() -> None:
    source = FakeSource(m={"1": "a"})
    world = World(source)
    await world.manager.start()
    await world.manager.load("m")
    assert world.loads == ["m@1"]
    await world.manager.load("m", again=True)
    assert world.loads == ["m@1", "m@1"]
    await until_async(lambda: [pool.closed for pool in world.pools("m@1")] == [True, False])
    world.broken.add("a")
    with pytest.raises(NotLoadedError):
        await world.manager.load("m@1", again=True)
    assert world.answers("m") == "m@1"
    assert not world.pools("m@1")[1].closed


async def test_who_leaves_while_a_model_is_loaded_does_not_stop_it() -> None:
    world = World(FakeSource(m={"1": "a"}))
    await world.manager.start()
    await world.manager.unload("m")
    world.gate.clear()
    loading = asyncio.create_task(world.manager.load("m"))
    await until_async(lambda: world.loads == ["m@1", "m@1"])
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    world.gate.set()
    await until_async(lambda: world.answers("m") == "m@1")


async def test_watching_goes_on_after_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    source = FakeSource(m={"1": "a"})
    world = World(source)
    await world.manager.start()
    scan, mistakes = source.scan, iter([True])

    def mistaken() -> RepositoryScan:
        if next(mistakes, False):
            raise KeyError("a bug")
        return scan()

    monkeypatch.setattr(source, "scan", mistaken)
    watching = asyncio.create_task(world.manager.watch(0.001))
    source.models["m"]["2"] = "a"
    await until_async(lambda: world.answers("m") == "m@2")
    watching.cancel()


async def test_more_threads_than_cores_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman_server.models.manager.usable_cpus", lambda: 2)
    source = FakeSource(m={"1": "a"}, n={"1": "a"})
    world = World(source)
    with capture_logs() as entries:
        await world.manager.start()
        assert not [entry for entry in entries if "threads" in entry]  # four for two cores
        source.models["o"] = {"1": "a"}
        await world.rescan()
        await world.rescan()
    assert [entry["threads"] for entry in entries if "threads" in entry] == [6]


async def test_an_engine_that_fails_is_noticed_and_closing_ends_all() -> None:
    world = World(FakeSource(m={"1": "a"}, n={"1": "a"}))
    await world.manager.start()
    world.pools("m@1")[0].failed.set()
    await asyncio.wait_for(world.manager.failed.wait(), 5)
    await world.manager.close()
    assert all(pool.closed for name in ("m@1", "n@1") for pool in world.pools(name))


async def test_changes_that_are_not_made_before_the_server_stops_are_unavailable() -> None:
    world = World(FakeSource(m={"1": "a"}))
    await world.manager.start()
    world.gate.clear()
    changes = [asyncio.create_task(world.manager.load("m", again=True)), asyncio.create_task(world.manager.reload())]
    await until_async(lambda: len(world.loads) == 2)
    await world.manager.close()
    for change in (*changes, world.manager.unload("m")):
        with pytest.raises(ApiError, match="the server is shutting down") as refused:
            await change
        assert refused.value.code is grpc.StatusCode.UNAVAILABLE


async def test_the_registry_says_why_it_refuses() -> None:
    source = FakeSource(m={"1": "broken"}, n={"1": "a"})
    world = World(source)
    await world.manager.start()

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
async def test_whatever_happens_at_once_nothing_is_closed_that_is_used(seed: int) -> None:
    """Files change, administrators act and clients call, in any order and at the same time."""
    chance = random.Random(seed)
    source = FakeSource(m={"1": "a"}, n={"1": "a"})
    world = World(source)
    await world.manager.start()
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
