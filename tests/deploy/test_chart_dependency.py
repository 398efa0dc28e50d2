"""The chart in the hands of others: a folder that can be copied, and one dependency or several of a parent chart."""

import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.generate import CHART, DEPLOY
from tests.deploy.conftest import Document, only
from tests.deploy.kube_schemas import MINORS, faults
from tests.deploy.test_deploy_docs import named_block

Helm = Callable[..., subprocess.CompletedProcess[str]]
NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")  # what every kind of object may be called
LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
EVERYTHING: dict[str, Any] = {
    "autoscaling": {"by": "hpa"},
    "grpcRoute": {"enabled": True, "parentRefs": [{"name": "all"}]},
    "monitoring": {"podMonitor": {"enabled": True}, "dashboards": {"enabled": True}},
}


@pytest.fixture
def run(tools: tuple[Path, Path], tmp_path: Path) -> Helm:
    """Runs helm as it is, in the test's folder."""

    def run(*arguments: str | Path, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
        given = yaml.safe_dump(values) if values is not None else None
        options = ["--values", "-"] if values is not None else []
        command = [tools[0], *arguments, *options]
        return subprocess.run(command, input=given, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def rendered(run: Helm) -> Callable[..., list[Document]]:
    """The objects of the chart `parent`."""

    def rendered(values: Mapping[str, Any], *arguments: str, release: str = "r") -> list[Document]:
        done = run("template", release, "parent", *arguments, values=values)
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document is not None]

    return rendered


def make_parent(folder: Path, *dependencies: dict[str, Any]) -> Path:
    """A chart with copies of ours in it, as `cp -r` makes them, by each of these conditions, tags and aliases."""
    parent = folder / "parent"
    (parent / "charts").mkdir(parents=True)
    subprocess.run(["cp", "-r", CHART, parent / "charts"], check=True)
    listed = [{"name": "dragoman", "version": "0.1.0", **each} for each in dependencies]
    about = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": listed}
    (parent / "Chart.yaml").write_text(yaml.safe_dump(about), encoding="utf-8")
    return parent


def deployments(documents: list[Document]) -> set[str]:
    return {each["metadata"]["name"] for each in documents if each["kind"] == "Deployment"}


def test_a_copied_folder_makes_the_same_objects(run: Helm, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", CHART, tmp_path / "copy"], check=True)
    values = DEPLOY / "helm" / "examples" / "monitoring.yaml"
    copied, original = (run("template", "r", chart, "--values", values) for chart in ("copy", CHART))
    assert copied.returncode == 0, copied.stderr
    assert copied.stdout == original.stdout


@pytest.mark.parametrize("alias", [None, "g2p"])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_condition_switches_it(
    rendered: Callable[..., list[Document]], tmp_path: Path, alias: str | None, enabled: bool
) -> None:
    name = alias or "dragoman"
    make_parent(tmp_path, {"condition": f"{name}.enabled", **({"alias": alias} if alias else {})})
    documents = rendered({name: {"enabled": enabled}})
    assert deployments(documents) == ({f"r-{name}"} if enabled else set())
    assert [fault for each in documents for fault in faults(each, MINORS[-1])] == []


@pytest.mark.parametrize("switched", [True, False])
def test_tags_switch_it_and_globals_reach_it(
    rendered: Callable[..., list[Document]], tmp_path: Path, switched: bool
) -> None:
    make_parent(tmp_path, {"alias": "g2p", "tags": ["speech"]})
    shared = {"imageRegistry": "registry.example", "team": {"name": "speech"}}
    documents = rendered({"tags": {"speech": switched}, "global": shared, "g2p": {"replicas": 3}})
    assert deployments(documents) == ({"r-g2p"} if switched else set())
    if switched:
        assert only(documents, "Deployment")["spec"]["replicas"] == 3


def test_a_condition_that_helm_would_pass_over_is_refused(run: Helm, tmp_path: Path) -> None:
    """Helm goes by true and false alone, and would install what "false" is meant to leave out."""
    make_parent(tmp_path, {"condition": "dragoman.enabled"})
    done = run("template", "r", "parent", values={"dragoman": {"enabled": "false"}})
    assert done.returncode != 0
    assert "/enabled" in done.stderr


LONG = "text-to-speech-front-ends-of-the-department-for-"  # 48 characters, more than names have from the alias


@pytest.mark.parametrize(
    ("release", "aliases"),
    [
        ("r", (f"{LONG}english", f"{LONG}german")),
        ("r", (f"{LONG}{LONG}english", f"{LONG}{LONG}german")),
        ("grapheme-to-phoneme-of-the-speech-department-in-2027", ("g2p-en", "g2p-de")),
        # A release that is called by both: neither may go by the release's name alone.
        ("g2p-de", ("g2p", "de")),
    ],
    ids=["long aliases", "aliases beyond 63 characters", "a long release", "aliases in the release"],
)
def test_two_in_one_release_have_nothing_in_common(
    rendered: Callable[..., list[Document]], tmp_path: Path, release: str, aliases: tuple[str, str]
) -> None:
    make_parent(tmp_path, *({"alias": alias} for alias in aliases))
    documents = rendered(dict.fromkeys(aliases, EVERYTHING), "--namespace", "speech", release=release)
    names = [(each["kind"], each["metadata"]["name"]) for each in documents]
    assert len(names) == len(set(names))
    assert len(deployments(documents)) == 2
    for each in documents:
        assert NAME.fullmatch(each["metadata"]["name"])
        assert all(LABEL.fullmatch(value) for value in each["metadata"]["labels"].values())
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in documents if each["kind"] == "Deployment"]
    for service in (each for each in documents if each["kind"] == "Service"):
        assert [service["spec"]["selector"].items() <= labels.items() for labels in pods].count(True) == 1


def test_names_that_fit_stay_as_they_are(rendered: Callable[..., list[Document]], tmp_path: Path) -> None:
    fitting = "a" * 44
    make_parent(tmp_path, {"alias": fitting})
    assert deployments(rendered({})) == {f"r-{fitting}"}


def test_overrides_that_begin_alike_stay_apart(rendered: Callable[..., list[Document]], tmp_path: Path) -> None:
    make_parent(tmp_path, {"alias": "en"}, {"alias": "de"})
    names = deployments(rendered({each: {"fullnameOverride": f"{LONG}{each}"} for each in ("en", "de")}))
    assert len(names) == 2


@pytest.mark.parametrize("alias", ["g2pEn", "g2p_en", "g2p-"])
def test_an_alias_that_no_object_may_be_called_by_is_refused(run: Helm, tmp_path: Path, alias: str) -> None:
    make_parent(tmp_path, {"alias": alias})
    assert f'the objects would be called "r-{alias}", but' in run("template", "r", "parent").stderr
    done = run("template", "r", "parent", values={alias: {"fullnameOverride": "g2p"}})
    if alias == "g2p-":
        assert 'the label app.kubernetes.io/name would be "g2p-", but' in done.stderr
    else:
        assert done.returncode == 0, done.stderr


def test_the_dependencies_of_the_page_can_be_fetched(
    run: Helm, rendered: Callable[..., list[Document]], tmp_path: Path
) -> None:
    """`helm dependency build` on the parent chart that README.md has, beside a copy of this repository."""
    folder = tmp_path / "dragoman" / CHART.relative_to(DEPLOY.parent)
    folder.parent.mkdir(parents=True)
    subprocess.run(["cp", "-r", CHART, folder], check=True)
    parent = tmp_path / "parent"
    parent.mkdir()
    for name in ("Chart.yaml", "values.yaml"):
        (parent / name).write_text(named_block(CHART / "README.md", name), encoding="utf-8")
    done = run("dependency", "build", "parent")
    assert done.returncode == 0, done.stderr
    assert deployments(rendered({})) == {"r-g2p-en"}
    documents = rendered({"g2p-de": {"enabled": True}, "g2p-en": {"user": None}})
    assert deployments(documents) == {"r-g2p-en", "r-g2p-de"}
    users = [
        each["spec"]["template"]["spec"]["securityContext"].get("runAsUser")
        for each in documents
        if each["kind"] == "Deployment" and each["metadata"]["name"] == "r-g2p-en"
    ]
    assert users == [None]
