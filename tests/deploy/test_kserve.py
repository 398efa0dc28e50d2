"""The objects for KServe are ones that KServe takes, and the server takes what they tell it."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from deploy.generate import DEPLOY
from deploy.tools import KSERVE, NoTools, wheel
from tests.deploy.conftest import Document, only
from tests.deploy.kube_schemas import MINORS, faults, unrestricted

FILES = sorted((DEPLOY / "kserve").glob("*.yaml"))


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    try:
        wheel(KSERVE)
    except NoTools as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in FILES]


def test_kserve_takes_every_object(documents: list[Document]) -> None:
    assert {
        (path.name, minor): faults(each, minor) for path, each in zip(FILES, documents, strict=True) for minor in MINORS
    } == {(path.name, minor): [] for path in FILES for minor in MINORS}


@pytest.mark.parametrize(
    ("place", "value", "fault"),
    [
        (["spec", "predictor", "model"], {"storageURI": "pvc://a"}, "storageURI"),
        (["spec", "predictor", "autoScaling", "metrics", 0, "external", "metric"], {"address": "a"}, "address"),
        (["spec", "predictor"], {"maxReplicas": "8"}, "maxReplicas"),
        (["spec", "predictor", "model", "resources"], {"limit": {}}, "limit"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_models_find_faults(documents: list[Document], place: list[str], value: Document, fault: str) -> None:
    service = yaml.safe_load(yaml.safe_dump(only(documents, "InferenceService", "g2p")))
    part = service
    for key in place:
        part = part.setdefault(key, {}) if isinstance(part, dict) else part[key]
    part.update(value)
    (found,) = faults(service, MINORS[-1])
    assert fault in found


def test_the_services_fit_the_runtime(documents: list[Document]) -> None:
    runtime = only(documents, "ClusterServingRuntime")
    formats = [(each["name"], each["version"]) for each in runtime["spec"]["supportedModelFormats"]]
    for service in (each for each in documents if each["kind"] == "InferenceService"):
        predictor, model = service["spec"]["predictor"], service["spec"]["predictor"]["model"]
        assert model["runtime"] == runtime["metadata"]["name"]
        assert (model["modelFormat"]["name"], model["modelFormat"]["version"]) in formats
        assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
        config = printed_config(runtime, model)
        stopping = config["drain_delay_seconds"] + config["drain_seconds"] + 5
        assert predictor["terminationGracePeriodSeconds"] >= stopping
        for metric in predictor.get("autoScaling", {}).get("metrics", ()):
            names = service["metadata"]
            series = f'namespace="{names["namespace"]}",pod=~"{names["name"]}-predictor-.*"'
            assert metric["external"]["metric"]["query"] == f"sum(dragoman_requests_waiting{{{series}}})"


def test_the_server_takes_its_arguments(documents: list[Document]) -> None:
    """KServe puts the arguments of an InferenceService behind those of its runtime."""
    runtime = only(documents, "ClusterServingRuntime")
    container = runtime["spec"]["containers"][0]
    config = printed_config(runtime)
    assert config["host"] == "0.0.0.0"
    assert config["port"] == container["ports"][0]["containerPort"]
    assert {container[probe]["grpc"]["port"] for probe in ("startupProbe", "readinessProbe")} == {config["health_port"]}
    assert str(config["metrics_port"]) == runtime["spec"]["annotations"]["prometheus.kserve.io/port"]
    assert config["metrics_port"] == container["livenessProbe"]["httpGet"]["port"]
    assert Path(config["bundle"]) == Path("/mnt/models")
    assert (config["api_keys"], config["admin"]) == (None, False)
    gpu = only(documents, "InferenceService", "g2p-gpu")["spec"]["predictor"]["model"]
    assert printed_config(runtime, gpu)["device"] == "cuda"


def test_pods_keep_to_the_restricted_profile(documents: list[Document]) -> None:
    spec = only(documents, "ClusterServingRuntime")["spec"]
    # A runtime has no securityContext of the whole pod: its containers have what that would say.
    context = spec["containers"][0]["securityContext"]
    assert unrestricted({**spec, "securityContext": context}) == []


def printed_config(runtime: Document, model: Document | None = None) -> Document:
    return _printed_config((*runtime["spec"]["containers"][0]["args"], *(model or {}).get("args", ())))


@functools.cache
def _printed_config(arguments: tuple[str, ...]) -> Document:
    """What the server makes of its arguments."""
    command = [str(Path(sys.executable).with_name("dragoman-serve")), *arguments, "--print-config"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    config: Document = yaml.safe_load(done.stdout)
    return config
