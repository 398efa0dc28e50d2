"""Maps model names of requests to served versions, and counts the calls of each version. For the event loop only."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.core.call_record import RECORD
from dragoman_server.messages.api_error import invalid, unavailable, unknown_model
from dragoman_server.messages.error_text import list_nearest
from dragoman_server.messages.served_model import ServedModel
from dragoman_server.models.versions import LATEST, newest_first, split


class ServedVersion:
    """A loaded version and the number of calls that use it.

    Attributes:
        calls: Calls that use it now.
    """

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def used(self) -> Iterator[ServedModel]:
        """Keeps the version from being closed while the context is open."""
        self.calls += 1
        self._idle.clear()
        try:
            yield self.model
        finally:
            self.calls -= 1
            if not self.calls:
                self._idle.set()

    async def idle(self) -> None:
        """Waits until no call uses it."""
        await self._idle.wait()


@dataclass(frozen=True, slots=True)
class UnservedVersion:
    """A version in the repository that is not served.

    Attributes:
        state: LOADING or FAILED.
        problem: One sentence on why it failed; empty otherwise.
    """

    state: pb.ModelState
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ModelVersions:
    """The versions of one model that requests may name.

    Attributes:
        current: The version for requests that name none; None while no version is served.
        served: The versions that take requests.
        unserved: The other known versions.
        aliases: The version of each alias, served or not.
    """

    current: str | None
    served: Mapping[str, ServedVersion]
    unserved: Mapping[str, UnservedVersion] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def resolve(self, version: str | None) -> str | None:
        """Returns the version for what follows "@" in a request's model name; aliases take precedence."""
        if version is None or version == LATEST:
            return self.current
        return self.aliases.get(version, version)


class ModelRegistry:
    """Resolves model names. It refuses all requests before `open` and after `refuse`."""

    def __init__(self) -> None:
        self._models: Mapping[str, ModelVersions] = {}
        self._default: str | None = None
        self._refusal: str | None = "the model is loading"

    def update(self, models: Mapping[str, ModelVersions], default: str | None) -> None:
        """Replaces what names resolve to. Running calls keep their version.

        Args:
            default: The model for requests that name none; it need not exist at the moment.
        """
        self._models, self._default = models, default

    def serve(self, model: ServedModel) -> None:
        """Opens the registry with a single model."""
        self.update({model.name: ModelVersions(model.version, {model.version: ServedVersion(model)})}, model.name)
        self.open()

    def open(self) -> None:
        """Starts to take requests."""
        self._refusal = None

    def refuse(self, reason: str) -> None:
        """Refuses all further requests."""
        self._refusal = reason

    @contextmanager
    def use(self, name: str) -> Iterator[ServedModel]:
        """Resolves a request's model name, and keeps the version open while the context is.

        Raises:
            ApiError: No such model exists, or it is not served now.
        """
        with self.find(name).used() as model:
            if (record := RECORD.get()) is not None:
                record.model, record.version = model.name, model.version
            yield model

    def find(self, name: str) -> ServedVersion:
        """Returns the version for NAME, NAME@VERSION, NAME@ALIAS, or "" for the default model. Raises as `use`."""
        if self._refusal is not None:
            raise unavailable(self._refusal)
        if not name:
            name = self._default_name()
        model, requested = split(name)
        versions = self._models.get(model)
        if versions is None:
            raise unknown_model(name, sorted(self._models))
        version = versions.resolve(requested)
        if version is not None and version in versions.served:
            return versions.served[version]
        if requested is None or requested == LATEST or version in versions.unserved:
            raise unavailable(_why_unserved(model, versions, version))
        raise unknown_model(name, _known_versions(model, versions))

    def list(self) -> list[pb.Model]:
        """Lists all known versions: the default model first, and the newest version of each model first.

        Raises:
            ApiError: The registry refuses requests now.
        """
        if self._refusal is not None:
            raise unavailable(self._refusal)
        names = sorted(self._models, key=lambda name: (name != self._default, name))
        return [
            self._describe(name, version)
            for name in names
            for version in newest_first({*self._models[name].served, *self._models[name].unserved})
        ]

    def describe(self, name: str) -> pb.Model:
        """Describes the version that a name resolves to. Raises as `use`."""
        model = self.find(name).model
        return self._describe(model.name, model.version)

    def _describe(self, name: str, version: str) -> pb.Model:
        versions = self._models[name]
        described = pb.Model(name=name, version=version)
        if served := versions.served.get(version):
            described.CopyFrom(served.model.info)
            described.state = pb.MODEL_STATE_READY
        else:
            unserved = versions.unserved[version]
            described.state, described.problem = unserved.state, unserved.problem
        described.aliases.extend(sorted(alias for alias, target in versions.aliases.items() if target == version))
        described.current = version == versions.current
        described.default = described.current and name == self._default
        return described

    def _default_name(self) -> str:
        if not self._models:
            raise unavailable("no model is loaded")
        names = list_nearest(sorted(self._models))
        if self._default is None:
            raise invalid("model", f"is empty, but this server has no default model: name one of {names}")
        if self._default not in self._models:
            raise unavailable(f"the default model, {self._default}, does not exist now: name one of {names}")
        return self._default


def _known_versions(model: str, versions: ModelVersions) -> list[str]:
    return [f"{model}@{version}" for version in [*newest_first(versions.served), *sorted(versions.aliases)]]


def _why_unserved(model: str, versions: ModelVersions, version: str | None) -> str:
    """Returns a sentence on why a known model does not answer."""
    unserved = versions.unserved.get(version) if version is not None else None
    if version is None or unserved is None:
        loading = any(other.state == pb.MODEL_STATE_LOADING for other in versions.unserved.values())
        return f"model {model} is loading" if loading else f"no version of model {model} could be loaded"
    if unserved.state == pb.MODEL_STATE_LOADING:
        return f"version {version} of model {model} is loading"
    return f"version {version} of model {model} could not be loaded"
