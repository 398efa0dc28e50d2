"""A value that can't be is refused with a sentence that names it, before anything reaches the cluster."""

from collections.abc import Callable
from typing import Any

import pytest

Refusal = Callable[..., str]

# By values.schema.json: what helm says names the value by its path.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"gpu": 1}, "'gpu'"),
    ({"gpus": -1}, "/gpus"),
    ({"gpus": "one"}, "/gpus"),
    ({"replicas": 1.5}, "/replicas"),
    ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
    ({"image": {"repository": ""}}, "/image/repository"),
    ({"image": {"digest": "0a0a"}}, "/image/digest"),
    ({"service": {"port": 70_000}}, "/service/port"),
    ({"config": {"max_row": 8}}, "'max_row'"),
    ({"config": {"max_rows": "many"}}, "/config/max_rows"),
    ({"config": {"log_level": "loud"}}, "/config/log_level"),
    ({"config": {"drain_seconds": -1}}, "/config/drain_seconds"),
    ({"resources": {"limits": {"memory": "4 GB"}}}, "/resources/limits/memory"),
    ({"resources": {"limits": {"memory": "512m"}}}, "/resources/limits/memory"),
    ({"models": {"initContainer": {"sizeLimit": "10m"}}}, "/models/initContainer/sizeLimit"),
    ({"models": {"source": "s3"}}, "/models/source"),
    ({"models": {"claim": {"subPath": "../other"}}}, "/models/claim/subPath"),
    ({"models": {"import": {"model": "https://hub.example/a/b"}}}, "/models/import/model"),
    ({"models": {"import": {"revision": "main"}}}, "/models/import/revision"),
    ({"models": {"import": {"by": "hand"}}}, "/models/import/by"),
    ({"models": {"import": {"precision": "int3"}}}, "/models/import/precision"),
    ({"models": {"import": {"version": ".1"}}}, "/models/import/version"),
    ({"tls": {"secretName": "My Secret"}}, "/tls/secretName"),
    ({"probes": {"protocol": "tcp"}}, "/probes/protocol"),
    ({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "a few"}}}, "/strategy"),
    ({"podLabels": {"team": 7}}, "/podLabels/team"),
    ({"podDisruptionBudget": {"maxUnavailable": "some"}}, "/podDisruptionBudget/maxUnavailable"),
    ({"podDisruptionBudget": {"maxUnavailable": 0}}, "/podDisruptionBudget/maxUnavailable': minimum"),
    ({"podDisruptionBudget": {"maxUnavailable": "0%"}}, "/podDisruptionBudget/maxUnavailable': '0%'"),
    ({"autoscaling": {"keda": {"authModes": "password"}}}, "/autoscaling/keda/authModes"),
    ({"autoscaling": {"by": "cpu"}}, "/autoscaling/by"),
    ({"autoscaling": {"keda": {"serverAddress": "prometheus:9090"}}}, "/autoscaling/keda/serverAddress"),
    ({"monitoring": {"podMonitor": {"interval": "often"}}}, "/monitoring/podMonitor/interval"),
    ({"user": 0}, "/user"),
    ({"config": None}, "'config'"),
    ({"autoscaling": {"waitingPerPod": 0}}, "/autoscaling/waitingPerPod"),
    ({"monitoring": {"rules": {"runbookUrl": "git.example.com"}}}, "/monitoring/rules/runbookUrl"),
    ({"tls": {"secretName": None}}, "'secretName'"),
]
IMPORT = {"source": "claim", "repository": True, "claim": {"name": "models"}}
# Rejected by the templates.
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"config": {"port": 1}}, "config.port is set by the chart; set service.port"),
    ({"config": {"bundle": "/models"}}, "config.bundle is set by the chart; set models.source"),
    ({"config": {"device": "cuda"}}, "config.device is set by the chart; set gpus"),
    ({"config": {"api_keys": "/k"}}, "config.api_keys is set by the chart; set apiKeys.secretName"),
    *(
        ({"image": {"repository": name}}, f'image.repository is "{name}", which is not an image name')
        for name in (
            "r.example/dragoman:0.1.0",
            "https://r.example/dragoman",
            "r.example/Dragoman",
            "dragoman@sha256:0a",
        )
    ),
    ({"env": [{"name": "DRAGOMAN_MAX_ROWS", "value": "8"}]}, "env: DRAGOMAN_MAX_ROWS would override"),
    ({"podLabels": {"app.kubernetes.io/name": "mine"}}, "podLabels: app.kubernetes.io/name is set by the chart"),
    ({"podAnnotations": {"checksum/config": "1"}}, "podAnnotations: checksum/config is set by the chart"),
    *(
        (
            {"monitoring": {what: {"enabled": True, "labels": {"app.kubernetes.io/name": "mine"}}}},
            f"monitoring.{what}.labels: app.kubernetes.io/name is set by the chart",
        )
        for what in ("podMonitor", "rules", "dashboards")
    ),
    ({"gpus": 1, "gpuResource": "amd.com/gpu"}, "gpuResource is amd.com/gpu, but the server supports only NVIDIA GPUs"),
    (
        {"gpus": 2, "gpuResource": "nvidia.com/mig-1g.10gb"},
        "gpus is 2, but a pod can use only one slice of a GPU (nvidia",
    ),
    ({"gpus": 1}, "gpus is 1, but the model in the image (models.source: shipped) is in int8"),
    ({"resources": {"limits": {"nvidia.com/gpu": 1}}}, "resources.limits: nvidia.com/gpu is set by the chart"),
    ({"resources": {"requests": {"amd.com/gpu": 1}}}, "resources.requests: amd.com/gpu is set by the chart"),
    ({"config": {"host": "localhost"}}, "config.host is localhost, where neither clients nor probes can reach a pod"),
    ({"config": {"host": "127.0.0.1"}}, "config.host is 127.0.0.1, where neither"),
    (
        {"strategy": {"rollingUpdate": {"maxSurge": 0}}},
        "strategy.rollingUpdate: maxSurge and maxUnavailable are both 0",
    ),
    (
        {"strategy": {"rollingUpdate": {"maxSurge": "0%", "maxUnavailable": "0%"}}},
        "strategy.rollingUpdate: maxSurge and maxUnavailable are both 0, so",
    ),
    (
        {"resources": {"requests": {"cpu": 3}}},
        "resources.requests.cpu is 3, more than resources.limits.cpu, which is 2",
    ),
    ({"resources": {"limits": {"cpu": "1500m"}}}, "resources.requests.cpu is 2, more than"),
    ({"enabled": False}, "enabled is only for the condition of a parent chart; remove it"),
    ({"fullnameOverride": "1g2p"}, 'the objects would be called "1g2p", but'),
    ({"service": {"port": 9090}}, "service.port and metrics.port are both 9090"),
    ({"models": {"repository": True}}, "models.repository is true, but the model in the image"),
    ({"models": {"source": "claim"}}, "models.claim.name is empty"),
    ({"models": {"source": "artifact"}}, "models.artifact.reference is empty"),
    ({"models": {"source": "initContainer"}}, "models.initContainer.image is empty"),
    (
        {"models": {"source": "initContainer", "initContainer": {"image": "fetch:1"}}},
        "networkPolicy.egress is empty, so models.initContainer could not download anything",
    ),
    *(
        (
            {
                "models": {
                    "source": source,
                    "repository": False,
                    "import": {"model": "a/b"},
                    "claim": {"name": "models"},
                }
            },
            "models.import.model needs models.source: claim and models.repository: true",
        )
        for source in ("shipped", "image", "claim")
    ),
    (
        {"models": IMPORT | {"import": {"model": "a/b", "by": "initContainer"}}},
        "networkPolicy.egress is empty, so models.import could not download anything",
    ),
    (
        {"models": IMPORT | {"import": {"model": "a/b", "env": [{"name": "HF_TOKEN", "value": "hf_a"}]}}},
        "models.import.env: HF_TOKEN is set by the chart; for a token set models.import.token.secretName",
    ),
    ({"config": {"tracing": True}}, "networkPolicy.egress is empty, so no traces could be sent"),
    ({"tls": {"clientAuthoritySecretName": "ca"}}, "tls.clientAuthoritySecretName needs tls.secretName"),
    ({"probes": {"port": 9090}}, "probes.port is 9090, the same as service.port or metrics.port"),
    ({"autoscaling": {"by": "hpa", "minReplicas": 9}}, "autoscaling.maxReplicas is 4, less than"),
    ({"autoscaling": {"by": "keda"}}, "autoscaling.keda.serverAddress is empty"),
    (
        {"fullnameOverride": "g2p", "monitoring": {"rules": {"enabled": True}}},
        "monitoring.rules.enabled is true, but the alerts find pods by the word dragoman in their names",
    ),
    ({"grpcRoute": {"enabled": True}}, "grpcRoute.parentRefs is empty"),
    (
        {"grpcRoute": {"enabled": True, "parentRefs": [{"name": "a"}]}, "tls": {"secretName": "a"}},
        "grpcRoute.enabled with tls.secretName: a Gateway speaks plain text to pods",
    ),
    (
        {"autoscaling": {"by": "keda", "keda": {"serverAddress": "http://p", "authentication": "a"}}},
        "autoscaling.keda.authModes is empty",
    ),
    ({"autoscaling": {"keda": {"authModes": "bearer"}}}, "autoscaling.keda.authModes needs autoscaling.keda.authent"),
]


@pytest.mark.parametrize(("values", "named"), WRONG, ids=[named for _, named in WRONG])
def test_invalid_values_are_named(refusal: Refusal, values: dict[str, Any], named: str) -> None:
    assert named in refusal(values)


@pytest.mark.parametrize(("values", "sentence"), CONTRADICTIONS, ids=[sentence for _, sentence in CONTRADICTIONS])
def test_contradictions_are_explained(refusal: Refusal, values: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(values)


@pytest.mark.parametrize("release", ["123", "g2p.v1"])
def test_release_names_that_are_no_service_names_are_rejected(refusal: Refusal, release: str) -> None:
    assert f'the objects would be called "{release}-dragoman", but' in refusal({}, release=release)


def test_artifacts_need_image_volumes(refusal: Refusal) -> None:
    values = {"models": {"source": "artifact", "artifact": {"reference": "r.example/m:1"}}}
    assert "models.source is artifact, but Kubernetes v1.32" in refusal(values, "--kube-version", "v1.32.4")


def test_old_kubernetes_is_rejected(refusal: Refusal) -> None:
    assert ">=1.30" in refusal({}, "--kube-version", "v1.29.0")
