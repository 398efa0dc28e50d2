"""A configuration for people: as a YAML file that says of every value where it comes from, and in short."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dragoman_server.config.fields import is_secret
from dragoman_server.config.options import PANELS
from dragoman_server.config.sources import Configuration

SECRET = "(secret)"
MOST_WIDTH = 60  # of the column of values; a longer one pushes its origin to the right


def lines(configuration: Configuration) -> Iterator[tuple[str, bool]]:
    """The lines of the file, each with whether someone chose the value on it. Secrets are left out."""
    values = _values(configuration)
    entries = {name: f"# {name}: {value}" if value == SECRET else f"{name}: {value}" for name, value in values.items()}
    width = max(len(entry) for entry in entries.values() if len(entry) <= MOST_WIDTH)
    for number, panel in enumerate(PANELS):
        if number:
            yield "", False
        yield f"# {panel.model_config['title']}", False
        for name in panel.model_fields:
            origin = configuration.origins.get(name)
            yield f"{entries[name]:{width}}  # {origin or 'default'}", origin is not None


def chosen(configuration: Configuration) -> dict[str, str]:
    """The values that someone chose, each with where it stands: {"port": "50052 (DRAGOMAN_PORT)"}."""
    values = _values(configuration)
    return {name: f"{values[name]} ({origin})" for name, origin in configuration.origins.items()}


def _values(configuration: Configuration) -> dict[str, str]:
    """Every value as YAML has it, in one line."""
    config = configuration.config
    values = config.model_dump(mode="json")
    for name, field in type(config).model_fields.items():
        if isinstance(path := getattr(config, name), Path):
            values[name] = str(path.absolute())  # so that the file means the same wherever it is put
        values[name] = SECRET if is_secret(field) and values[name] is not None else _yaml(values[name])
    return values


def _yaml(value: Any) -> str:
    document: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
    return document.removesuffix("\n").removesuffix("\n...")
