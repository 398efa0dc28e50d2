"""Fixtures that run helm and kubectl on the chart, and access to the rendered objects."""

import functools
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.generate import CHART
from deploy.tools import NoTools, kubernetes_tools

Document = dict[str, Any]  # a Kubernetes object
Render = Callable[..., list[Document]]


def only(documents: list[Document], kind: str, name: str | None = None) -> Document:
    """Returns the only object of a kind, and of a name if given."""
    matches = [doc for doc in documents if doc["kind"] == kind and name in (None, doc["metadata"]["name"])]
    assert len(matches) == 1, f"{len(matches)} objects {kind} {name or ''}"
    return matches[0]


@pytest.fixture(scope="session")
def tools() -> tuple[Path, Path]:
    try:
        return kubernetes_tools()
    except NoTools as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def helm(tools: tuple[Path, Path]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs helm on the chart: `helm("lint")`, `helm("template", values={"gpus": 1})`."""

    def run(
        command: str, *arguments: str | Path, values: Mapping[str, Any] | None = None, release: str = "dragoman"
    ) -> Any:
        name = [release] if command == "template" else []
        options = ["--values", "-"] if values is not None else []
        return subprocess.run(
            [tools[0], command, *name, CHART, *options, *arguments],
            input=yaml.safe_dump(values) if values is not None else None,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


@pytest.fixture(scope="session")
def render(helm: Callable[..., subprocess.CompletedProcess[str]]) -> Render:
    """Renders the chart with some values: `render({"gpus": 1})` returns the objects."""

    @functools.cache
    def printed(values: str, release: str, *arguments: str) -> str:
        done = helm("template", *arguments, values=json.loads(values), release=release)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(values: Mapping[str, Any] | None = None, *arguments: str, release: str = "dragoman") -> list[Document]:
        documents = yaml.safe_load_all(printed(json.dumps(values or {}), release, *arguments))
        return [document for document in documents if document is not None]

    return run


@pytest.fixture(scope="session")
def refusal(helm: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., str]:
    """Returns helm's error message for invalid values."""

    def run(values: Mapping[str, Any], *arguments: str, release: str = "dragoman") -> str:
        done = helm("template", *arguments, values=values, release=release)
        assert done.returncode != 0, done.stdout
        return str(done.stderr)

    return run
