"""Which versions are loaded and retired, for any repository and settings."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_server.models.load_plan import Candidate, LoadPlan, Overrides, plan_loads
from dragoman_server.models.settings import All, Latest, ModelSettings, Pinned
from dragoman_server.models.versions import newest_first

VERSIONS = ["1", "2", "10", "candidate"]
LATEST = ModelSettings()


def candidates(*versions: str, written: str = "a") -> dict[str, Candidate]:
    return {version: Candidate(f"{version}{written}", written) for version in versions}


def ready(*versions: str) -> dict[str, str]:
    return {version: f"{version}a" for version in versions}


def test_versions_are_ordered_by_number_with_names_below() -> None:
    assert newest_first(["2", "candidate", "10", "beta", "1"]) == ["10", "2", "1", "candidate", "beta"]


BROKEN = {"2": Candidate("2a", "a")}
REWRITTEN = candidates("1") | candidates("2", written="b")
INCOMPLETE = candidates("1") | {"2": Candidate("2a", "a", complete=False)}
PINNED = ModelSettings(Pinned(frozenset({"2"})), {"canary": "10"})


@pytest.mark.parametrize(
    ("settings", "found", "served", "failed", "current", "load", "retire", "new_current"),
    [
        pytest.param(LATEST, candidates("9", "10"), "9", {}, "9", "10", "", "9", id="the latest is loaded"),
        pytest.param(LATEST, candidates("9", "10"), "9 10", {}, "9", "", "9", "10", id="then the old one retires"),
        pytest.param(LATEST, candidates("1", "2"), "", BROKEN, None, "1", "", None, id="a broken one is skipped"),
        pytest.param(LATEST, candidates("1", "2"), "1", BROKEN, "1", "", "", "1", id="and not tried again"),
        pytest.param(LATEST, REWRITTEN, "1", BROKEN, "1", "2", "", "1", id="until it is written again"),
        pytest.param(LATEST, INCOMPLETE, "1", {}, "1", "", "", "1", id="an incomplete one is not loaded"),
        pytest.param(LATEST, INCOMPLETE, "1 2", {}, "2", "", "1", "2", id="but goes on if it is served"),
        pytest.param(LATEST, candidates("1", written="b"), "1", {}, "1", "1", "", "1", id="changed content is loaded"),
        pytest.param(LATEST, candidates("1"), "2", {}, "2", "1", "", "2", id="a removed one is replaced"),
        pytest.param(LATEST, candidates("1"), "1 2", {}, "2", "", "2", "1", id="and then retires"),
        pytest.param(LATEST, {}, "2", {}, "2", "", "2", None, id="a removed model retires"),
        pytest.param(PINNED, candidates("1", "2", "10"), "", {}, None, "10 2", "", None, id="pin and alias are loaded"),
        pytest.param(PINNED, candidates("1", "2", "10"), "2 10", {}, "10", "", "", "2", id="the pin is current"),
        pytest.param(PINNED, candidates("1", "2", "10"), "1 10", BROKEN, "1", "", "", "1", id="no canary is promoted"),
    ],
)
def test_the_plan(
    settings: ModelSettings,
    found: Mapping[str, Candidate],
    served: str,
    failed: Mapping[str, Candidate],
    current: str | None,
    load: str,
    retire: str,
    new_current: str | None,
) -> None:
    plan = plan_loads(settings, found, ready(*served.split()), failed, current=current)
    assert plan == LoadPlan(tuple(load.split()), frozenset(retire.split()), new_current)


@pytest.mark.parametrize(
    ("overrides", "load", "retire"),
    [
        (Overrides(model_unloaded=True), (), {"2", "1"}),
        (Overrides(model_unloaded=True, loaded=frozenset({"1"})), (), {"2"}),
        (Overrides(unloaded=frozenset({"2"})), ("1",), {"2"}),
        (Overrides(loaded=frozenset({"10"})), ("10",), set()),
    ],
)
def test_overrides_take_precedence_over_settings(overrides: Overrides, load: tuple[str, ...], retire: set[str]) -> None:
    found = candidates("1", "2", *(["10"] if overrides.loaded else []))
    served = ready("2") if load else ready("1", "2")
    plan = plan_loads(ModelSettings(Pinned(frozenset({"1", "2"}))), found, served, {}, overrides, "2")
    assert plan.retire == frozenset(retire)
    assert set(load) <= set(plan.load)


@dataclass
class World:
    """A repository and a manager that follows the plans; some contents can't be loaded."""

    found: dict[str, Candidate] = field(default_factory=dict)
    ready: dict[str, str] = field(default_factory=dict)
    failed: dict[str, Candidate] = field(default_factory=dict)
    current: str | None = None

    def settle(self, settings: ModelSettings, overrides: Overrides) -> None:
        """Follows the plans to their end; there is always a version to serve while there was one before."""
        for _ in range(2 * len(VERSIONS) + 1):
            served = set(self.ready)
            plan = plan_loads(settings, self.found, self.ready, self.failed, overrides, self.current)
            assert plan.retire <= served
            assert (plan.current is None) == (not served - plan.retire)
            assert plan.current is None or plan.current in served - plan.retire
            if served and not served - plan.retire:  # all at once only if all were removed or unloaded
                assert (
                    overrides.model_unloaded
                    or not self.found.keys() - overrides.unloaded
                    or served <= overrides.unloaded
                )
            for version in plan.retire:
                del self.ready[version]
            self.current = plan.current
            if not plan.load:
                return
            version = plan.load[0]
            candidate = self.found[version]
            assert candidate.complete
            if candidate.identity.endswith("broken"):
                self.failed[version] = candidate
            else:
                self.ready[version] = candidate.identity
                self.failed.pop(version, None)
        raise AssertionError("the plans do not end")


