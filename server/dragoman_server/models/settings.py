"""repository.yaml: which versions of a repository's models to serve, under which names and with which options.

default: g2p-en              # the model for requests that name none; not needed for a repository of one model
models:                      # of a model that is not listed, the latest version is served
  g2p-en:
    versions: latest         # or {latest: 2} for the two latest, or all, or a list: [2, 3]
    aliases: {stable: 2}     # requests for g2p-en@stable get version 2, which is served in addition to those above
    max_rows: 16             # server options for this model only
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dragoman_server.config import ServerConfig
from dragoman_server.config.documents import Document, DocumentError
from dragoman_server.config.sources import ConfigError, Setting, check
from dragoman_server.models.versions import LATEST, is_name, is_number

SETTINGS_FILE = "repository.yaml"

# The server options that a model may override.
OPTIONS = frozenset(
    {
        "device",
        "engines",
        "threads_per_engine",
        "max_rows",
        "max_beam_size",
        "max_hypotheses",
        "max_source_tokens",
        "max_target_tokens",
        "max_stop_sequences",
        "max_batch_items",
        "queue_size",
        "queue_tokens",
        "batch_slowdown",
    }
)


class SettingsError(Exception):
    """repository.yaml can't be used; the message is one sentence on why."""


@dataclass(frozen=True, slots=True)
class Latest:
    """Serves the `count` latest versions."""

    count: int = 1


@dataclass(frozen=True, slots=True)
class All:
    """Serves every version."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """Serves the listed versions."""

    versions: frozenset[str]


VersionChoice = Latest | All | Pinned


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The settings of one model.

    Attributes:
        choice: Which versions are served.
        aliases: The version of each alias; those versions are served too.
        options: Server options that this model overrides.
    """

    choice: VersionChoice = Latest()
    aliases: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RepositorySettings:
    """The contents of repository.yaml; the defaults if it is empty or missing."""

    default: str | None = None
    models: Mapping[str, ModelSettings] = field(default_factory=dict)

    def of(self, model: str) -> ModelSettings:
        return self.models.get(model, ModelSettings())


def read_settings(folder: Path, config: ServerConfig) -> RepositorySettings:
    """Reads the repository.yaml of a repository; the file is optional.

    Args:
        config: The server's options, which models may override.

    Raises:
        SettingsError: The file can't be read, or is invalid.
    """
    path = folder / SETTINGS_FILE
    try:
        document = Document(path)
        value = document.value(document.root)
    except FileNotFoundError:
        return RepositorySettings()
    except OSError as error:
        raise SettingsError(f"{path} can't be read: {error.strerror or error}") from None
    except DocumentError as error:
        raise SettingsError(str(error)) from None
    try:
        return _repository(value, config)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None


def options_of(config: ServerConfig, settings: ModelSettings) -> ServerConfig:
    """Returns the server's options with those that a model overrides.

    Raises:
        ValidationError: A value is not allowed.
    """
    if not settings.options:
        return config
    return ServerConfig.model_validate(config.model_dump() | dict(settings.options))


def _repository(document: Any, config: ServerConfig) -> RepositorySettings:
    if document is None:
        return RepositorySettings()
    table = _table(document, "it")
    _check_keys(table, {"default", "models"}, "")
    default = table.get("default")
    if default is not None and not (isinstance(default, str) and is_name(default)):
        raise SettingsError(f"default: {default!r} is not a model name")
    models = {}
    for name, entry in _table(table.get("models"), "models").items():
        if not (isinstance(name, str) and is_name(name)):
            raise SettingsError(f"models: {name!r} is not a model name")
        models[name] = _model(_table(entry, f"models.{name}"), f"models.{name}.", config)
    return RepositorySettings(default, models)


def _model(table: dict[Any, Any], where: str, config: ServerConfig) -> ModelSettings:
    _check_keys(table, {"versions", "aliases", *OPTIONS}, where)
    aliases = {}
    for alias, version in _table(table.get("aliases"), f"{where}aliases").items():
        if not (isinstance(alias, str) and is_name(alias)) or is_number(alias) or alias == LATEST:
            raise SettingsError(f"{where}aliases: {_yaml(alias)} can't be an alias")
        aliases[alias] = _version(version, f"{where}aliases.{alias}")
    options = {key: value for key, value in table.items() if key in OPTIONS}
    try:
        check({key: Setting(value, where, f"{where}{key}") for key, value in options.items()}, ServerConfig)
    except ConfigError as error:
        raise SettingsError(str(error)) from None
    settings = ModelSettings(_choice(table.get("versions", LATEST), f"{where}versions"), aliases, options)
    try:
        options_of(config, settings)
    except ValidationError as error:
        first = error.errors()[0]
        raise SettingsError(f"{where}{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return settings


def _choice(value: Any, where: str) -> VersionChoice:
    if value == LATEST:
        return Latest()
    if value == "all":
        return All()
    if isinstance(value, list) and value:
        return Pinned(frozenset(_version(item, where) for item in value))
    if isinstance(value, dict) and set(value) == {LATEST}:
        count = value[LATEST]
        if type(count) is int and count >= 1:
            return Latest(count)
    raise SettingsError(
        f"{where}: {_yaml(value)} is none of latest, {{latest: N}} with a whole number, all, or a list of versions"
    )


def _version(value: Any, where: str) -> str:
    if type(value) is int and value >= 0:
        return str(value)
    if isinstance(value, float | date):
        raise SettingsError(f'{where}: {value} is ambiguous as a version; write it in quotes, "{value}"')
    if isinstance(value, str) and is_name(value):
        return value
    raise SettingsError(f"{where}: {_yaml(value)} can't be a version")


def _table(value: Any, where: str) -> dict[Any, Any]:
    """Returns a mapping; null is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SettingsError(f"{where} must be a mapping")
    return value


def _check_keys(table: dict[Any, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise SettingsError(f"{where}{key} is not a known key; the keys here are {', '.join(sorted(known))}")


def _yaml(value: Any) -> str:
    """Formats a value as in YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value} (a date, unless it is in quotes)" if isinstance(value, date) else repr(value)
