"""repository.yaml: which versions of a repository's models are served, under which names, and with which options.

default: g2p-en              # answers requests that name no model; a repository of one model needs no such line
models:                      # a model that is not here is served with its latest version
  g2p-en:
    versions: latest         # or {latest: 2} for the two latest, or all, or a list of some: [2, 3]
    aliases: {stable: 2}     # requests for g2p-en@stable get version 2, which is served beside those above
    max_rows: 16             # and other options of the server, for this model alone
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

# What a model may have its own values of.
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
    }
)


class SettingsError(Exception):
    """repository.yaml can't be used; the message says why in one sentence."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The so many latest versions."""

    count: int = 1


@dataclass(frozen=True, slots=True)
class All:
    """Every version there is."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """These versions."""

    versions: frozenset[str]


Choice = Latest | All | Pinned


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What is said of one model.

    Attributes:
        choice: the versions that are served.
        aliases: the version that each means; those are served too.
        options: the server's options that this model has its own values of.
    """

    choice: Choice = Latest()
    aliases: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RepositorySettings:
    """What repository.yaml says; the same as none where it is empty."""

    default: str | None = None
    models: Mapping[str, ModelSettings] = field(default_factory=dict)

    def of(self, model: str) -> ModelSettings:
        return self.models.get(model, ModelSettings())


def read_settings(folder: Path, config: ServerConfig) -> RepositorySettings:
    """Reads the repository.yaml of a repository, which need not have one.

    Args:
        config: the server's, of which models may have options of their own.

    Raises:
        SettingsError: it can't be read, or what stands in it makes no sense.
    """
    path = folder / SETTINGS_FILE
    try:
        document = Document(path)
        told = document.value(document.root)
    except FileNotFoundError:
        return RepositorySettings()
    except OSError as error:
        raise SettingsError(f"{path} can't be read: {error.strerror or error}") from None
    except DocumentError as error:
        raise SettingsError(str(error)) from None
    try:
        return _repository(told, config)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None


def options_of(config: ServerConfig, settings: ModelSettings) -> ServerConfig:
    """The server's options as they are for one model.

    Raises:
        ValidationError: a value is not allowed.
    """
    if not settings.options:
        return config
    return ServerConfig.model_validate(config.model_dump() | dict(settings.options))


def _repository(document: Any, config: ServerConfig) -> RepositorySettings:
    if document is None:
        return RepositorySettings()
    table = _table(document, "it")
    _only(table, {"default", "models"}, "")
    default = table.get("default")
    if default is not None and not (isinstance(default, str) and is_name(default)):
        raise SettingsError(f"default: {default!r} is not the name of a model")
    models = {}
    for name, entry in _table(table.get("models"), "models").items():
        if not (isinstance(name, str) and is_name(name)):
            raise SettingsError(f"models: {name!r} is not the name of a model")
        models[name] = _model(_table(entry, f"models.{name}"), f"models.{name}.", config)
    return RepositorySettings(default, models)


def _model(table: dict[Any, Any], where: str, config: ServerConfig) -> ModelSettings:
    _only(table, {"versions", "aliases", *OPTIONS}, where)
    aliases = {}
    for alias, version in _table(table.get("aliases"), f"{where}aliases").items():
        if not (isinstance(alias, str) and is_name(alias)) or is_number(alias) or alias == LATEST:
            raise SettingsError(f"{where}aliases: {_spelled(alias)} can't be an alias")
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


def _choice(value: Any, where: str) -> Choice:
    if value == LATEST:
        return Latest()
    if value == "all":
        return All()
    if isinstance(value, list) and value:
        return Pinned(frozenset(_version(each, where) for each in value))
    if isinstance(value, dict) and set(value) == {LATEST}:
        count = value[LATEST]
        if type(count) is int and count >= 1:
            return Latest(count)
    raise SettingsError(
        f"{where}: {_spelled(value)} is none of latest, {{latest: N}} with a whole number, all, and a list of versions"
    )


def _version(value: Any, where: str) -> str:
    if type(value) is int and value >= 0:
        return str(value)
    if isinstance(value, float | date):
        raise SettingsError(f'{where}: {value} might be several versions; write it in quotes, "{value}"')
    if isinstance(value, str) and is_name(value):
        return value
    raise SettingsError(f"{where}: {_spelled(value)} can't be a version")


def _table(value: Any, where: str) -> dict[Any, Any]:
    """A table; null stands for an empty one."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SettingsError(f"{where} must be a table of names and values")
    return value


def _only(table: dict[Any, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise SettingsError(f"{where}{key} is not known here; there are {', '.join(sorted(known))}")


def _spelled(value: Any) -> str:
    """A value as YAML has it, rather than Python."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value} (a date, unless it is in quotes)" if isinstance(value, date) else repr(value)
