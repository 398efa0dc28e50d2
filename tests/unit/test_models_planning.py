"""What is loaded and let go, for whatever there is and whatever is wanted."""

from collections.abc import Set
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_server.models.load_plan import Candidate, Orders, Plan, State, make_plan
from dragoman_server.models.settings import All, Latest, ModelSettings, Pinned
from dragoman_server.models.versions import newest_first

VERSIONS = ["1", "2", "10", "candidate"]


def lies(*versions: str, written: str = "a") -> dict[str, Candidate]:
    return {version: Candidate(f"{version}{written}", written) for version in versions}


def serve(*versions: str, written: str = "a") -> dict[str, State]:
    return {version: State(ready=f"{version}{written}") for version in versions}


def test_versions_are_ordered_by_number_with_texts_below() -> None:
    assert newest_first(["2", "candidate", "10", "beta", "1"]) == ["10", "2", "1", "candidate", "beta"]


def test_the_latest_is_loaded_and_the_one_before_stays_until_it_is() -> None:
    found = lies("9", "10")
    assert make_plan(ModelSettings(), found, serve("9"), current="9") == Plan(("10",), frozenset(), "9")
    assert make_plan(ModelSettings(), found, serve("9", "10"), current="9") == Plan((), frozenset({"9"}), "10")


def test_a_broken_one_is_passed_over_until_it_is_written_again() -> None:
    found = lies("1", "2")
    broken = {"2": State(failed=found["2"])}
    assert make_plan(ModelSettings(), found, broken) == Plan(("1",), frozenset(), None)
    assert make_plan(ModelSettings(), found, broken | serve("1"), current="1") == Plan((), frozenset(), "1")
    found["2"] = Candidate("2b", "b")
    assert make_plan(ModelSettings(), found, broken | serve("1"), current="1") == Plan(("2",), frozenset(), "1")


def test_one_that_is_not_there_as_a_whole_is_left_alone() -> None:
    found = lies("1", "2")
    found["2"] = Candidate("2a", "a", complete=False)
    assert make_plan(ModelSettings(), found, serve("1"), current="1") == Plan((), frozenset(), "1")
    assert make_plan(ModelSettings(), found, serve("1", "2"), current="2") == Plan((), frozenset({"1"}), "2")


def test_changed_content_is_loaded_in_the_place_of_the_old() -> None:
    assert make_plan(ModelSettings(), lies("1", written="b"), serve("1"), current="1") == Plan(("1",), frozenset(), "1")


def test_what_is_gone_is_let_go_once_there_is_another() -> None:
    states = serve("2")
    assert make_plan(ModelSettings(), lies("1"), states, current="2") == Plan(("1",), frozenset(), "2")
    assert make_plan(ModelSettings(), lies("1"), states | serve("1"), current="2") == Plan((), frozenset({"2"}), "1")
    assert make_plan(ModelSettings(), {}, states, current="2") == Plan((), frozenset({"2"}), None)


def test_pinned_versions_and_aliases_are_served_side_by_side_and_the_pinned_is_current() -> None:
    settings = ModelSettings(Pinned(frozenset({"2"})), {"canary": "10"})
    found = lies("1", "2", "10")
    assert make_plan(settings, found, {}) == Plan(("10", "2"), frozenset(), None)
    assert make_plan(settings, found, serve("2", "10"), current="10") == Plan((), frozenset(), "2")
    # The pinned one is broken: what was current stays, and the canary is not promoted.
    broken = {"2": State(failed=found["2"])} | serve("1", "10")
    assert make_plan(settings, found, broken, current="1").current == "1"


@pytest.mark.parametrize(
    ("orders", "load", "retire"),
    [
        (Orders(out=True), (), {"2", "1"}),
        (Orders(out=True, extra=frozenset({"1"})), (), {"2"}),
        (Orders(held=frozenset({"2"})), ("1",), {"2"}),
        (Orders(extra=frozenset({"10"})), ("10",), set()),
    ],
)
def test_orders_go_before_settings(orders: Orders, load: tuple[str, ...], retire: set[str]) -> None:
    found = {version: each for version, each in lies("1", "2", "10").items() if version != "10" or orders.extra}
    states = serve("2") if load else serve("1", "2")
    plan = make_plan(ModelSettings(Pinned(frozenset({"1", "2"}))), found, states, orders, "2")
    assert plan.retire == frozenset(retire)
    assert set(load) <= set(plan.load)


