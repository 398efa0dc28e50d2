"""The volume for models: valid objects, and the server finds the models that they copy."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.generate import DEPLOY
from dragoman_server.config import ServerConfig
from dragoman_server.models.repository import Repository
from tests.deploy.conftest import Render, only
from tests.deploy.kube_schemas import MINORS, faults, unrestricted
from tests.deploy.test_deploy_docs import PAGES, blocks, named_block
from tests.support.bundles import SHIPPED_G2P

FOLDER = DEPLOY / "models"
FILES = sorted(FOLDER.glob("*.yaml"))


def document(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return loaded


def pod_of(document: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = document["spec"]["template"]["spec"] if document["kind"] == "Job" else document["spec"]
    return spec


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.stem))
def test_objects_are_valid(path: Path) -> None:
    assert {minor: faults(document(path.name), minor) for minor in MINORS} == {minor: [] for minor in MINORS}


@pytest.mark.parametrize("name", ["fill-by-hand.yaml", "fill-from-image.yaml"])
def test_it_is_filled_by_the_servers_user(render: Render, name: str) -> None:
    values = yaml.safe_load(named_block(PAGES[0], "g2p.yaml"))
    server, pod = only(render(values), "Deployment")["spec"]["template"]["spec"], pod_of(document(name))
    assert unrestricted(pod) == []
    users = ("runAsUser", "runAsGroup", "fsGroup")
    assert [pod["securityContext"][each] for each in users] == [server["securityContext"][each] for each in users]
    claim = document("claim.yaml")["metadata"]["name"]
    assert pod["volumes"] == [{"name": "models", "persistentVolumeClaim": {"claimName": claim}}]
    assert values["models"]["claim"]["name"] == claim


def fill(folder: Path, bundle: Path) -> subprocess.CompletedProcess[str]:
    """Runs the Job's script on local directories."""
    container = pod_of(document("fill-from-image.yaml"))["containers"][0]
    shell, options, script = container["command"]
    script = script.replace("/models", str(folder)).replace("/bundle", str(bundle))
    environment = {**os.environ, **{each["name"]: each["value"] for each in container["env"]}}
    return subprocess.run([shell, options, script], env=environment, capture_output=True, text=True, check=False)


def test_the_job_installs_a_version_once(tmp_path: Path) -> None:
    (tmp_path / "g2p" / ".7").mkdir(parents=True)  # a partial copy of an evicted Job
    bundle = SHIPPED_G2P
    assert fill(tmp_path, bundle).returncode == 0
    found = Repository(tmp_path, ServerConfig()).scan().models
    assert {name: [*versions] for name, versions in found.items()} == {"g2p": ["7"]}
    assert found["g2p"]["7"].problem == ""
    done = fill(tmp_path, bundle)
    assert (done.returncode, done.stderr) == (1, "g2p/7 is there already\n")


def test_documented_commands_match_the_objects() -> None:
    (block,) = [block for block in blocks(PAGES[0], "sh") if "fill-models" in block]
    pod = document("fill-by-hand.yaml")["metadata"]["name"]
    assert set(re.findall(r"\bfill-models\b", block)) == {pod}
    copied, renamed = re.search(r"cp \S+ fill-models:(\S+)", block), re.search(r"mv (\S+) (\S+)", block)
    assert copied is not None
    assert renamed is not None
    assert copied[1] == renamed[1]
    assert re.fullmatch(r"/models/g2p/\d+", renamed[2])
