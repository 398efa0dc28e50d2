"""Reads the values of options: flags override the environment, which overrides a YAML file, which overrides defaults.

Every source is checked completely, including values that another source overrides: a mistake shows now, not on the day
the flag that hides it is removed.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from dragoman_server.config.documents import Document, DocumentError
from dragoman_server.config.fields import expectation, is_path, is_secret, kinds
from dragoman_server.config.options import ServerConfig

PREFIX = "DRAGOMAN_"
FILE_FLAG, FILE_VARIABLE = "--config", "DRAGOMAN_CONFIG"
CLIENT_VARIABLES = {
    f"DRAGOMAN_{name}"
    for name in ("ADDRESS", "API_KEY", "CA", "CLIENT_CERT", "CLIENT_KEY", "METRICS_ADDRESS", "SERVER_NAME")
}
# Kubernetes sets such variables in pods for a Service named "dragoman" or "dragoman-grpc", unless the pods have
# `enableServiceLinks: false`. DRAGOMAN_PORT=tcp://10.0.0.7:50051 is one of them, not the port to listen on.
SERVICE_VARIABLE = re.compile(r"\w+_SERVICE_(HOST|PORT(_\w+)?)|\w+_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
SHOWN_CHARACTERS = 80


class ConfigError(Exception):
    """The configuration is invalid; the message is one sentence that names the source and what is expected."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value from a source.

    Attributes:
        value: Text from a flag or the environment, else a YAML value.
        origin: "--port", "DRAGOMAN_PORT" or "server.yaml:12".
        subject: The beginning of an error: "--port", "DRAGOMAN_PORT" or "server.yaml:12: port".
    """

    value: Any
    origin: str
    subject: str


Layer = Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class Configuration:
    """The options and their origins.

    Attributes:
        config: The options.
        origins: The origin of each option that is set; options with their default are missing.
    """

    config: ServerConfig
    origins: Mapping[str, str]


def configure(
    flags: Mapping[str, str | bool],
    environment: Mapping[str, str],
    file: Path | None = None,
    kind: type[ServerConfig] = ServerConfig,
) -> Configuration:
    """Merges all sources into a configuration.

    Args:
        flags: The values of the flags that are set, by option.
        environment: The environment of the process.
        file: The YAML file of --config; None for the one that the environment names, if any.

    Raises:
        ConfigError: A source can't be read, or has an unknown option or an invalid value.
    """
    layers: list[Layer] = []
    if file is not None:
        layers.append(_from_file(file, FILE_FLAG, kind))
    elif environment.get(FILE_VARIABLE) == "":
        raise ConfigError(f"{FILE_VARIABLE} is empty; expected the path of a YAML file")
    elif FILE_VARIABLE in environment:
        layers.append(_from_file(Path(environment[FILE_VARIABLE]), FILE_VARIABLE, kind))
    layers.append(_from_environment(environment, kind))
    layers.append(_from_flags(flags))
    for layer in layers:
        check(layer, kind)
    merged = {name: setting for layer in layers for name, setting in layer.items()}
    try:
        config = kind.model_validate({name: setting.value for name, setting in merged.items()})
    except ValidationError as error:  # each value is valid, but they contradict each other
        raise ConfigError(_with_origins(_message(error.errors()[0]), merged)) from None
    return Configuration(config, {name: setting.origin for name, setting in merged.items()})


def flag(name: str) -> str:
    """Returns the flag of an option: "max_rows" -> "--max-rows"."""
    return "--" + name.replace("_", "-")


def _from_flags(flags: Mapping[str, str | bool]) -> Layer:
    spelt = {name: flag(f"no_{name}" if value is False else name) for name, value in flags.items()}
    return {name: Setting(_none(value), spelt[name], spelt[name]) for name, value in flags.items()}


def _from_environment(environment: Mapping[str, str], kind: type[ServerConfig]) -> Layer:
    options = {PREFIX + name.upper(): name for name in kind.model_fields}
    known = {"config": FILE_VARIABLE} | {name: variable for variable, name in options.items()}
    layer = {}
    for variable, value in sorted(environment.items()):
        if not variable.startswith(PREFIX) or variable in {FILE_VARIABLE, *CLIENT_VARIABLES}:
            continue
        if SERVICE_VARIABLE.fullmatch(variable) or (variable.endswith("_PORT") and SERVICE_ADDRESS.match(value)):
            continue
        if variable not in options:
            raise ConfigError(_unknown(ascii(variable)[1:-1], variable.removeprefix(PREFIX), known))
        layer[options[variable]] = Setting(_none(value), variable, variable)
    return layer


def _none(value: str | bool) -> str | bool | None:
    """Reads "null" as None, as in YAML, so that flags and the environment can undo a value of the file."""
    return None if value == "null" else value


def _from_file(path: Path, named_by: str, kind: type[ServerConfig]) -> Layer:
    """Reads a YAML file. Paths in it are relative to its directory."""
    try:
        document = Document(path)
        if document.root is None:  # nothing but comments
            return {}
        if not isinstance(document.root, yaml.MappingNode):
            raise ConfigError(f"{path} is not a mapping of options to values, such as `port: 50051`")
        layer: dict[str, Setting] = {}
        for key, node in document.root.value:
            origin = document.place(key)
            name = key.value if isinstance(key, yaml.ScalarNode) else "a list or mapping"
            if name not in kind.model_fields:
                subject = f"{origin}: {name if name.isprintable() else ascii(name)}"
                raise ConfigError(_unknown(subject, name, {field: field for field in kind.model_fields}))
            value = document.value(node)
            if isinstance(value, str) and value and is_path(kind.model_fields[name]):
                value = str(path.absolute().parent / value)
            layer[name] = Setting(value, origin, f"{origin}: {name}")
    except OSError as error:
        raise ConfigError(f"{named_by}: {path} can't be read: {error.strerror or error}") from None
    except DocumentError as error:
        raise ConfigError(str(error)) from None
    return layer


def check(layer: Layer, kind: type[ServerConfig]) -> None:
    """Checks each value by itself.

    Raises:
        ConfigError: The option does not allow the value.
    """
    fields = kind.model_fields
    for name, setting in layer.items():
        # pydantic accepts all of these: it reads true as the number 1 and "" as the path of the working directory.
        # Bytes in the environment that are not UTF-8 become lone surrogates, which can't be printed.
        value = setting.value
        misplaced = isinstance(value, bool) and bool not in kinds(fields[name].annotation)
        if misplaced or (isinstance(value, str) and (not value or not _is_unicode(value))):
            raise ConfigError(_wrong(setting, fields[name]))
    try:
        kind.model_validate({name: setting.value for name, setting in layer.items()})
    except ValidationError as error:
        for detail in error.errors():
            if detail["loc"]:
                name = str(detail["loc"][0])
                raise ConfigError(_wrong(layer[name], fields[name], detail)) from None


def _wrong(setting: Setting, field: FieldInfo, error: Any = None) -> str:
    """Returns the error for an invalid value, with pydantic's message if the type does not say enough."""
    expected = expectation(field)
    if error and (expected is None or error["type"] in ("value_error", "string_pattern_mismatch")):
        reason = f": {_message(error)}"
    else:
        reason = f"; expected {expected or 'a value'}"
    found = "has a wrong value" if is_secret(field) else f"is {_shown(setting.value)}"
    return f"{setting.subject} {found}{reason}"


def _message(error: Any) -> str:
    """Returns the message of our own validator, or else pydantic's."""
    return str(error["ctx"]["error"] if error["type"] == "value_error" else error["msg"])


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _with_origins(sentence: str, layer: Layer) -> str:
    """Adds the origins of the flags that a sentence names and that were set elsewhere."""
    named = re.findall(r"--[a-z-]+", sentence)
    elsewhere = {flag(name): setting.origin for name, setting in layer.items() if not setting.origin.startswith("--")}
    origins = [f"{name} is from {elsewhere[name]}" for name in named if name in elsewhere]
    return f"{sentence} ({', '.join(origins)})" if origins else sentence


def _shown(value: Any) -> str:
    text = ascii(value) if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True).split("\n")[0]
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _unknown(subject: str, name: str, known: Mapping[str, str]) -> str:
    """Returns the error for an unknown option; `known` maps the spellings of this source to display names."""
    close = difflib.get_close_matches(name.replace("-", "_").lower(), known, 1)
    hint = f"did you mean {known[close[0]]}?" if close else "`dragoman-serve --print-config` lists all options"
    return f"{subject} is not an option; {hint}"
