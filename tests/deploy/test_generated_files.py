"""Generated files are up to date, and the Kustomize base and overlay equal the chart."""

import subprocess
import tomllib
from operator import itemgetter
from pathlib import Path

import pytest
import yaml

from deploy.generate import CHART, DEPLOY, expected_files, outdated, values, without_helm
from tests.conftest import ROOT
from tests.deploy.conftest import Document, Render, only
from tests.deploy.kube_schemas import MINORS, faults, unrestricted
from tests.deploy.test_chart_objects import VALUES


def test_generated_files_are_up_to_date(tools: tuple[Path, Path]) -> None:
    """`make chart` updates them."""
    assert [str(path.relative_to(DEPLOY)) for path in outdated(expected_files(tools[0]))] == []


def test_every_value_is_explained() -> None:
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    assert [path for path, _, description in values(text) if not description] == []


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"] == project
    overlay = DEPLOY / "kustomize" / "gpu" / "kustomization.yaml"
    for path in [overlay, *DEPLOY.glob("kserve/*.yaml"), *DEPLOY.glob("training/*.yaml")]:
        for line in path.read_text(encoding="utf-8").splitlines():
            if "image: dragoman:" in line or "newTag:" in line:
                assert project in line, f"{path.name}: {line}"


def build(kubectl: Path, name: str) -> list[Document]:
    folder = DEPLOY / "kustomize" / name
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def by_name(documents: list[Document]) -> dict[tuple[str, str], Document]:
    """Returns objects by kind and name, without ConfigMap labels, which Kustomize's lack, and with sorted volumes.

    An overlay puts its volumes before those of the base, which has no effect.
    """
    plain = {}
    for document in map(without_helm, documents):
        if document["kind"] == "ConfigMap":
            document["metadata"].pop("labels", None)
            document["data"]["server.yaml"] = yaml.safe_load(document["data"]["server.yaml"])
        if document["kind"] == "Deployment":
            pod = document["spec"]["template"]["spec"]
            for volumes in (pod["volumes"], pod["containers"][0]["volumeMounts"]):
                volumes.sort(key=itemgetter("name"))
        plain[document["kind"], document["metadata"]["name"]] = document
    return plain


@pytest.mark.parametrize(("name", "values"), [("base", "defaults"), ("gpu", "gpu")])
def test_kustomize_equals_the_chart(tools: tuple[Path, Path], render: Render, name: str, values: str) -> None:
    documents = build(tools[1], name)
    assert {(each["kind"], minor): faults(each, minor) for each in documents for minor in MINORS} == {
        (each["kind"], minor): [] for each in documents for minor in MINORS
    }
    assert unrestricted(only(documents, "Deployment")["spec"]["template"]["spec"]) == []
    # Kustomize appends a hash to the name of the options, so that a change replaces the pods.
    options = only(documents, "ConfigMap")["metadata"]["name"]
    assert options.startswith("dragoman-")
    renamed = yaml.safe_load(yaml.safe_dump(documents).replace(options, "dragoman"))
    assert by_name(renamed) == by_name(render(VALUES[values]))
