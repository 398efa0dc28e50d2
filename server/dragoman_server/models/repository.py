"""Scans a model repository, or a single bundle, for models and versions."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import structlog

from dragoman_server.bundle.load import BundleError, load_manifest
from dragoman_server.bundle.manifest import MANIFEST_FILE
from dragoman_server.config import ServerConfig
from dragoman_server.models.settings import Pinned, RepositorySettings, SettingsError, read_settings
from dragoman_server.models.versions import is_name

log = structlog.get_logger()

SHIPPED_MODELS = Path(__file__).resolve().parents[1] / "bundles"  # the repository in this package
LOST_AND_FOUND = "lost+found"  # in the root of volumes
MISNAMED = (
    "ignored: names of models and versions start with a letter or digit, followed by letters, digits, '.', '_' or '-'"
)


@dataclass(frozen=True, slots=True)
class VersionFiles:
    """The directory of a version.

    Attributes:
        path: Its path, with links resolved.
        content: Hash of the manifest, and so of what it says about the files.
        stamp: Hash of names, sizes and times; changes whenever a file is written.
        problem: One sentence on what is still missing; empty if it looks complete.
    """

    path: Path
    content: str
    stamp: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class RepositoryScan:
    """The result of one scan.

    Attributes:
        models: The versions of each model.
        settings: The contents of repository.yaml. None if it is wrong or its default model does not exist; then the
            previous settings stay in force.
        problem: One sentence on what is wrong with the repository as a whole; may be empty.
    """

    models: Mapping[str, Mapping[str, VersionFiles]] = field(default_factory=dict)
    settings: RepositorySettings | None = field(default_factory=RepositorySettings)
    problem: str = ""


class RepositoryError(Exception):
    """The repository can't be scanned now; the message says why."""


class ModelSource(Protocol):
    """A place that models are loaded from."""

    path: Path

    def scan(self) -> RepositoryScan:
        """Lists models and versions.

        Raises:
            RepositoryError: The source can't be read.
        """


class SingleBundle:
    """A single bundle, served under the name and version in its manifest."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def scan(self) -> RepositoryScan:
        try:
            root, manifest = load_manifest(self.path)
        except BundleError as error:
            raise RepositoryError(str(error)) from None
        files = replace(_inspect(root), problem="")  # loading reports missing files
        return RepositoryScan({manifest.name: {manifest.version: files}}, RepositorySettings(default=manifest.name))


class Repository:
    """A directory with a bundle in each NAME/VERSION/, and optionally a repository.yaml.

    Names that start with a dot are ignored, so that copies can be made under such a name and renamed when they are
    complete, and so that volumes mounted by Kubernetes may contain their "..data". Other directories whose names are
    not valid for a model or version are logged, once each.
    """

    def __init__(self, path: Path, config: ServerConfig) -> None:
        self.path = path
        self._config = config
        self._models: Mapping[str, Mapping[str, VersionFiles]] = {}  # of the previous scan
        self._previous: dict[Path, VersionFiles] = {}
        self._logged: set[Path] = set()

    def scan(self) -> RepositoryScan:
        try:
            names = self._folders(self.path)
        except OSError as error:
            raise RepositoryError(f"model repository {self.path} can't be opened: {error.strerror or error}") from None
        models: dict[str, Mapping[str, VersionFiles]] = {}
        problems: list[str] = []
        for name in names:
            try:
                models[name] = self._versions(self.path / name)
            except OSError as error:  # perhaps for a moment: what it had stays
                models[name] = self._models.get(name, {})
                problems.append(f"{self.path / name} can't be read: {error.strerror or error}")
        self._models = models
        self._previous = {files.path: files for versions in models.values() for files in versions.values()}
        try:
            settings = read_settings(self.path, self._config)
        except SettingsError as error:
            return RepositoryScan(models, None, "; ".join([str(error), *problems]))
        if missing := _missing(settings, models):
            problems.append(f"repository.yaml names {', '.join(missing)}, which {self.path} does not contain")
        return RepositoryScan(models, None if settings.default in missing else settings, "; ".join(problems))

    def _versions(self, folder: Path) -> dict[str, VersionFiles]:
        """Scans the versions of a model; its directory may vanish meanwhile.

        Raises:
            OSError: The directory is there, but can't be read.
        """
        try:
            return {version: _inspect(folder / version, self._previous) for version in self._folders(folder)}
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def _folders(self, parent: Path) -> list[str]:
        """Returns the names of the directories that may be models or versions."""
        folders = sorted(entry for entry in parent.iterdir() if entry.is_dir())
        for folder in folders:
            hidden = folder.name.startswith(".") or folder.name == LOST_AND_FOUND
            if not is_name(folder.name) and not hidden and folder not in self._logged:
                self._logged.add(folder)
                log.warning(MISNAMED, path=str(folder))
        return [folder.name for folder in folders if is_name(folder.name)]


def _missing(settings: RepositorySettings, models: Mapping[str, Mapping[str, VersionFiles]]) -> list[str]:
    """Returns the models, and versions as NAME@VERSION, that the settings name but the repository lacks."""
    missing = {*settings.models, *([settings.default] if settings.default else [])} - models.keys()
    for name in settings.models.keys() & models.keys():
        model = settings.models[name]
        pinned = model.choice.versions if isinstance(model.choice, Pinned) else frozenset()
        missing |= {f"{name}@{version}" for version in {*pinned, *model.aliases.values()} - models[name].keys()}
    return sorted(missing)


def _inspect(folder: Path, previous: Mapping[Path, VersionFiles] | None = None) -> VersionFiles:
    """Inspects a version's directory.

    Args:
        previous: The result of the previous scan; unchanged files are not read again.
    """
    try:
        path = folder.resolve(strict=True)
        stamp = _stamp(path)
        known = (previous or {}).get(path)
        if known is not None and known.stamp == stamp:
            return known
        manifest = (path / MANIFEST_FILE).read_bytes()
    except FileNotFoundError:
        return VersionFiles(folder, "", "", f"{MANIFEST_FILE} is missing")
    except OSError as error:
        return VersionFiles(folder, "", "", f"it can't be read: {error.strerror or error}")
    content = hashlib.sha256(manifest).hexdigest()
    return VersionFiles(path, content, stamp, _incomplete(path, manifest))


def _stamp(path: Path) -> str:
    """Returns a hash that changes when a file is added, removed or written, or a link is redirected."""
    files: list[tuple[str | int, ...]] = []
    for entry in sorted(path.iterdir()):
        try:
            status = entry.stat()
        except OSError:
            files.append((entry.name,))
        else:
            files.append((entry.name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
    return hashlib.sha256(repr(files).encode()).hexdigest()


def _incomplete(path: Path, manifest: bytes) -> str:
    """Returns what is missing from a bundle that may still be being copied. Loading reports any other fault."""
    try:
        document: Any = json.loads(manifest)
    except (ValueError, RecursionError):
        return f"{MANIFEST_FILE} is incomplete"
    files = document.get("files") if isinstance(document, dict) else None
    for name, file in files.items() if isinstance(files, dict) else ():
        expected = file.get("bytes") if isinstance(file, dict) else None
        try:
            actual = (path / name).stat().st_size
        except (OSError, ValueError):
            return f"{name} is missing"
        if actual != expected:
            return f"{name} has {actual} of {expected} bytes"
    return ""
