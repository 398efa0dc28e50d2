"""The import of a model by the chart: a Job or an init container runs `dragoman-export`, once for each version."""

import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from dragoman_export.cli import app
from dragoman_server.bundle.manifest import MANIFEST_FILE
from dragoman_server.config import ServerConfig
from dragoman_server.models.repository import Repository
from tests.deploy.conftest import Document, Render, only
from tests.deploy.kube_schemas import MINORS, faults, unrestricted
from tests.deploy.test_chart_objects import VALUES
from tests.support.bundles import SHIPPED_G2P

EXAMPLE = VALUES["models-from-hugging-face"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def values(**keys: Any) -> dict[str, Any]:
    """The example with other values of `models.import`."""
    models = deepcopy(EXAMPLE["models"])
    return {"models": {**models, "import": {**models["import"], **keys}}, "networkPolicy": {"enabled": False}}


def pod_of(document: Document) -> Document:
    pod: Document = document["spec"]["template"]["spec"]
    return pod


def volumes(pod: Document) -> Document:
    return {volume["name"]: volume for volume in pod["volumes"]}


def test_the_job_writes_where_the_server_reads(render: Render) -> None:
    documents = render(EXAMPLE)
    job, server = pod_of(only(documents, "Job")), pod_of(only(documents, "Deployment"))
    assert unrestricted(job) == []
    assert job["automountServiceAccountToken"] is False
    assert job["securityContext"] == server["securityContext"]
    assert volumes(job)["models"]["persistentVolumeClaim"] == {"claimName": "models"}
    assert volumes(server)["models"]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
    # Services and policies select the server's pods alone.
    selected = only(documents, "Deployment")["spec"]["selector"]["matchLabels"].items()
    assert not selected <= only(documents, "Job")["spec"]["template"]["metadata"]["labels"].items()


def test_an_init_container_does_the_same(render: Render) -> None:
    documents = render(values(by="initContainer"))
    assert [document["kind"] for document in documents if document["kind"] == "Job"] == []
    assert {minor: faults(only(documents, "Deployment"), minor) for minor in MINORS} == {minor: [] for minor in MINORS}
    pod = pod_of(only(documents, "Deployment"))
    assert unrestricted(pod) == []
    assert pod["initContainers"] == pod_of(only(render(EXAMPLE), "Job"))["containers"]
    assert volumes(pod)["models"]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": False}
    (mount,) = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "models"]
    assert mount == {"name": "models", "mountPath": "/models", "readOnly": True}


def test_another_import_is_another_job(render: Render) -> None:
    changes: list[dict[str, Any]] = [{}, {"revision": COMMIT}, {"version": "2"}, {"precision": "fp32"}]
    names = [only(render(values(**change)), "Job")["metadata"]["name"] for change in changes]
    assert len(set(names)) == len(names)
    assert only(render(EXAMPLE), "Job")["metadata"]["name"] == names[0]


def test_every_value_reaches_the_command(render: Render) -> None:
    token = {"secretName": "mine", "key": "token"}
    mirror = {"name": "HF_ENDPOINT", "value": "https://hub.example"}
    options, image = ["--ignore", "sequence_bias"], "r.example/i:1"
    full = values(revision=COMMIT, name="de-en", options=options, image=image, token=token, env=[mirror])
    full["models"]["claim"]["subPath"] = "all"
    job = only(render(full), "Job")
    (container,) = pod_of(job)["containers"]
    assert " ".join(container["args"]) == (
        f"--from-transformers Helsinki-NLP/opus-mt-de-en --revision {COMMIT} --precision int8 --name de-en --version 1 "
        "--if-needed --ignore sequence_bias /models/de-en/1"
    )
    assert container["image"] == image
    assert {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "token"}}} in container["env"]
    assert mirror in container["env"]
    assert {"name": "models", "mountPath": "/models", "subPath": "all"} in container["volumeMounts"]
    assert faults(job, MINORS[0]) == []


def test_a_second_run_finds_the_model_that_the_server_serves(render: Render, tmp_path: Path) -> None:
    """Runs the command of the Job on a volume with the model, and without the hub."""
    (container,) = pod_of(only(render(EXAMPLE), "Job"))["containers"]
    arguments = [argument.replace("/models", str(tmp_path)) for argument in container["args"]]
    bundle = Path(shutil.copytree(SHIPPED_G2P, arguments[-1]))
    (tmp_path / ".huggingface").mkdir()
    document = json.loads((bundle / MANIFEST_FILE).read_text())
    origin = {"name": EXAMPLE["models"]["import"]["model"], "revision": COMMIT}
    (bundle / MANIFEST_FILE).write_text(json.dumps(document | {"origin": origin}))
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.output) == (0, f"{bundle} is already there\n")
    found = Repository(tmp_path, ServerConfig()).scan().models
    assert {name: [*versions] for name, versions in found.items()} == {"opus-mt-de-en": ["1"]}
