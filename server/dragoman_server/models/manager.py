"""The life of models: they are found, loaded, warmed up, replaced while requests run, and let go.

Everything happens on the event loop, one change at a time; only loading itself, and looking at files, go on in threads.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import structlog

from dragoman_server.config import ServerConfig
from dragoman_server.machine import freeze_objects, trim_memory, usable_cpus
from dragoman_server.messages.api_error import unavailable
from dragoman_server.messages.error_text import shorten
from dragoman_server.metrics import ModelMetrics
from dragoman_server.models.load_plan import Orders
from dragoman_server.models.loading import LoadedVersion, LoadError, load_version
from dragoman_server.models.registry import ModelRegistry
from dragoman_server.models.repository import RepositoryError, Snapshot, Source
from dragoman_server.models.settings import RepositorySettings, options_of
from dragoman_server.models.state import Model, Report, Version, describe
from dragoman_server.models.versions import LATEST, is_name, split

log = structlog.get_logger()

CLOSE_SECONDS = 3.0  # that last steps have to end where the server does

STOPPING = "the server is shutting down"

Load = Callable[[Path, str, str, ServerConfig, Callable[[], None]], Awaitable[LoadedVersion]]


class UnknownModelError(Exception):
    """The repository has no such model or version; the message names it."""


class NotLoadedError(Exception):
    """What was asked for could not be loaded; the message says why."""


class ManagerMetrics(Protocol):
    """What the manager needs of server.metrics.ServerMetrics."""

    def show(self, name: str, version: str, metrics: ModelMetrics) -> None: ...

    def loaded(
        self, name: str, seconds: float, device: str, precision: str, fallback: bool, version: str = "1"
    ) -> None: ...

    def load_failed(self, name: str) -> None: ...

    def refused(self, name: str, versions: int) -> None: ...

    def unloaded(self, name: str, version: str, metrics: ModelMetrics) -> None: ...

    def forget(self, name: str) -> None: ...


class ModelManager:
    """Keeps what is served in step with what there is.

    Args:
        source: where models come from.
        config: the server's options.
        registry: told of what is served.
        load: brings a version up.

    Attributes:
        failed: set when an engine of any model has failed.
    """

    def __init__(
        self,
        source: Source,
        config: ServerConfig,
        registry: ModelRegistry,
        metrics: ManagerMetrics,
        load: Load = load_version,
        on_change: Callable[[Mapping[str, bool]], None] = lambda serving: None,
    ) -> None:
        self.source = source
        self.failed = asyncio.Event()
        self.problem = ""
        self._config = config
        self._registry = registry
        self._metrics = metrics
        self._load_version = load
        self._on_change = on_change
        self._settings = RepositorySettings()
        self._models: dict[str, Model] = {}
        self._retiring: list[LoadedVersion] = []
        self._watchers: dict[LoadedVersion, asyncio.Task[None]] = {}
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False
        self._threads = 0
        self._out: set[str] = set()  # models that were unloaded by hand
        self._told: set[str] = set()  # models there were when it was last told that there is no default

    async def start(self) -> None:
        """Loads what there is.

        Raises:
            RepositoryError: the source can't be looked at, or says nonsense.
        """
        async with self._lock:
            snapshot = await asyncio.to_thread(self.source.scan)
            if snapshot.settings is None:
                raise RepositoryError(snapshot.problem)
            await self._follow(snapshot)
        freeze_objects()
        self._registry.open()

    async def watch(self, seconds: float) -> None:
        """Looks at the source every so many seconds, for good; with 0, never."""
        while seconds:
            await asyncio.sleep(seconds)
            try:
                await self._alone(self._rescan)
            except Exception as error:  # a mistake in here must not end the watch
                log.error("the model repository could not be looked at", exc_info=error)

    async def reload(self) -> None:
        """Looks at the source now, and tries again what could not be loaded.

        Raises:
            NotLoadedError: the source can't be looked at, or its settings are wrong.
        """
        await self._alone(self._reload)

    async def load(self, name: str, again: bool = False) -> None:
        """Loads a model that was unloaded, or a version that the settings leave out. Returns when it is served.

        Args:
            name: NAME, or NAME@VERSION, or NAME@alias.
            again: also where it is served already and has not changed.

        Raises:
            UnknownModelError: there is no such model or version.
            NotLoadedError: it can't be loaded.
        """
        await self._alone(partial(self._load_by_hand, name, again))

    async def unload(self, name: str) -> None:
        """Takes a model, or a version of it, out of service, until it is loaded again by `load`.

        Raises:
            UnknownModelError: there is no such model or version.
        """
        await self._alone(partial(self._unload_by_hand, name))

    async def close(self) -> None:
        """Ends everything that is loaded; what is still unanswered ends with EngineUnavailableError."""
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(loaded.close(CLOSE_SECONDS) for loaded in [*self._loaded(), *self._retiring]))

    def reports(self) -> list[Report]:
        """All versions there are, by model, the latest first."""
        default = self._default()
        names = sorted({*self._models, *(loaded.name for loaded in self._retiring)})
        return [
            report
            for name in names
            for report in describe(name, self._models.get(name, Model()), name == default, self._retiring)
        ]

    async def _alone(self, change: Callable[[], Awaitable[None]]) -> None:
        """Makes a change when none is under way, to its end even where whoever asked for it has left.

        Raises:
            ApiError: the server stops before it is made.
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
            snapshot = await asyncio.to_thread(self.source.scan)
        except RepositoryError as error:
            self._tell(str(error))
            return
        await self._follow(snapshot)

    async def _reload(self) -> None:
        for model in self._models.values():
            model.forget_failures()
        await self._rescan()
        if self.problem:
            raise NotLoadedError(self.problem)

    async def _load_by_hand(self, name: str, again: bool) -> None:
        await self._rescan()
        model, version = self._named(name)
        if version is not None and version not in model.found:
            raise UnknownModelError(f"there is no version {version} of model {split(name)[0]} in {self.source.path}")
        model.forget_failures()
        extra = model.orders.extra
        targets = {version} if version is not None else set(model.versions)
        if version is None:
            model.orders = Orders()
        else:
            model.orders = replace(
                model.orders, held=model.orders.held - {version}, extra=model.orders.extra | {version}
            )
        if again:
            for target in targets & model.versions.keys():
                model.versions[target].identity = ""
        failures = await self._settle(split(name)[0], model)
        if version is not None:
            state = model.versions.get(version)
            problem = model.found[version].problem or model.problem(version)
            if problem or state is None or state.loaded is None:
                # What could not be done is no order for later: only repository.yaml says whether it is still wanted.
                model.orders = replace(model.orders, extra=extra)
                self._arrange()
                raise NotLoadedError(f"version {version} of model {split(name)[0]} was not loaded: {problem}")
        elif failures:
            raise NotLoadedError(failures[0])
        elif model.current is None:
            raise NotLoadedError(f"there is no version of model {name} that could be loaded")

    async def _unload_by_hand(self, name: str) -> None:
        model, version = self._named(name)
        if version is None:
            model.orders = Orders(out=True)
        else:
            orders = model.orders
            model.orders = replace(orders, held=orders.held | {version}, extra=orders.extra - {version})
        await self._settle(split(name)[0], model)

    def _named(self, name: str) -> tuple[Model, str | None]:
        name, asked = split(name)
        model = self._models.get(name) if is_name(name) else None
        if model is None:
            raise UnknownModelError(f"there is no model {shorten(name)!r} in {self.source.path}")
        if asked is None or asked == LATEST:
            return model, None
        version = model.settings.aliases.get(asked, asked)
        if version not in model.found and version not in model.versions:
            raise UnknownModelError(f"there is no version {shorten(asked)!r} of model {name} in {self.source.path}")
        return model, version

    async def _follow(self, snapshot: Snapshot) -> None:
        """Loads and retires, until what is served is what shall be."""
        if snapshot.settings is not None:
            self._settings = snapshot.settings
        self._tell(snapshot.problem)
        for name, found in snapshot.models.items():
            self._models.setdefault(name, Model()).found = found
        # What is gone comes last: what takes its place may be there under another name.
        for name, model in sorted(self._models.items(), key=lambda item: item[0] not in snapshot.models):
            model.found = snapshot.models.get(name, {})
            model.settings = self._settings.of(name)
            await self._settle(name, model)
            for version in [*model.versions]:
                if version not in model.found and model.versions[version].loaded is None:
                    del model.versions[version]
            if not model.found and not model.versions:
                del self._models[name]
                self._metrics.forget(name)
        self._arrange()
        self._tell_threads()
        if self._default() is None and len(self._models) > 1 and snapshot.models.keys() != self._told:
            log.warning("requests that name no model are refused: repository.yaml names no default")
        self._told = set(snapshot.models)

    async def _settle(self, name: str, model: Model) -> list[str]:
        """Does what the plan says, until there is nothing left to do.

        Returns:
            what went wrong.
        """
        failures: list[str] = []
        while True:
            plan = model.plan()
            for version in plan.retire:
                self._retire(model, version)
            model.current, model.loading = plan.current, plan.load
            self._tell_incomplete(name, model)
            self._arrange()
            if not plan.load or self._closing:
                return failures
            if failure := await self._bring_up(name, model, plan.load[0]):
                failures.append(failure)

    async def _bring_up(self, name: str, model: Model, version: str) -> str | None:
        """Loads a version. It takes the place of the one that is served under its name, or nothing changes.

        Returns:
            why it could not be loaded.
        """
        found, candidate = model.found[version], model.candidates()[version]
        state = model.versions.setdefault(version, Version())
        log.info("loading", model=name, version=version, path=str(found.path))
        try:
            options = options_of(self._config, model.settings)
            loaded = await self._load_version(found.path, name, version, options, self._tell_availability)
        except Exception as error:  # whatever is wrong with it must not harm the others
            known = isinstance(error, LoadError)
            reason = str(error) if known else f"{type(error).__name__}: {error}".splitlines()[0]
            state.failed, state.problem = candidate, reason
            self._metrics.load_failed(name)
            log.error(
                "can't be loaded",
                model=name,
                version=version,
                reason=reason,
                serving=model.current,
                exc_info=None if known else error,
            )
            return reason
        before, state.loaded, state.identity, state.failed = state.loaded, loaded, candidate.identity, None
        self._metrics.show(name, version, loaded.metrics)
        fallback = loaded.pool.device.fallback is not None
        self._metrics.loaded(name, loaded.seconds, loaded.device, loaded.precision, fallback, version)
        log.info("ready", model=name, version=version, device=loaded.device, load_seconds=round(loaded.seconds, 3))
        self._watchers[loaded] = self._task(self._notice_failure(loaded))
        if before is not None:
            self._let_go(before)
        return None

    def _retire(self, model: Model, version: str) -> None:
        state = model.versions[version]
        assert state.loaded is not None, "only what is served is retired"
        self._let_go(state.loaded)
        state.loaded = state.identity = None

    def _let_go(self, loaded: LoadedVersion) -> None:
        self._retiring.append(loaded)
        self._task(self._finish(loaded))

    async def _finish(self, loaded: LoadedVersion) -> None:
        """Waits for the calls that use a version, and closes it."""
        log.info("retiring", model=loaded.name, version=loaded.version, calls=loaded.served.calls)
        try:
            if loaded.served.calls:
                await asyncio.wait_for(loaded.served.idle(), self._config.retire_seconds)
        except TimeoutError:
            log.warning(
                "calls of a retired version were not finished in time and end with UNAVAILABLE",
                model=loaded.name,
                version=loaded.version,
                calls=loaded.served.calls,
            )
        await loaded.close()
        self._watchers.pop(loaded).cancel()
        self._retiring.remove(loaded)
        self._metrics.unloaded(loaded.name, loaded.version, loaded.metrics)
        log.info("unloaded", model=loaded.name, version=loaded.version)
        del loaded
        await asyncio.sleep(0)  # the frames of its last calls hold it until then
        await asyncio.to_thread(trim_memory)

    async def _notice_failure(self, loaded: LoadedVersion) -> None:
        await loaded.pool.failed.wait()
        self.failed.set()

    def _loaded(self) -> list[LoadedVersion]:
        return [state.loaded for model in self._models.values() for state in model.versions.values() if state.loaded]

    def _default(self) -> str | None:
        if self._settings.default is not None:
            return self._settings.default
        return next(iter(self._models)) if len(self._models) == 1 else None

    def _arrange(self) -> None:
        routes = {name: model.route() for name, model in self._models.items()}
        self._out = {name for name, route in routes.items() if self._models[name].orders.out and not route.served}
        for name in self._out:
            del routes[name]
        self._registry.arrange(routes, self._default())
        for name, model in self._models.items():
            self._metrics.refused(name, len(model.refused()))
        self._tell_availability()

    def _tell_availability(self) -> None:
        """Which models take requests: not those of which nothing is loaded, or runs at the moment."""
        self._on_change(
            {
                name: any(state.loaded is not None and state.loaded.available for state in model.versions.values())
                for name, model in self._models.items()
                if name not in self._out
            }
        )

    def _tell(self, problem: str) -> None:
        """Logs what is wrong with the repository, once."""
        if problem and problem != self.problem:
            log.error("the model repository can't be followed", reason=problem)
        self.problem = problem

    def _tell_threads(self) -> None:
        """Logs, when it has changed, that models have more threads for computing than there are cores for two."""
        threads = sum(loaded.pool.engines * loaded.pool.threads for loaded in self._loaded())
        cores = usable_cpus()
        if threads != self._threads and threads > 2 * cores and len(self._loaded()) > 1:
            log.warning(
                "models that are busy at the same time will wait for each other's threads; give them fewer engines",
                threads=threads,
                cores=cores,
            )
        self._threads = threads

    def _tell_incomplete(self, name: str, model: Model) -> None:
        """Logs of versions that are not there as a whole, once for each thing that is missing."""
        told = {version: found.problem for version, found in model.found.items() if found.problem}
        for version, problem in told.items():
            if problem != model.told.get(version):
                log.warning("incomplete", model=name, version=version, reason=problem)
        model.told = told
