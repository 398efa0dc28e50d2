"""What lies in a model repository, or in a single bundle, at this moment."""

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

LOST_AND_FOUND = "lost+found"  # volumes have it at their root
MISNAMED = "passed over: names of models and versions begin with a letter or a digit; '.', '_' and '-' may follow, too"


@dataclass(frozen=True, slots=True)
class Found:
    """The directory of a version.

    Attributes:
        path: where it is, links followed.
        content: changes with what the manifest says of its files.
        stamp: changes whenever any of its files is written.
        problem: what is still missing of it, in one sentence; empty where it looks complete.
    """

    path: Path
    content: str
    stamp: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that was found at one time.

    Attributes:
        models: the versions of each.
        settings: what repository.yaml says; None where it is wrong, as where there is nothing of the default model,
            and what it said before stays.
        problem: what is wrong with the repository as a whole, in one sentence.
    """

    models: Mapping[str, Mapping[str, Found]] = field(default_factory=dict)
    settings: RepositorySettings | None = field(default_factory=RepositorySettings)
    problem: str = ""


class RepositoryError(Exception):
    """The repository can't be looked at now; the message says why."""


class Source(Protocol):
    """Where models come from."""

    path: Path

    def scan(self) -> Snapshot:
        """Raises RepositoryError."""


class SingleBundle:
    """One bundle, under the name and the version that its manifest gives it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def scan(self) -> Snapshot:
        try:
            root, manifest = load_manifest(self.path)
        except BundleError as error:
            raise RepositoryError(str(error)) from None
        found = replace(_look(root), problem="")  # what is missing shows when it is loaded
        return Snapshot({manifest.name: {manifest.version: found}}, RepositorySettings(default=manifest.name))


class Repository:
    """A directory with NAME/VERSION/, a bundle each, and perhaps a repository.yaml.

    Names that begin with a dot are passed over, so that copies can be made under such a name and renamed when they are
    complete, and so that mounted volumes of Kubernetes may hold their "..data".
    Other directories with names that no model or version may have are told, once each.
    """

    def __init__(self, path: Path, config: ServerConfig) -> None:
        self.path = path
        self._config = config
        self._before: dict[Path, Found] = {}
        self._told: set[Path] = set()

    def scan(self) -> Snapshot:
        try:
            names = self._folders(self.path)
        except OSError as error:
            raise RepositoryError(f"model repository {self.path} can't be opened: {error.strerror or error}") from None
        models = {name: self._versions(self.path / name) for name in names}
        self._before = {found.path: found for versions in models.values() for found in versions.values()}
        settings, problem = None, ""
        try:
            said = read_settings(self.path, self._config)
            if missing := _missing(said, models):
                problem = f"repository.yaml names {', '.join(missing)}, of which there is nothing in {self.path}"
            if said.default not in missing:
                settings = said
        except SettingsError as error:
            problem = str(error)
        return Snapshot(models, settings, problem)

    def _versions(self, folder: Path) -> dict[str, Found]:
        """Of a model whose directory may vanish meanwhile."""
        try:
            return {version: _look(folder / version, self._before) for version in self._folders(folder)}
        except OSError:
            return {}

    def _folders(self, parent: Path) -> list[str]:
        """Names of the directories that count."""
        folders = sorted(entry for entry in parent.iterdir() if entry.is_dir())
        for folder in folders:
            hidden = folder.name.startswith(".") or folder.name == LOST_AND_FOUND
            if not is_name(folder.name) and not hidden and folder not in self._told:
                self._told.add(folder)
                log.warning(MISNAMED, path=str(folder))
        return [folder.name for folder in folders if is_name(folder.name)]


def _missing(settings: RepositorySettings, models: Mapping[str, Mapping[str, Found]]) -> list[str]:
    """Models, and versions as NAME@VERSION, that settings speak of and that are not there."""
    missing = {*settings.models, *([settings.default] if settings.default else [])} - models.keys()
    for name in settings.models.keys() & models.keys():
        model = settings.models[name]
        pinned = model.choice.versions if isinstance(model.choice, Pinned) else frozenset()
        missing |= {f"{name}@{version}" for version in {*pinned, *model.aliases.values()} - models[name].keys()}
    return sorted(missing)


def _look(folder: Path, before: Mapping[Path, Found] | None = None) -> Found:
    """Looks at a version's directory.

    Args:
        before: what was found the last time; files that have not changed are not read again.
    """
    try:
        path = folder.resolve(strict=True)
        stamp = _stamp(path)
        known = (before or {}).get(path)
        if known is not None and known.stamp == stamp:
            return known
        manifest = (path / MANIFEST_FILE).read_bytes()
    except FileNotFoundError:
        return Found(folder, "", "", f"there is no {MANIFEST_FILE} yet")
    except OSError as error:
        return Found(folder, "", "", f"it can't be read: {error.strerror or error}")
    content = hashlib.sha256(manifest).hexdigest()
    return Found(path, content, stamp, _incomplete(path, manifest))


def _stamp(path: Path) -> str:
    """Changes when a file is added, removed, or written, or a link comes to point elsewhere."""
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
    """What is missing of a bundle that may still be on its way. What is wrong for good shows when it is loaded."""
    try:
        document: Any = json.loads(manifest)
    except (ValueError, RecursionError):
        return f"{MANIFEST_FILE} is not there as a whole"
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
