"""Kustomize's base is the chart as it is by default, and its overlay for GPUs the chart with the example's values."""

import subprocess
from operator import itemgetter
from pathlib import Path

import pytest
import yaml

from deploy.generate import DEPLOY, without_helm
from tests.deploy.conftest import Render
from tests.deploy.kube_schemas import MINORS, faults, unrestricted
from tests.deploy.objects import Document, only
from tests.deploy.test_chart_objects import VALUES


def build(kubectl: Path, name: str) -> list[Document]:
    folder = DEPLOY / "kustomize" / name
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def by_name(documents: list[Document]) -> dict[tuple[str, str], Document]:
    """The objects by kind and name, with their labels as good as those that kustomize's ConfigMaps have: none.

    An overlay puts its volumes before those of the base, which means nothing.
    """
    plain = {}
    for document in map(without_helm, documents):
        if document["kind"] == "ConfigMap":
            document["metadata"].pop("labels", None)
            document["data"]["server.yaml"] = yaml.safe_load(document["data"]["server.yaml"])
        if document["kind"] == "Deployment":
            pod = document["spec"]["template"]["spec"]
            for each in (pod["volumes"], pod["containers"][0]["volumeMounts"]):
                each.sort(key=itemgetter("name"))
        plain[document["kind"], document["metadata"]["name"]] = document
    return plain


@pytest.mark.parametrize(("name", "values"), [("base", "defaults"), ("gpu", "gpu")])
def test_it_makes_what_the_chart_makes(tools: tuple[Path, Path], render: Render, name: str, values: str) -> None:
    made = build(tools[1], name)
    # Kustomize puts a hash behind the name of the options, so that a change makes new pods.
    options = only(made, "ConfigMap")["metadata"]["name"]
    assert options.startswith("dragoman-")
    renamed = yaml.safe_load(yaml.safe_dump(made).replace(options, "dragoman"))
    assert by_name(renamed) == by_name(render(VALUES[values]))


@pytest.mark.parametrize("name", ["base", "gpu"])
def test_kubernetes_takes_every_object(tools: tuple[Path, Path], name: str) -> None:
    made = build(tools[1], name)
    assert {(each["kind"], minor): faults(each, minor) for each in made for minor in MINORS} == {
        (each["kind"], minor): [] for each in made for minor in MINORS
    }
    assert unrestricted(only(made, "Deployment")["spec"]["template"]["spec"]) == []
