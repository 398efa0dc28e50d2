"""What is made from something else is up to date, and the chart explains itself."""

import tomllib
from pathlib import Path

import yaml

from deploy.generate import CHART, DEPLOY, expected_files, outdated, values
from tests.conftest import ROOT


def test_everything_is_up_to_date(tools: tuple[Path, Path]) -> None:
    """`make chart` renews it."""
    assert [str(path.relative_to(DEPLOY)) for path in outdated(expected_files(tools[0]))] == []


def test_every_value_is_explained() -> None:
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    assert [path for path, _, told in values(text) if not told] == []


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"] == project
    named = [DEPLOY / "kustomize" / "gpu" / "kustomization.yaml", *(DEPLOY / "kserve").glob("*.yaml")]
    for path in named:
        for line in path.read_text(encoding="utf-8").splitlines():
            if "image: dragoman:" in line or "newTag:" in line:
                assert project in line, f"{path.name}: {line}"
