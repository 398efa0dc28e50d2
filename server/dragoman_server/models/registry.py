"""Which version a request's model name means now, and how many calls use each version. For the event loop alone."""

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
    """A version that is loaded, and the count of the calls that use it.

    Attributes:
        calls: that use it now.
    """

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def used(self) -> Iterator[ServedModel]:
        """It is not closed within."""
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
class Absent:
    """A version that is there, but not served.

    Attributes:
        state: loading, failed or retiring.
        problem: one sentence on why, empty where nothing is wrong.
    """

    state: pb.ModelState
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """What there is of one model.

    Attributes:
        current: the version that requests without one get; None while none is served.
        served: the versions that take requests.
        absent: others that there are.
        aliases: the version that each alias means, whether it is served or not.
    """

    current: str | None
    served: Mapping[str, ServedVersion]
    absent: Mapping[str, Absent] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def version(self, asked: str | None) -> str | None:
        """The version that is meant by what a request has behind the "@"; an alias goes before a version."""
        if asked is None or asked == LATEST:
            return self.current
        return self.aliases.get(asked, asked)


class ModelRegistry:
    """Refuses all until `arrange` was called and after `refuse`."""

    def __init__(self) -> None:
        self._routes: Mapping[str, Route] = {}
        self._default: str | None = None
        self._refusal: str | None = "the model is loading"

    def arrange(self, routes: Mapping[str, Route], default: str | None) -> None:
        """From now on names mean this. Calls that run keep what they have.

        Args:
            default: what a request without a model's name gets, whether there is such a model now or not.
        """
        self._routes, self._default = routes, default

    def serve(self, model: ServedModel) -> None:
        """Takes requests for this model alone."""
        self.arrange({model.name: Route(model.version, {model.version: ServedVersion(model)})}, model.name)
        self.open()

    def open(self) -> None:
        """Takes requests."""
        self._refusal = None

    def refuse(self, reason: str) -> None:
        """Answers no further requests."""
        self._refusal = reason

    @contextmanager
    def use(self, name: str) -> Iterator[ServedModel]:
        """The model that a request's name means; it is not closed within.

        Raises:
            ApiError: there is none of that name, or it is not served now.
        """
        with self.find(name).used() as model:
            if (record := RECORD.get()) is not None:
                record.model, record.version = model.name, model.version
            yield model

    def find(self, name: str) -> ServedVersion:
        """The version meant by NAME, NAME@VERSION, NAME@alias, or "" for the default model. Raises as `use`."""
        if self._refusal is not None:
            raise unavailable(self._refusal)
        if not name:
            name = self._default_name()
        model, asked = split(name)
        route = self._routes.get(model)
        if route is None:
            raise unknown_model(name, sorted(self._routes))
        version = route.version(asked)
        if version is not None and version in route.served:
            return route.served[version]
        if asked is None or asked == LATEST or version in route.absent:
            raise unavailable(_why_absent(model, route, version))
        raise unknown_model(name, _known_versions(model, route))

    def list(self) -> list[pb.Model]:
        """All versions there are, the default model first, of each the newest version first.

        Raises:
            ApiError: nothing is served now.
        """
        if self._refusal is not None:
            raise unavailable(self._refusal)
        names = sorted(self._routes, key=lambda name: (name != self._default, name))
        return [
            self._describe(name, version)
            for name in names
            for version in newest_first({*self._routes[name].served, *self._routes[name].absent})
        ]

    def describe(self, name: str) -> pb.Model:
        """What is known of the version that a name means. Raises as `use`."""
        model = self.find(name).model
        return self._describe(model.name, model.version)

    def _describe(self, name: str, version: str) -> pb.Model:
        route = self._routes[name]
        described = pb.Model(name=name, version=version)
        if served := route.served.get(version):
            described.CopyFrom(served.model.info)
            described.state = pb.MODEL_STATE_READY
        else:
            described.state, described.problem = route.absent[version].state, route.absent[version].problem
        described.aliases.extend(sorted(alias for alias, meant in route.aliases.items() if meant == version))
        described.current = version == route.current
        described.default = described.current and name == self._default
        return described

    def _default_name(self) -> str:
        if not self._routes:
            raise unavailable("no model is loaded")
        names = list_nearest(sorted(self._routes))
        if self._default is None:
            raise invalid("model", f"is empty, but this server has no default model: name one of {names}")
        if self._default not in self._routes:
            raise unavailable(f"the default model, {self._default}, is not there now: name one of {names}")
        return self._default


def _known_versions(model: str, route: Route) -> list[str]:
    return [f"{model}@{version}" for version in [*newest_first(route.served), *sorted(route.aliases)]]


def _why_absent(model: str, route: Route, version: str | None) -> str:
    """Says of a model that is known why it does not answer."""
    absent = route.absent.get(version) if version is not None else None
    if version is None or absent is None:
        loading = any(each.state == pb.MODEL_STATE_LOADING for each in route.absent.values())
        return f"model {model} is loading" if loading else f"no version of model {model} could be loaded"
    reasons = {
        pb.MODEL_STATE_LOADING: "is loading",
        pb.MODEL_STATE_FAILED: "could not be loaded",
        pb.MODEL_STATE_RETIRING: "is not served any more",
    }
    return f"version {version} of model {model} {reasons[absent.state]}"
