"""Decides which versions of a model to load and which to retire. Pure logic."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dragoman_server.models.settings import All, Latest, ModelSettings
from dragoman_server.models.versions import newest_first


@dataclass(frozen=True, slots=True)
class Candidate:
    """A version as it is in the repository now.

    Attributes:
        identity: Text that changes with the version's content, path or options.
        stamp: Text that changes whenever one of its files is written.
        complete: Whether all files seem to be there, judged without reading them.
    """

    identity: str
    stamp: str
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Overrides:
    """What administrators loaded and unloaded by hand; this takes precedence over the settings.

    Attributes:
        model_unloaded: Whether the whole model is unloaded, except for the versions in `loaded`.
        loaded: Versions to serve.
        unloaded: Versions not to serve.
    """

    model_unloaded: bool = False
    loaded: frozenset[str] = frozenset()
    unloaded: frozenset[str] = frozenset()

    def load(self, version: str) -> "Overrides":
        return replace(self, loaded=self.loaded | {version}, unloaded=self.unloaded - {version})

    def unload(self, version: str) -> "Overrides":
        return replace(self, loaded=self.loaded - {version}, unloaded=self.unloaded | {version})


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What to do about one model now.

    Attributes:
        load: Versions to load, newest first.
        retire: Versions that take no more requests.
        current: The version for requests that name none; None while no version is served.
    """

    load: tuple[str, ...]
    retire: frozenset[str]
    current: str | None


def plan_loads(
    settings: ModelSettings,
    candidates: Mapping[str, Candidate],
    ready: Mapping[str, str],
    failed: Mapping[str, Candidate],
    overrides: Overrides = Overrides(),
    current: str | None = None,
) -> LoadPlan:
    """Returns what to do about one model. Plan again after each load.

    The next version takes the place of one that can't be loaded or is incomplete. A served version is retired only
    once its replacement is served, or when the model is removed or unloaded.

    Args:
        candidates: The versions in the repository.
        ready: The identity of each served version.
        failed: The candidates that could not be loaded, by version; they are not tried again.
        current: The current version of the previous plan.
    """
    usable = candidates.keys() - overrides.unloaded

    def loadable(version: str) -> bool:
        return candidates[version].complete and candidates[version] != failed.get(version)

    ranked = [version for version in newest_first(usable) if version in ready or loadable(version)]
    chosen = [] if overrides.model_unloaded else _choose(settings, ranked)
    named = overrides.loaded if overrides.model_unloaded else overrides.loaded | set(settings.aliases.values())
    target = {*chosen, *(version for version in ranked if version in named)}
    load = [
        version
        for version in newest_first(target)
        if loadable(version) and ready.get(version) != candidates[version].identity
    ]
    # As long as fewer chosen versions are served than the settings ask for, old ones fill in for them.
    count = settings.choice.count if isinstance(settings.choice, Latest) else 1
    missing = 0 if overrides.model_unloaded else min(count, len(usable)) - len(ready.keys() & set(chosen))
    superseded = ready.keys() - target
    kept = newest_first(superseded - overrides.unloaded)[: max(missing, 0)]
    retire = superseded - set(kept)
    return LoadPlan(tuple(load), frozenset(retire), _current(chosen, ready.keys() - retire, current))


def _choose(settings: ModelSettings, ranked: list[str]) -> list[str]:
    """Returns the versions that the settings choose from `ranked`, which is sorted newest first."""
    choice = settings.choice
    if isinstance(choice, All):
        return ranked
    if isinstance(choice, Latest):
        return ranked[: choice.count]
    return [version for version in ranked if version in choice.versions]


def _current(chosen: list[str], serving: set[str], previous: str | None) -> str | None:
    for version in chosen:
        if version in serving:
            return version
    if previous in serving:
        return previous
    return next(iter(newest_first(serving)), None)
