"""What the manager knows of each model, and the reports that it makes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.models.load_plan import Candidate, LoadPlan, Overrides, plan_loads
from dragoman_server.models.loading import LoadedVersion
from dragoman_server.models.registry import ModelVersions, UnservedVersion
from dragoman_server.models.repository import VersionFiles
from dragoman_server.models.settings import ModelSettings
from dragoman_server.models.versions import newest_first


@dataclass(slots=True)
class VersionState:
    """The outcome of loading a version.

    Attributes:
        loaded: The version that is served.
        identity: Identity of `loaded`.
        failed: The candidate that could not be loaded.
        problem: Why `failed` could not be loaded.
    """

    loaded: LoadedVersion | None = None
    identity: str | None = None
    failed: Candidate | None = None
    problem: str = ""

    def take_loaded(self) -> LoadedVersion:
        """Returns the loaded version, which is no longer served."""
        loaded = self.loaded
        assert loaded is not None, "only served versions are retired"
        self.loaded = self.identity = None
        return loaded


@dataclass(slots=True)
class ModelState:
    """What is known of a model.

    Attributes:
        files: The versions in the repository.
        versions: The versions that were tried.
        loading: Versions that are loading or about to be.
    """

    files: Mapping[str, VersionFiles] = field(default_factory=dict)
    settings: ModelSettings = field(default_factory=ModelSettings)
    versions: dict[str, VersionState] = field(default_factory=dict)
    overrides: Overrides = field(default_factory=Overrides)
    current: str | None = None
    loading: tuple[str, ...] = ()
    _problems: Mapping[str, str] = field(default_factory=dict)  # those that `new_problems` has returned

    def candidates(self) -> dict[str, Candidate]:
        options = repr(sorted(self.settings.options.items()))
        return {
            version: Candidate(f"{files.path} {files.content} {options}", files.stamp, not files.problem)
            for version, files in self.files.items()
        }

    def plan(self) -> LoadPlan:
        return self._plan({version: state.failed for version, state in self.versions.items() if state.failed})

    def _plan(self, failed: Mapping[str, Candidate]) -> LoadPlan:
        ready = {version: state.identity or "" for version, state in self.versions.items() if state.loaded}
        return plan_loads(self.settings, self.candidates(), ready, failed, self.overrides, self.current)

    def registry_entry(self) -> ModelVersions:
        """Returns what requests may name of this model."""
        served = {version: state.loaded.served for version, state in self.versions.items() if state.loaded}
        unserved = {}
        for version, files in self.files.items():
            if version in served:
                continue
            if version in self.loading:
                unserved[version] = UnservedVersion(pb.MODEL_STATE_LOADING)
            elif problem := files.problem or self.problem(version):
                unserved[version] = UnservedVersion(pb.MODEL_STATE_FAILED, problem)
        return ModelVersions(self.current, served, unserved, self.settings.aliases)

    def problem(self, version: str) -> str:
        """Returns why the files of a version, as they are now, could not be loaded; "" if that was not tried."""
        state = self.versions.get(version)
        if state is not None and state.failed is not None and state.failed == self.candidates().get(version):
            return state.problem
        return ""

    def refused(self) -> list[str]:
        """Returns the versions that should be served but could not be loaded as they are now."""
        return [version for version in self._plan({}).load if self.problem(version)]

    def new_problems(self) -> dict[str, str]:
        """Returns what is wrong with the files of versions and was not returned before."""
        problems = {version: files.problem for version, files in self.files.items() if files.problem}
        new = {version: problem for version, problem in problems.items() if problem != self._problems.get(version)}
        self._problems = problems
        return new

    def forget_failures(self) -> None:
        """Lets versions that could not be loaded be tried again."""
        for state in self.versions.values():
            state.failed, state.problem = None, ""


@dataclass(frozen=True, slots=True)
class VersionReport:
    """The status of a version, for administrators.

    Attributes:
        problem: Why it is not served, or why its current files are not.
        held: Whether it was unloaded by hand.
        loaded: The version that serves or finishes its requests; None if there is none.
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


def report_versions(
    name: str, model: ModelState, default: bool, retiring: Sequence[LoadedVersion]
) -> list[VersionReport]:
    """Reports on all versions of a model, newest first.

    Args:
        default: Whether it is the default model.
        retiring: Versions of any model that finish their requests.
    """
    entry = model.registry_entry()
    retiring = [loaded for loaded in retiring if loaded.name == name]
    reports = []
    for version in newest_first({*model.files, *entry.served, *(loaded.version for loaded in retiring)}):
        state = model.versions.get(version, VersionState())
        files = model.files.get(version)
        aliases = tuple(sorted(alias for alias, target in model.settings.aliases.items() if target == version))
        problem = (files.problem if files else "") or model.problem(version)
        held = version in model.overrides.unloaded or (model.overrides.model_unloaded and version not in entry.served)
        current = version == model.current
        finishing = [loaded for loaded in retiring if loaded.version == version]
        if state.loaded:
            ready = pb.MODEL_STATE_READY
            problem = problem and f"the current files could not replace it: {problem}"
            reports.append(
                VersionReport(name, version, ready, problem, aliases, current, current and default, held, state.loaded)
            )
        elif not finishing or version in entry.unserved:
            unserved = entry.unserved.get(version)
            reported = pb.MODEL_STATE_UNLOADED if unserved is None else unserved.state
            reports.append(VersionReport(name, version, reported, problem, aliases, held=held))
        reports += [
            VersionReport(name, version, pb.MODEL_STATE_RETIRING, held=held, loaded=loaded) for loaded in finishing
        ]
    return reports
