"""Shows a configuration: as a YAML file with the origin of every value, and in short for the log."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dragoman_server.config.fields import is_secret
from dragoman_server.config.options import PANELS
from dragoman_server.config.sources import Configuration

SECRET = "(secret)"
MAX_WIDTH = 60  # of the column of values; a longer value pushes its origin to the right


def lines(configuration: Configuration) -> Iterator[tuple[str, bool]]:
    """Yields the lines of the file, each with whether its value was set. Secrets are left out."""
    values = _values(configuration)
    entries = {name: f"# {name}: {value}" if value == SECRET else f"{name}: {value}" for name, value in values.items()}
    width = max(len(entry) for entry in entries.values() if len(entry) <= MAX_WIDTH)
    for number, panel in enumerate(PANELS):
        if number:
            yield "", False
        yield f"# {panel.model_config['title']}", False
        for name in panel.model_fields:
            origin = configuration.origins.get(name)
            yield f"{entries[name]:{width}}  # {origin or 'default'}", origin is not None


def chosen(configuration: Configuration) -> dict[str, str]:
    """Returns the values that were set, with their origins: {"port": "50052 (DRAGOMAN_PORT)"}."""
    values = _values(configuration)
    return {name: f"{values[name]} ({origin})" for name, origin in configuration.origins.items()}


def _values(configuration: Configuration) -> dict[str, str]:
    """Returns every value as one line of YAML."""
    config = configuration.config
    values = config.model_dump(mode="json")
    for name, field in type(config).model_fields.items():
        if isinstance(path := getattr(config, name), Path):
            values[name] = str(path.absolute())  # so that the file can be moved
        values[name] = SECRET if is_secret(field) and values[name] is not None else _yaml(values[name])
    return values


def _yaml(value: Any) -> str:
    document: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
    return document.removesuffix("\n").removesuffix("\n...")
