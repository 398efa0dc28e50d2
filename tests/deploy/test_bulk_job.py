"""The Indexed Job for bulk work: a valid object, whose pods share out a folder's files."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.generate import DEPLOY
from tests.conftest import ROOT
from tests.deploy.kube_schemas import MINORS, faults, unrestricted
from tests.support.bundles import SHIPPED_G2P

FILE = DEPLOY / "bulk" / "indexed-job.yaml"


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return loaded


def container(job: dict[str, Any]) -> dict[str, Any]:
    [only] = job["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


def test_the_object_is_valid_and_restricted(job: dict[str, Any]) -> None:
    assert {minor: faults(job, minor) for minor in MINORS} == {minor: [] for minor in MINORS}
    assert unrestricted(job["spec"]["template"]["spec"]) == []


def test_it_fits_the_image_and_the_model_s_volume(job: dict[str, Any]) -> None:
    image = yaml.safe_load((DEPLOY / "helm" / "dragoman" / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"]
    assert container(job)["image"].endswith(f":{image}")
    assert (ROOT / "protos" / "dragoman" / "__main__.py").exists()
    fill = yaml.safe_load((DEPLOY / "models" / "fill-from-image.yaml").read_text(encoding="utf-8"))
    users = ("runAsUser", "runAsGroup", "fsGroup")
    of_job, of_fill = (each["spec"]["template"]["spec"] for each in (job, fill))
    assert [of_job["securityContext"][each] for each in users] == [of_fill["securityContext"][each] for each in users]
    assert of_fill["volumes"][0] in of_job["volumes"]


def test_the_failure_policy_knows_the_command_s_exit_statuses(job: dict[str, Any]) -> None:
    _, wrong_usage = job["spec"]["podFailurePolicy"]["rules"]
    assert wrong_usage["onExitCodes"] == {"containerName": container(job)["name"], "operator": "In", "values": [2]}
    done = run(["/nowhere", "/out", "--shard=x"])
    assert done.returncode == 2, done.stderr


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dragoman", "bulk", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_its_pods_answer_every_file_once(job: dict[str, Any], tmp_path: Path) -> None:
    """Runs the container's command as the Job's pods would, on local directories."""
    shards, own = job["spec"]["completions"], container(job)
    assert own["command"] == ["python3", "-m", "dragoman", "bulk"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert f"--shard=$(JOB_COMPLETION_INDEX)/{shards}" in own["args"]
    (tmp_path / "in").mkdir()
    for number in range(shards + 2):
        (tmp_path / "in" / f"{number:02}.txt").write_text("queue\n")
    paths = {"/texts": str(tmp_path), "/models/my-model/1": str(SHIPPED_G2P)}
    written: list[set[str]] = []
    for index in (0, 1, shards - 1):
        arguments = [re.sub(r"\$\(JOB_COMPLETION_INDEX\)", str(index), each) for each in own["args"]]
        arguments = [re.sub("|".join(paths), lambda found: paths[found[0]], each) for each in arguments]
        done = run(arguments)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        written.append({path.name for path in (tmp_path / "out").glob("*.txt")})
    assert written[0] == {"00.txt", f"{shards:02}.txt"}
    assert written[1] - written[0] == {"01.txt", f"{shards + 1:02}.txt"}
    assert written[2] - written[1] == {f"{shards - 1:02}.txt"}
    assert {(tmp_path / "out" / name).read_text() for name in written[2]} == {"K Y UW\n"}
