"""What to load and what to let go, from what there is, what is served, and what is wanted. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from dragoman_server.models.settings import All, Latest, ModelSettings
from dragoman_server.models.versions import newest_first


@dataclass(frozen=True, slots=True)
class Candidate:
    """A version as it lies in the repository.

    Attributes:
        identity: changes with its content, its place, or the options it is to be served with.
        stamp: changes whenever any of its files is written.
        complete: whether all its files are there, as far as one can tell without reading them.
    """

    identity: str
    stamp: str
    complete: bool = True


@dataclass(frozen=True, slots=True)
class State:
    """What became of a version.

    Attributes:
        ready: what of it takes requests; None where it is not served.
        failed: what could not be loaded.
    """

    ready: str | None = None
    failed: Candidate | None = None


@dataclass(frozen=True, slots=True)
class Orders:
    """What an administrator has asked for by hand.

    Attributes:
        out: serve nothing but `extra`.
        held: versions that are not served.
        extra: versions that are served, whatever the settings say.
    """

    out: bool = False
    held: frozenset[str] = frozenset()
    extra: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    """Attributes:
    load: versions to load, the latest first.
    retire: versions that take no more requests from now on.
    current: the version that requests without one get from now on.
    """

    load: tuple[str, ...]
    retire: frozenset[str]
    current: str | None


def make_plan(
    settings: ModelSettings,
    found: Mapping[str, Candidate],
    states: Mapping[str, State],
    orders: Orders = Orders(),
    current: str | None = None,
) -> Plan:
    """What to do about one model now. After each load it is to be asked again.

    A version that can't be loaded, or is not there as a whole, leaves its place to the next. What is served is retired
    only when what takes its place is served, or when the model is gone or unloaded.

    Args:
        found: the versions in the repository.
        states: of versions that were tried; others are as good as new.
        current: as the plan before said.
    """
    ready = {version for version, state in states.items() if state.ready is not None}
    usable = found.keys() - orders.held

    def loadable(version: str) -> bool:
        state = states.get(version, State())
        return found[version].complete and found[version] != state.failed

    candidates = [version for version in newest_first(usable) if version in ready or loadable(version)]
    chosen = [] if orders.out else _choose(settings, candidates)
    named = orders.extra if orders.out else orders.extra | set(settings.aliases.values())
    wanted = {*chosen, *(version for version in candidates if version in named)}
    load = [
        version
        for version in newest_first(wanted)
        if loadable(version) and states.get(version, State()).ready != found[version].identity
    ]
    most = settings.choice.count if isinstance(settings.choice, Latest) else 1
    lacking = 0 if orders.out else min(most, len(usable)) - len(ready.intersection(chosen))
    unwanted = ready - wanted
    kept = newest_first(unwanted - orders.held)[: max(lacking, 0)]
    retire = unwanted - set(kept)
    serving = ready - retire
    return Plan(tuple(load), frozenset(retire), _current(chosen, serving, current))


def _choose(settings: ModelSettings, candidates: list[str]) -> list[str]:
    """Of candidates, the latest first, those that the settings want."""
    choice = settings.choice
    if isinstance(choice, All):
        return candidates
    if isinstance(choice, Latest):
        return candidates[: choice.count]
    return [version for version in candidates if version in choice.versions]


def _current(chosen: list[str], serving: set[str], before: str | None) -> str | None:
    for version in chosen:
        if version in serving:
            return version
    if before in serving:
        return before
    return next(iter(newest_first(serving)), None)
