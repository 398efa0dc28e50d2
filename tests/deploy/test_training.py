"""The objects that train in a cluster are valid, agree with each other and the image, and their commands work."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.generate import DEPLOY
from tests.conftest import ROOT
from tests.deploy.conftest import Document, only
from tests.deploy.custom_resources import faults_by
from tests.deploy.kube_schemas import MINORS, faults, part_faults, unrestricted
from tests.deploy.test_deploy_docs import blocks
from tests.support.training import SMALL

FOLDER = DEPLOY / "training"
PAGE = ROOT / "docs" / "distributed.md"
QUANTITY = "IoK8sApimachineryPkgApiResourceQuantity"  # a class without fields, in the package of Kubeflow


def documents(name: str) -> list[Document]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


RUNTIME, TRAIN_JOB = documents("runtime.yaml")[0], documents("train-job.yaml")[0]
JOB, SERVICE = only(documents("job.yaml"), "Job"), only(documents("job.yaml"), "Service")
NODE = RUNTIME["spec"]["template"]["spec"]["replicatedJobs"][0]
PODS = {"job": JOB["spec"]["template"]["spec"], "runtime": NODE["template"]["spec"]["template"]["spec"]}


def trainer_faults(document: Document, minor: str) -> list[str]:
    """What is wrong with an object of Kubeflow Trainer, by its models, and by Kubernetes' for the parts of those."""
    from kubeflow_trainer_api import models  # takes seconds to import

    model = {"TrainJob": models.TrainerV1alpha1TrainJob, "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime}
    found = [fault for fault in faults_by(model[document["kind"]])(document) if QUANTITY not in fault]
    spec = document["spec"]
    if resources := spec.get("trainer", {}).get("resourcesPerNode"):
        found += part_faults(resources, "io.k8s.api.core.v1.ResourceRequirements", minor)
    for job in spec.get("template", {}).get("spec", {}).get("replicatedJobs", ()):
        found += part_faults(job["template"], "io.k8s.api.batch.v1.JobTemplateSpec", minor)
    return found


@pytest.mark.parametrize("minor", MINORS)
def test_kubernetes_and_kubeflow_take_every_object(minor: str) -> None:
    for document in (JOB, SERVICE, *documents("claim.yaml")):
        assert faults(document, minor) == []
    for document in (RUNTIME, TRAIN_JOB):
        assert trainer_faults(document, minor) == []


@pytest.mark.parametrize(
    ("document", "place", "value", "fault"),
    [
        (TRAIN_JOB, ["spec"], {"podTemplateOverrides": []}, "podTemplateOverrides"),
        (TRAIN_JOB, ["spec", "trainer"], {"numNodes": "2"}, "numNodes"),
        (TRAIN_JOB, ["spec", "trainer", "resourcesPerNode"], {"limit": {}}, "limit"),
        (RUNTIME, ["spec", "mlPolicy", "torch"], {"elastic": {}}, "elastic"),
        (RUNTIME, ["spec", "template", "spec", "failurePolicy"], {"restarts": 1}, "restarts"),
    ],
    ids=lambda value: "",
)
def test_the_models_find_faults(document: Document, place: list[str], value: Document, fault: str) -> None:
    changed: Document = yaml.safe_load(yaml.safe_dump(document))
    part: Any = changed
    for key in place:
        part = part[key]
    part.update(value)
    assert any(fault in found for found in trainer_faults(changed, MINORS[-1]))


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
def test_pods_keep_to_the_restricted_profile(pod: Document) -> None:
    assert unrestricted(pod) == []
    (container,) = pod["containers"]
    assert container["image"] == only_tag("train.Dockerfile")
    claims = [each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"] if "persistentVolumeClaim" in each]
    assert claims == [documents("claim.yaml")[0]["metadata"]["name"]]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "training"]
    assert mount["mountPath"] == container["workingDir"], "relative paths of recipes and runs are on the volume"


def only_tag(dockerfile: str) -> str:
    """The tag under which the page on images builds one."""
    page = (DEPLOY / "docker" / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    tags: set[str] = set(re.findall(rf"docker build [^\n]*{re.escape(dockerfile)}[^\n]* --tag (\S+) \.", page))
    assert len(tags) == 1
    return tags.pop()


def test_pods_have_time_to_save() -> None:
    for pod in PODS.values():
        (seconds,) = [
            int(each.partition("=")[2])
            for each in pod["containers"][0]["command"]
            if each.startswith("--shutdown-timeout=")
        ]
        assert pod["terminationGracePeriodSeconds"] >= seconds + 10


def test_pods_find_each_other() -> None:
    """A pod of an Indexed Job has the name JOB-INDEX.SUBDOMAIN if a headless Service of that name selects it."""
    name, pod = JOB["metadata"]["name"], PODS["job"]
    options = dict(each.split("=", 1) for each in pod["containers"][0]["command"] if "=" in each)
    host, port = options["--rdzv-endpoint"].split(":")
    assert host == f"{name}-0.{pod['subdomain']}"
    assert pod["subdomain"] == SERVICE["metadata"]["name"]
    assert SERVICE["spec"]["clusterIP"] == "None"
    assert SERVICE["spec"]["selector"].items() <= JOB["spec"]["template"]["metadata"]["labels"].items()
    assert {int(port)} == {each["port"] for each in SERVICE["spec"]["ports"]}
    assert JOB["spec"]["completions"] == JOB["spec"]["parallelism"] == int(options["--nnodes"])


def test_kubeflow_finds_the_trainer() -> None:
    assert TRAIN_JOB["spec"]["runtimeRef"]["name"] == RUNTIME["metadata"]["name"]
    assert TRAIN_JOB["spec"]["runtimeRef"]["kind"] == RUNTIME["kind"]
    # By this label and this name, it finds the container that gets the arguments and the variables.
    assert NODE["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert [container["name"] for container in PODS["runtime"]["containers"]] == ["node"]
    assert TRAIN_JOB["spec"]["trainer"]["args"] == PODS["job"]["containers"][0]["args"]


def test_applied_files_exist() -> None:
    pages = [PAGE, DEPLOY / "README.md"]
    commands = "".join(block for page in pages for block in blocks(page, "sh"))
    named = set(re.findall(r"deploy/training/\S+", commands))
    assert {ROOT / name for name in named} == set(FOLDER.glob("*.yaml"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PODS)
def test_the_command_trains(name: str, tmp_path: Path) -> None:
    """Runs it as the pod of a single node, with the variables that Kubeflow would set."""
    (tmp_path / "recipes").mkdir()
    tiny = ROOT / "training" / "dragoman_training" / "recipes" / "tiny.yaml"
    recipe = yaml.safe_load(tiny.read_text(encoding="utf-8"))
    recipe["data"]["train"] = [str(tiny.parent / each) for each in recipe["data"]["train"]]
    (tmp_path / "recipes" / "mine.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    command = list(PODS[name]["containers"][0]["command"])
    command[0] = str(Path(sys.executable).with_name("torchrun"))
    command = [
        re.sub(r"endpoint=\S+:\d+", "endpoint=localhost:0", each).replace("--nnodes=2", "--nnodes=1")
        for each in command
    ]
    variables = {each["name"]: each["value"] for each in PODS[name]["containers"][0]["env"]}
    if name == "runtime":
        variables |= {
            "PET_NNODES": "1",
            "PET_NPROC_PER_NODE": "1",
            "PET_NODE_RANK": "0",
            "PET_MASTER_ADDR": "localhost",
            "PET_MASTER_PORT": "0",
        }
    arguments = TRAIN_JOB["spec"]["trainer"]["args"]
    small = [f"--set={each}" for each in SMALL]
    done = subprocess.run(
        [*command, *arguments, "--device=cpu", *small],
        cwd=tmp_path,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "mine" / "model.pt").exists()
