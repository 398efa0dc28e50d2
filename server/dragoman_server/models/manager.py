"""The life cycle of models: find, load, warm up, replace while requests run, unload.

Everything runs on the event loop, one change at a time; only loading and file access use threads.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from dragoman_server.config import ServerConfig
from dragoman_server.machine import freeze_objects, trim_memory, usable_cpus
from dragoman_server.messages.api_error import unavailable
from dragoman_server.messages.error_text import shorten
from dragoman_server.metrics import ModelLoad, ServerMetrics
from dragoman_server.models.load_plan import Overrides
from dragoman_server.models.loading import LoadedVersion, LoadError, load_version
from dragoman_server.models.registry import ModelRegistry
from dragoman_server.models.repository import ModelSource, RepositoryError, RepositoryScan
from dragoman_server.models.settings import RepositorySettings, options_of
from dragoman_server.models.state import ModelState, VersionReport, VersionState, report_versions
from dragoman_server.models.versions import LATEST, is_name, split

log = structlog.get_logger()

CLOSE_SECONDS = 3.0  # for the last steps to finish at shutdown

STOPPING = "the server is shutting down"

VersionLoader = Callable[[Path, str, str, ServerConfig, Callable[[], None]], Awaitable[LoadedVersion]]


class UnknownModelError(Exception):
    """The repository has no such model or version; the message names it."""


class NotLoadedError(Exception):
    """A requested load failed; the message says why."""


class ModelManager:
    """Keeps the served versions in step with the repository.

    Args:
        source: The repository or bundle that models come from.
        config: The server's options.
        registry: Updated whenever the served versions change.
        load: Loads a version.
        on_change: Called with each model and whether it takes requests.

    Attributes:
        failed: Set when an engine of any model has failed.
        problem: What is wrong with the repository; empty if nothing is.
    """

    def __init__(
        self,
        source: ModelSource,
        config: ServerConfig,
        registry: ModelRegistry,
        metrics: ServerMetrics,
        load: VersionLoader = load_version,
        on_change: Callable[[Mapping[str, bool]], None] = lambda serving: None,
    ) -> None:
        self.source = source
        self.failed = asyncio.Event()
        self.problem = ""
        self._config = config
        self._registry = registry
        self._metrics = metrics
        self._loader = load
        self._on_change = on_change
        self._settings = RepositorySettings()
        self._models: dict[str, ModelState] = {}
        self._retiring: list[LoadedVersion] = []
        self._watchers: dict[LoadedVersion, asyncio.Task[None]] = {}
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False
        self._threads = 0
        self._unloaded: set[str] = set()  # models unloaded by hand
        self._without_default: set[str] = set()  # the models at the last warning that there is no default

    async def start(self) -> None:
        """Loads the models.

        Raises:
            RepositoryError: The source can't be scanned, or its settings are wrong.
        """
        async with self._lock:
            scan = await asyncio.to_thread(self.source.scan)
            if scan.settings is None:
                raise RepositoryError(scan.problem)
            await self._apply(scan)
        freeze_objects()
        self._registry.open()

    async def watch(self, seconds: float) -> None:
        """Scans the source at this interval, forever; 0 disables it."""
        while seconds:
            await asyncio.sleep(seconds)
            try:
                await self._exclusively(self._rescan)
            except Exception as error:  # a bug here must not end the watch
                log.error("scanning the model repository failed", exc_info=error)

    async def reload(self) -> None:
        """Scans the source now, and retries what could not be loaded.

        Raises:
            NotLoadedError: The source can't be scanned, or its settings are wrong.
        """
        await self._exclusively(self._reload)

    async def load(self, name: str, again: bool = False) -> None:
        """Loads an unloaded model, or a version that the settings leave out. Returns once it is served.

        Args:
            name: NAME, NAME@VERSION or NAME@ALIAS.
            again: Whether to reload a served model that has not changed.

        Raises:
            UnknownModelError: No such model or version exists.
            NotLoadedError: It can't be loaded.
        """
        await self._exclusively(partial(self._load_by_hand, name, again))

    async def unload(self, name: str) -> None:
        """Takes a model or version out of service until `load` loads it again.

        Raises:
            UnknownModelError: No such model or version exists.
        """
        await self._exclusively(partial(self._unload_by_hand, name))

    async def close(self) -> None:
        """Closes all loaded versions; unanswered requests end with EngineUnavailableError."""
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(loaded.close(CLOSE_SECONDS) for loaded in [*self._loaded(), *self._retiring]))

    def reports(self) -> list[VersionReport]:
        """Reports on all versions, by model, newest first."""
        default = self._default()
        names = sorted({*self._models, *(loaded.name for loaded in self._retiring)})
        return [
            report
            for name in names
            for report in report_versions(name, self._models.get(name, ModelState()), name == default, self._retiring)
        ]

    async def _exclusively(self, change: Callable[[], Awaitable[None]]) -> None:
        """Makes a change when no other is under way, and completes it even if the caller is cancelled.

        Raises:
            ApiError: The server stops first.
        """

        async def locked() -> None:
            async with self._lock:
                await change()

        if self._closing:
            raise unavailable(STOPPING)
        task = self._task(locked())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise unavailable(STOPPING) from None
            raise

    def _task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _rescan(self) -> None:
        try:
            scan = await asyncio.to_thread(self.source.scan)
        except RepositoryError as error:
            self._set_problem(str(error))
            return
        await self._apply(scan)

    async def _reload(self) -> None:
        for model in self._models.values():
            model.forget_failures()
        await self._rescan()
        if self.problem:
            raise NotLoadedError(self.problem)

    async def _load_by_hand(self, name: str, again: bool) -> None:
        await self._rescan()
        model_name, model, version = self._resolve(name)
        if version is not None and version not in model.files:
            raise UnknownModelError(f"there is no version {version} of model {model_name} in {self.source.path}")
        model.forget_failures()
        before = model.overrides
        targets = {version} if version is not None else set(model.versions)
        model.overrides = Overrides() if version is None else before.load(version)
        if again:
            for target in targets & model.versions.keys():
                model.versions[target].identity = ""
        failures = await self._settle(model_name, model)
        if version is not None:
            state = model.versions.get(version)
            problem = model.files[version].problem or model.problem(version)
            if problem or state is None or state.loaded is None:
                # A failed load must not come into force later: from here on, only repository.yaml decides.
                model.overrides = replace(model.overrides, loaded=before.loaded)
                self._publish()
                raise NotLoadedError(f"version {version} of model {model_name} was not loaded: {problem}")
        elif failures:
            raise NotLoadedError(failures[0])
        elif model.current is None:
            raise NotLoadedError(f"there is no version of model {name} that could be loaded")

    async def _unload_by_hand(self, name: str) -> None:
        model_name, model, version = self._resolve(name)
        model.overrides = Overrides(model_unloaded=True) if version is None else model.overrides.unload(version)
        await self._settle(model_name, model)

    def _resolve(self, name: str) -> tuple[str, ModelState, str | None]:
        """Resolves NAME, NAME@VERSION or NAME@ALIAS; the version is None for the model as a whole.

        Raises:
            UnknownModelError: No such model or version exists.
        """
        name, requested = split(name)
        model = self._models.get(name) if is_name(name) else None
        if model is None:
            raise UnknownModelError(f"there is no model {shorten(name)!r} in {self.source.path}")
        if requested is None or requested == LATEST:
            return name, model, None
        version = model.settings.aliases.get(requested, requested)
        if version not in model.files and version not in model.versions:
            spelled = shorten(requested)
            raise UnknownModelError(f"there is no version {spelled!r} of model {name} in {self.source.path}")
        return name, model, version

    async def _apply(self, scan: RepositoryScan) -> None:
        """Loads and retires versions until the served ones match a scan and the settings."""
        if scan.settings is not None:
            self._settings = scan.settings
        self._set_problem(scan.problem)
        for name in [*scan.models, *self._models]:
            self._models.setdefault(name, ModelState()).files = scan.models.get(name, {})
        # Removed models come last: their replacement may have another name, and is loaded first.
        for name, model in sorted(self._models.items(), key=lambda item: item[0] not in scan.models):
            model.settings = self._settings.of(name)
            await self._settle(name, model)
            for version in [*model.versions]:
                if version not in model.files and model.versions[version].loaded is None:
                    del model.versions[version]
            if not model.files and not model.versions:
                del self._models[name]
                self._metrics.forget(name)
        self._publish()
        self._warn_of_threads()
        if self._default() is None and len(self._models) > 1 and scan.models.keys() != self._without_default:
            log.warning("requests that name no model are refused: repository.yaml names no default")
        self._without_default = set(scan.models)

    async def _settle(self, name: str, model: ModelState) -> list[str]:
        """Loads and retires versions of a model until its plan is carried out.

        Returns:
            The reasons of failed loads.
        """
        failures: list[str] = []
        while True:
            plan = model.plan()
            for version in plan.retire:
                self._retire(model.versions[version].take_loaded())
            model.current, model.loading = plan.current, plan.load
            for version, problem in model.new_problems().items():
                log.warning("incomplete", model=name, version=version, reason=problem)
            self._publish()
            if not plan.load or self._closing:
                return failures
            if failure := await self._load_version(name, model, plan.load[0]):
                failures.append(failure)

    async def _load_version(self, name: str, model: ModelState, version: str) -> str | None:
        """Loads a version. It replaces the one that is served under its name; if it fails, nothing changes.

        Returns:
            Why it could not be loaded; None if it was.
        """
        files, candidate = model.files[version], model.candidates()[version]
        state = model.versions.setdefault(version, VersionState())
        log.info("loading", model=name, version=version, path=str(files.path))
        try:
            options = options_of(self._config, model.settings)
            loaded = await self._loader(files.path, name, version, options, self._report_availability)
        except Exception as error:  # a bad version must not affect the others
            expected = isinstance(error, LoadError)
            reason = str(error) if expected else f"{type(error).__name__}: {error}".splitlines()[0]
            state.failed, state.problem = candidate, reason
            self._metrics.load_failed(name)
            log.error(
                "load failed",
                model=name,
                version=version,
                reason=reason,
                serving=model.current,
                exc_info=None if expected else error,
            )
            return reason
        replaced, state.loaded, state.identity, state.failed = state.loaded, loaded, candidate.identity, None
        self._metrics.show(name, version, loaded.metrics)
        fallback = loaded.pool.device.fallback is not None
        self._metrics.loaded(name, version, ModelLoad(loaded.seconds, loaded.device, loaded.precision, fallback))
        log.info("ready", model=name, version=version, device=loaded.device, load_seconds=round(loaded.seconds, 3))
        self._watchers[loaded] = self._task(self._notice_failure(loaded))
        if replaced is not None:
            self._retire(replaced)
        return None

    def _retire(self, loaded: LoadedVersion) -> None:
        self._retiring.append(loaded)
        self._task(self._finish(loaded))

    async def _finish(self, loaded: LoadedVersion) -> None:
        """Retires a version, and forgets it."""
        await loaded.retire(self._config.retire_seconds)
        self._watchers.pop(loaded).cancel()
        self._retiring.remove(loaded)
        self._metrics.unloaded(loaded.name, loaded.version, loaded.metrics)
        log.info("unloaded", model=loaded.name, version=loaded.version)
        del loaded
        await asyncio.sleep(0)  # until then the frames of its last calls refer to it
        await asyncio.to_thread(trim_memory)

    async def _notice_failure(self, loaded: LoadedVersion) -> None:
        await loaded.pool.failed.wait()
        self.failed.set()

    def _loaded(self) -> list[LoadedVersion]:
        return [state.loaded for model in self._models.values() for state in model.versions.values() if state.loaded]

    def _default(self) -> str | None:
        if self._settings.default is not None:
            return self._settings.default
        kept = [name for name, model in self._models.items() if model.files]
        if len(kept) == 1 and self._models[kept[0]].current is None:  # as long as it loads, one that is removed stays
            kept = [name for name, model in self._models.items() if model.current is not None] or kept
        names = kept or list(self._models)
        return names[0] if len(names) == 1 else None

    def _publish(self) -> None:
        """Updates the registry, the metrics and the health of the models."""
        entries = {name: model.registry_entry() for name, model in self._models.items()}
        self._unloaded = {
            name for name, entry in entries.items() if self._models[name].overrides.model_unloaded and not entry.served
        }
        for name in self._unloaded:
            del entries[name]
        self._registry.update(entries, self._default())
        for name, model in self._models.items():
            self._metrics.refused(name, len(model.refused()))
        self._report_availability()

    def _report_availability(self) -> None:
        """Reports which models take requests: those with a loaded version whose engines run."""
        self._on_change(
            {
                name: any(state.loaded is not None and state.loaded.available for state in model.versions.values())
                for name, model in self._models.items()
                if name not in self._unloaded
            }
        )

    def _set_problem(self, problem: str) -> None:
        """Logs what is wrong with the repository, once."""
        if problem and problem != self.problem:
            log.error("the model repository has a problem", reason=problem)
        self.problem = problem

    def _warn_of_threads(self) -> None:
        """Warns, on every change, if the models together have more than two compute threads per core."""
        threads = sum(loaded.pool.engines * loaded.pool.threads for loaded in self._loaded())
        cores = usable_cpus()
        if threads != self._threads and threads > 2 * cores and len(self._loaded()) > 1:
            log.warning(
                "the loaded models have more compute threads than there are cores; give them fewer engines",
                threads=threads,
                cores=cores,
            )
        self._threads = threads
