"""The server's configuration by the chart: options, images, probes, the time to stop, and autoscaling."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.generate import CHART, DEPLOY
from dragoman_server.config.options import ServerConfig
from dragoman_server.config.sources import configure
from dragoman_server.metrics import ServerMetrics
from tests.deploy.conftest import Document, Render, only
from tests.deploy.test_chart_objects import VALUES

SECONDS_TO_EXIT = 5  # after the drain, at most: docs/drain.md


def server_of(documents: list[Document]) -> Document:
    container: Document = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return container


def options_of(documents: list[Document], folder: Path) -> ServerConfig:
    """Reads server.yaml as the server does, which rejects unknown options."""
    template = only(documents, "Deployment")["spec"]["template"]["spec"]
    name = next(volume["configMap"]["name"] for volume in template["volumes"] if volume["name"] == "config")
    file = folder / "server.yaml"
    file.write_text(only(documents, "ConfigMap", name)["data"]["server.yaml"], encoding="utf-8")
    return configure({}, {}, file).config


@pytest.mark.parametrize("name", VALUES)
def test_options_are_valid_and_match_the_pod(render: Render, tmp_path: Path, name: str) -> None:
    documents = render(VALUES[name])
    config, server = options_of(documents, tmp_path), server_of(documents)
    assert server["args"] == ["--config", "/etc/dragoman/server.yaml"]
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert (config.port, config.metrics_port) == (ports["grpc"], ports["metrics"])
    assert config.health_port == ports.get("health")
    assert config.host == VALUES[name].get("config", {}).get("host", "0.0.0.0")
    mounts = [Path(mount["mountPath"]) for mount in server["volumeMounts"]]
    paths = [config.tls_cert, config.tls_key, config.tls_client_ca, config.api_keys]
    if VALUES[name].get("models", {}).get("source", "shipped") not in ("shipped", "image"):
        paths.append(config.model_repository or config.bundle)
    assert all(any(path.is_relative_to(mount) for mount in mounts) for path in paths if path is not None)


def test_the_pod_always_listens_on_all_addresses(render: Render, tmp_path: Path) -> None:
    """The server's own default is localhost."""
    assert options_of(render({"config": {"host": None}}), tmp_path).host == "0.0.0.0"


def test_admin_calls_need_keys(render: Render, tmp_path: Path) -> None:
    keys = {"apiKeys": {"secretName": "keys"}}
    cases: list[tuple[dict[str, Any], bool]] = [
        ({}, False),
        ({"config": {"admin": None}}, False),
        ({"config": {"admin": True}}, True),
        (keys, True),
        ({**keys, "config": {"admin": False}}, False),
    ]
    assert [options_of(render(values), tmp_path).admin for values, _ in cases] == [admin for _, admin in cases]


def test_numbers_stay_numbers(render: Render, tmp_path: Path) -> None:
    values = {"config": {"max_message_bytes": 100_000_000, "queue_tokens": 12_345_678, "drain_seconds": 2.5}}
    config = options_of(render(values), tmp_path)
    assert (config.max_message_bytes, config.queue_tokens, config.drain_seconds) == (100_000_000, 12_345_678, 2.5)


@pytest.mark.parametrize(
    ("gpus", "device", "tag"), [(0, "cpu", "0.1.0"), (1, "cuda", "0.1.0-cuda"), (2, "cuda:0,cuda:1", "0.1.0-cuda")]
)
def test_gpus(render: Render, tmp_path: Path, gpus: int, device: str, tag: str) -> None:
    documents = render({**VALUES["models-on-claim"], "gpus": gpus})
    server, pod = server_of(documents), only(documents, "Deployment")["spec"]["template"]["spec"]
    assert options_of(documents, tmp_path).device == device
    assert server["image"] == f"dragoman:{tag}"
    assert server["resources"]["limits"].get("nvidia.com/gpu", 0) == gpus
    assert ("tolerations" in pod) == (gpus > 0)


@pytest.mark.parametrize(
    ("models", "repository"),
    [
        ("models-in-image", False),
        ("models-on-claim", True),
        ("models-from-artifact", False),
        ("models-from-init-container", False),
    ],
)
def test_examples_can_be_combined(render: Render, tmp_path: Path, models: str, repository: bool) -> None:
    """An example of models overrides the models in the GPU example."""
    documents = render(VALUES["gpu"], "--values", str(DEPLOY / "helm" / "examples" / f"{models}.yaml"))
    config = options_of(documents, tmp_path)
    assert (config.bundle, config.model_repository)[repository] == Path("/models")
    assert config.device == "cuda"


@pytest.mark.parametrize(
    "name", ["dragoman", "localhost:5000/dragoman", "[::1]:5000/a/b", "1.dkr.ecr.eu-central-1.amazonaws.com/a_b/c--d"]
)
def test_any_registry_is_accepted(render: Render, name: str) -> None:
    assert server_of(render({"image": {"repository": name}}))["image"] == f"{name}:0.1.0"