@dataclass
class World:
    """A repository, and what a manager makes of it that does as planned; some contents can't be loaded."""

    found: dict[str, Candidate] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)
    current: str | None = None

    def settle(self, settings: ModelSettings, orders: Orders) -> None:
        """Follows the plans to their end; whoever was served is never left without a version on the way."""
        for _ in range(2 * len(VERSIONS) + 1):
            served = self.served()
            plan = make_plan(settings, self.found, self.states, orders, self.current)
            assert plan.retire <= served
            assert (plan.current is None) == (not served - plan.retire)
            assert plan.current is None or plan.current in served - plan.retire
            if served and not served - plan.retire:  # all at once only where all is gone, or was told to go
                assert orders.out or not self.found.keys() - orders.held or served <= orders.held
            for version in plan.retire:
                self.states[version] = State(failed=self.states[version].failed)
            self.current = plan.current
            if not plan.load:
                return
            version = plan.load[0]
            candidate = self.found[version]
            assert candidate.complete
            before = self.states.get(version, State())
            loads = not candidate.identity.endswith("broken")
            self.states[version] = State(candidate.identity) if loads else State(before.ready, candidate)
        raise AssertionError("the plans come to no end")

    def served(self) -> set[str]:
        return {version for version, state in self.states.items() if state.ready is not None}


choices = st.one_of(
    st.integers(1, 3).map(Latest),
    st.just(All()),
    st.sets(st.sampled_from(VERSIONS), min_size=1).map(lambda some: Pinned(frozenset(some))),
)
some_versions = st.sets(st.sampled_from(VERSIONS)).map(frozenset)
settings_ = st.builds(ModelSettings, choices, st.dictionaries(st.just("stable"), st.sampled_from(VERSIONS)))
orders_ = st.one_of(st.just(Orders()), st.builds(Orders, st.booleans(), some_versions, some_versions))
content = st.tuples(st.sampled_from(["good", "better", "broken"]), st.integers(0, 2), st.booleans())
repositories = st.dictionaries(st.sampled_from(VERSIONS), content).map(
    lambda found: {
        version: Candidate(f"{version} {what}", str(written), complete)
        for version, (what, written, complete) in found.items()
    }
)


@given(st.lists(st.tuples(repositories, settings_, orders_), min_size=1, max_size=5))
def test_plans_come_to_an_end_and_serve_what_is_wanted(
    history: list[tuple[dict[str, Candidate], ModelSettings, Orders]],
) -> None:
    world = World()
    for found, settings, orders in history:
        world.found = found
        world.settle(settings, orders)
        served = world.served()
        assert not served & orders.held
        if not found:
            assert not served
        sound = {
            version
            for version, candidate in found.items()
            if candidate.complete and not candidate.identity.endswith("broken") and version not in orders.held
        }
        assert orders.extra & sound <= served
        if orders.out:
            assert served <= orders.extra
            continue
        assert set(settings.aliases.values()) & sound <= served
        if sound and not isinstance(settings.choice, Pinned):
            # What is later and was served before may go on, although its files are not sound any more.
            newest = newest_first(sound | (served & found.keys()))[0]
            assert newest == world.current
        if isinstance(settings.choice, All):
            assert sound <= served
        if isinstance(settings.choice, Pinned):
            assert settings.choice.versions & sound <= served
        # What is wanted and sound is served as it lies there now, not as it was. (What is not wanted goes on as it is
        # where nothing takes its place.)
        wanted: Set[str] = found.keys()
        if isinstance(settings.choice, Pinned):
            wanted = settings.choice.versions | set(settings.aliases.values()) | orders.extra
        for version in served & sound & wanted:
            assert world.states[version].ready == found[version].identity


@given(st.lists(repositories, min_size=1, max_size=4), choices)
def test_no_more_is_served_than_wanted_where_everything_is_sound(
    history: list[dict[str, Candidate]], choice: All | Latest | Pinned
) -> None:
    world = World()
    for found in history:
        world.found = {version: Candidate(version, "a") for version in found}
        world.settle(ModelSettings(choice), Orders())
    there = newest_first(world.found)
    expected: set[str]
    if isinstance(choice, Latest):
        expected = set(there[: choice.count])
    elif isinstance(choice, All):
        expected = set(there)
    else:
        expected = set(there) & choice.versions
        if not expected:  # the last that was served stays
            assert len(world.served()) <= 1
            return
    assert world.served() == expected
