"""What is known of models while they come and go, and what is told of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.models.load_plan import Candidate, Orders, Plan, State, make_plan
from dragoman_server.models.loading import LoadedVersion
from dragoman_server.models.registry import Absent, Route
from dragoman_server.models.repository import Found
from dragoman_server.models.settings import ModelSettings
from dragoman_server.models.versions import newest_first


@dataclass(slots=True)
class Version:
    """What became of a version that was tried."""

    loaded: LoadedVersion | None = None
    identity: str | None = None  # of `loaded`
    failed: Candidate | None = None
    problem: str = ""  # of `failed`


@dataclass(slots=True)
class Model:
    """What is known of a model."""

    found: Mapping[str, Found] = field(default_factory=dict)
    settings: ModelSettings = field(default_factory=ModelSettings)
    versions: dict[str, Version] = field(default_factory=dict)
    orders: Orders = field(default_factory=Orders)
    current: str | None = None
    loading: tuple[str, ...] = ()
    told: Mapping[str, str] = field(default_factory=dict)  # what is wrong with versions, as last logged

    def candidates(self) -> dict[str, Candidate]:
        options = repr(sorted(self.settings.options.items()))
        return {
            version: Candidate(f"{found.path} {found.content} {options}", found.stamp, not found.problem)
            for version, found in self.found.items()
        }

    def plan(self) -> Plan:
        states = {
            version: State(state.identity if state.loaded else None, state.failed)
            for version, state in self.versions.items()
        }
        return make_plan(self.settings, self.candidates(), states, self.orders, self.current)

    def route(self) -> Route:
        served = {version: state.loaded.served for version, state in self.versions.items() if state.loaded}
        absent = {}
        for version, found in self.found.items():
            if version in served:
                continue
            if version in self.loading:
                absent[version] = Absent(pb.MODEL_STATE_LOADING)
            elif problem := found.problem or self.problem(version):
                absent[version] = Absent(pb.MODEL_STATE_FAILED, problem)
        return Route(self.current, served, absent, self.settings.aliases)

    def problem(self, version: str) -> str:
        """Why the version as it lies there now is not served, or the version before it still is."""
        state = self.versions.get(version)
        if state is not None and state.failed is not None and state.failed == self.candidates().get(version):
            return state.problem
        return ""

    def refused(self) -> list[str]:
        """Versions that would be loaded now, had that not been tried in vain."""
        untried = {version: State(state.identity if state.loaded else None) for version, state in self.versions.items()}
        plan = make_plan(self.settings, self.candidates(), untried, self.orders, self.current)
        return [version for version in plan.load if self.problem(version)]

    def forget_failures(self) -> None:
        """What could not be loaded may be tried again."""
        for state in self.versions.values():
            state.failed, state.problem = None, ""


@dataclass(frozen=True, slots=True)
class Report:
    """What is to be told of a version.

    Attributes:
        problem: why it is not served, or why the files there now are not.
        held: it was unloaded by hand.
        loaded: what serves, or finishes its requests; None where nothing does.
    """

    model: str
    version: str
    state: pb.ModelState
    problem: str = ""
    aliases: tuple[str, ...] = ()
    current: bool = False
    default: bool = False
    held: bool = False
    loaded: LoadedVersion | None = None


def describe(name: str, model: Model, default: bool, retiring: Sequence[LoadedVersion]) -> list[Report]:
    """Reports of all versions of a model, the latest first.

    Args:
        default: whether it answers those who name no model.
        retiring: versions of any model that finish their requests.
    """
    route = model.route()
    leaving = [loaded for loaded in retiring if loaded.name == name]
    reports = []
    for version in newest_first({*model.found, *route.served, *(loaded.version for loaded in leaving)}):
        state = model.versions.get(version, Version())
        found = model.found.get(version)
        aliases = tuple(sorted(alias for alias, meant in model.settings.aliases.items() if meant == version))
        problem = (found.problem if found else "") or model.problem(version)
        held = version in model.orders.held or (model.orders.out and version not in route.served)
        current = version == model.current
        gone = [loaded for loaded in leaving if loaded.version == version]
        if state.loaded:
            ready = pb.MODEL_STATE_READY
            problem = problem and f"what is there now could not take its place: {problem}"
            reports.append(
                Report(name, version, ready, problem, aliases, current, current and default, held, state.loaded)
            )
        elif not gone or version in route.absent:
            absent = route.absent.get(version, Absent(pb.MODEL_STATE_UNLOADED)).state
            reports.append(Report(name, version, absent, problem, aliases, held=held))
        reports += [Report(name, version, pb.MODEL_STATE_RETIRING, held=held, loaded=loaded) for loaded in gone]
    return reports
