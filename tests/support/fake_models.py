"""A model manager with a fake repository and fake engines."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from prometheus_client import generate_latest

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.config import ServerConfig
from dragoman_server.engine.pool import EnginePool
from dragoman_server.engine.scorer import Scorer
from dragoman_server.messages.api_error import ApiError
from dragoman_server.messages.limits import request_limits
from dragoman_server.messages.served_model import ServedModel
from dragoman_server.metrics import ModelMetrics, ServerMetrics
from dragoman_server.models.loading import LoadedVersion, LoadError
from dragoman_server.models.manager import ModelManager
from dragoman_server.models.registry import ModelRegistry, ServedVersion
from dragoman_server.models.repository import ModelSource, RepositoryError, RepositoryScan, VersionFiles
from dragoman_server.models.settings import RepositorySettings
from dragoman_server.runtime.device import CPU
from tests.support.fake_engines import FakeEngines, FakeScorerSession, letters_bundle


class FakePool:
    """Replaces an EnginePool that has started."""

    def __init__(self, bundle: Any) -> None:
        self.bundle, self.device = bundle, CPU
        self.failed = asyncio.Event()
        self.closed = False
        self.available = True
        self.engines, self.threads = 2, 1

    async def close(self, seconds: float | None = None) -> None:
        self.closed = True


class FakeSource:
    """A repository whose contents a test sets.

    Attributes:
        models: The content of each version of each model; "broken" can't be loaded, "bug" raises another error.
        incomplete: Incomplete versions, as NAME@VERSION.
        error: Why a scan fails.
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


class ManagerHarness:
    """A model manager whose loads are fake, with what clients would get.

    Attributes:
        loads: Versions in the order in which their loads began.
        broken: Contents that can't be loaded.
        gate: Loads wait until it is set.
        health: The last health report.
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

    def answers(self, name: str = "") -> str:
        """Returns NAME@VERSION of the model that a request for `name` gets, or the status code of its error."""
        try:
            with self.registry.use(name) as model:
                return f"{model.name}@{model.version}"
        except ApiError as error:
            return error.code.name

    def pools(self, version: str) -> list[FakePool]:
        return [cast(FakePool, loaded.pool) for loaded in self.loaded if f"{loaded.name}@{loaded.version}" == version]

    def state(self, name: str) -> tuple[str, str]:
        """Returns the reported state and problem of NAME@VERSION."""
        report = next(r for r in self.manager.reports() if f"{r.model}@{r.version}" == name)
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
        if content == "bug":
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


async def started(**models: dict[str, str]) -> tuple[ManagerHarness, FakeSource]:
    """Starts a manager with the contents of each version of each model."""
    source = FakeSource(**models)
    harness = ManagerHarness(source)
    await harness.manager.start()
    return harness, source