@pytest.mark.parametrize("name", VALUES)
def test_the_grace_period_covers_stopping(render: Render, tmp_path: Path, name: str) -> None:
    documents = render(VALUES[name])
    config = options_of(documents, tmp_path)
    grace = only(documents, "Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace >= config.drain_delay_seconds + config.drain_seconds + SECONDS_TO_EXIT


def test_the_grace_period_follows_the_options(render: Render) -> None:
    def grace(**values: Any) -> int:
        pod = only(render(values), "Deployment")["spec"]["template"]["spec"]
        return int(pod["terminationGracePeriodSeconds"])

    assert grace() == 5 + 30 + SECONDS_TO_EXIT
    assert grace(config={"drain_delay_seconds": 20, "drain_seconds": 120}) == 20 + 120 + SECONDS_TO_EXIT
    assert grace(config={"drain_delay_seconds": 0, "drain_seconds": 0.5}) == 1 + SECONDS_TO_EXIT
    # null is the server's default, which the chart must know.
    for option in ("drain_delay_seconds", "drain_seconds"):
        default = ServerConfig.model_fields[option].default
        assert grace(config={option: None}) == grace(config={option: default})
    assert grace(terminationGracePeriodSeconds=600) == 600


def test_a_short_grace_period_is_rejected(refusal: Any) -> None:
    said = refusal({"terminationGracePeriodSeconds": 60, "config": {"drain_seconds": 60}})
    assert re.search(r"terminationGracePeriodSeconds is 60, but stopping may take \d+ s", said)


def test_probes(render: Render) -> None:
    """Probes use gRPC on a plain-text port of their own, or HTTP."""
    plain, tls = server_of(render()), server_of(render({"tls": {"secretName": "certificate"}}))
    http = server_of(render({"probes": {"protocol": "http"}}))
    for pod in (plain, tls):
        assert pod["startupProbe"]["grpc"] == pod["readinessProbe"]["grpc"] == {"port": 50052}
    assert http["startupProbe"]["httpGet"] == {"path": "/startupz", "port": "metrics"}
    assert http["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    for pod in (plain, tls, http):
        assert pod["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "metrics"}
    slow = server_of(render({"probes": {"startupSeconds": 1200}}))["startupProbe"]
    assert slow["periodSeconds"] * slow["failureThreshold"] == 1200


def test_only_changed_options_replace_pods(render: Render) -> None:
    def template(**values: Any) -> Document:
        pods: Document = only(render(values), "Deployment")["spec"]["template"]
        return pods

    assert template(config={"max_rows": 8}) != template()
    assert template(replicas=3, podDisruptionBudget={"enabled": False}) == template()


def test_an_autoscaler_owns_the_number_of_pods(render: Render) -> None:
    assert only(render({"replicas": 3}), "Deployment")["spec"]["replicas"] == 3
    assert "replicas" not in only(render({"autoscaling": {"by": "hpa"}}), "Deployment")["spec"]


def test_metrics_in_the_manifests_exist() -> None:
    """Covers the chart and the autoscaling examples."""
    metrics = ServerMetrics()
    metrics.model("any")
    exposed = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    rules = CHART / "files"  # also name recorded series and other exporters; tests/deploy/monitoring checks them
    files = [path for path in DEPLOY.rglob("*.yaml") if rules not in path.parents]
    named = {
        metric
        for path in [*files, *CHART.glob("templates/*")]
        for metric in re.findall(r"\bdragoman_(?!server\b|training\b)[a-z_]+", path.read_text(encoding="utf-8"))
    }
    assert "dragoman_requests_waiting" in named
    assert named <= exposed


def test_kedas_query_selects_the_pods_of_this_release(render: Render) -> None:
    keda = {"by": "keda", "keda": {"serverAddress": "http://p:9090"}}
    scaled = only(render({"autoscaling": keda}, "--namespace", "speech"), "ScaledObject")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    found = re.fullmatch(r'sum\(dragoman_requests_waiting\{namespace="speech",pod=~"(.+)"\}\)', query)
    assert found is not None
    assert re.fullmatch(found[1], "dragoman-6d4cf56db6-x7k2p")
    assert not re.fullmatch(found[1], "dragoman-beta-6d4cf56db6-x7k2p")


def test_kedas_query_selects_pods_with_truncated_names(render: Render) -> None:
    """A pod's name is the first 58 characters of NAME-HASH- and 5 more."""
    keda = {"by": "keda", "keda": {"serverAddress": "http://p:9090"}}
    documents = render({"fullnameOverride": "a" * 63, "autoscaling": keda})
    query = only(documents, "ScaledObject")["spec"]["triggers"][0]["metadata"]["query"]
    found = re.search(r'pod=~"(.+)"', query)
    assert found is not None
    pod = f"{only(documents, 'Deployment')['metadata']['name']}-6d4cf56db6-"[:58] + "x7k2p"
    assert re.fullmatch(found[1], pod)


def test_kedas_authentication(render: Render) -> None:
    def trigger(**keda: str) -> Document:
        values = {"by": "keda", "keda": {"serverAddress": "https://p.example", **keda}}
        (spec,) = only(render({"autoscaling": values}), "ScaledObject")["spec"]["triggers"]
        return {
            "authModes": spec["metadata"].get("authModes"),
            "authenticationRef": spec.get("authenticationRef"),
        }

    assert trigger() == {"authModes": None, "authenticationRef": None}
    reference = {"name": "prometheus"}
    with_modes = trigger(authentication="prometheus", authModes="tls,basic")
    assert with_modes == {"authModes": "tls,basic", "authenticationRef": reference}
    by_pod_identity = trigger(authentication="prometheus", authModes="none")
    assert by_pod_identity == {"authModes": None, "authenticationRef": reference}


def test_both_autoscalers_read_the_same_metric(render: Render) -> None:
    """prometheus-adapter exposes the metric under the name that the HorizontalPodAutoscaler reads."""
    hpa = only(render(VALUES["autoscaling-hpa"]), "HorizontalPodAutoscaler")
    (rule,) = yaml.safe_load((DEPLOY / "autoscaling" / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    metric = hpa["spec"]["metrics"][0]["pods"]["metric"]["name"]
    assert rule["name"] == {"matches": f"^{metric}$", "as": metric}
    assert rule["seriesQuery"].startswith(f"{metric}{{")