choices = st.one_of(
    st.integers(1, 3).map(Latest),
    st.just(All()),
    st.sets(st.sampled_from(VERSIONS), min_size=1).map(lambda some: Pinned(frozenset(some))),
)
some_versions = st.sets(st.sampled_from(VERSIONS)).map(frozenset)
settings_ = st.builds(ModelSettings, choices, st.dictionaries(st.just("stable"), st.sampled_from(VERSIONS)))
overrides_ = st.one_of(st.just(Overrides()), st.builds(Overrides, st.booleans(), some_versions, some_versions))
content = st.tuples(st.sampled_from(["good", "better", "broken"]), st.integers(0, 2), st.booleans())
repositories = st.dictionaries(st.sampled_from(VERSIONS), content).map(
    lambda found: {
        version: Candidate(f"{version} {state}", str(written), complete)
        for version, (state, written, complete) in found.items()
    }
)


@given(st.lists(st.tuples(repositories, settings_, overrides_), min_size=1, max_size=5))
def test_plans_end_and_serve_what_the_settings_ask_for(
    history: list[tuple[dict[str, Candidate], ModelSettings, Overrides]],
) -> None:
    world = World()
    for found, settings, overrides in history:
        world.found = found
        world.settle(settings, overrides)
        served = set(world.ready)
        assert not served & overrides.unloaded
        if not found:
            assert not served
        sound = {
            version
            for version, candidate in found.items()
            if candidate.complete and not candidate.identity.endswith("broken") and version not in overrides.unloaded
        }
        assert overrides.loaded & sound <= served
        if overrides.model_unloaded:
            assert served <= overrides.loaded
            continue
        assert set(settings.aliases.values()) & sound <= served
        if sound and not isinstance(settings.choice, Pinned):
            # A newer version that was served before may go on, although its files are no longer sound.
            newest = newest_first(sound | (served & found.keys()))[0]
            assert newest == world.current
        if isinstance(settings.choice, All):
            assert sound <= served
        if isinstance(settings.choice, Pinned):
            assert settings.choice.versions & sound <= served
        # Expected sound versions are served with their current files. (Others go on as they are until replaced.)
        expected: Set[str] = found.keys()
        if isinstance(settings.choice, Pinned):
            expected = settings.choice.versions | set(settings.aliases.values()) | overrides.loaded
        for version in served & sound & expected:
            assert world.ready[version] == found[version].identity


@given(st.lists(repositories, min_size=1, max_size=4), choices)
def test_no_more_than_asked_for_is_served_if_everything_is_sound(
    history: list[dict[str, Candidate]], choice: All | Latest | Pinned
) -> None:
    world = World()
    for found in history:
        world.found = {version: Candidate(version, "a") for version in found}
        world.settle(ModelSettings(choice), Overrides())
    available = newest_first(world.found)
    expected: set[str]
    if isinstance(choice, Latest):
        expected = set(available[: choice.count])
    elif isinstance(choice, All):
        expected = set(available)
    else:
        expected = set(available) & choice.versions
        if not expected:  # the last one served stays
            assert len(world.ready.keys()) <= 1
            return
    assert world.ready.keys() == expected
