"""The objects of the chart: valid for Kubernetes, restricted, and consistent with each other."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from grpc_health.v1 import health_pb2

from deploy.generate import CHART, DEPLOY
from dragoman.inference import open_inference_pb2
from dragoman.v1 import generation_pb2
from tests.deploy.conftest import Document, Render, only
from tests.deploy.kube_schemas import MINORS, faults, unrestricted

EXAMPLES = sorted((DEPLOY / "helm" / "examples").glob("*.yaml"))
KEDA = {"serverAddress": "https://p.example", "authentication": "prometheus", "authModes": "tls,basic"}
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    **{path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in EXAMPLES},
    # Disables everything that is enabled by default, and changes every choice.
    "bare": {
        "fullnameOverride": "speech-g2p",
        "replicas": 0,
        "user": None,
        "service": {"headless": False, "port": 8033},
        "metrics": {"port": 8034},
        "probes": {"protocol": "http", "port": 8035, "startupSeconds": 900},
        "serviceAccount": {"create": False},
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "topologySpreadConstraints": [],
        "strategy": {"type": "Recreate"},
        "image": {"repository": "registry.example/dragoman", "digest": f"sha256:{'0a' * 32}", "pullPolicy": "Always"},
        "models": {"source": "claim", "claim": {"name": "models", "subPath": "g2p/1"}},
        "config": {"host": "::", "max_message_bytes": 100_000_000, "memory_budget": "512MiB", "hang_seconds": None},
    },
    "full": {
        "resources": {
            "requests": {"ephemeral-storage": "2Gi"},
            "limits": {"ephemeral-storage": "4Gi", "hugepages-2Mi": "64Mi"},
        },
        "nameOverride": "g2p",
        "podLabels": {"team": "speech"},
        "podAnnotations": {"example.com/note": "yes"},
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "tolerations": [{"key": "speech", "operator": "Exists"}],
        "priorityClassName": "serving",
        "runtimeClassName": "nvidia",
        "gpus": 1,
        "gpuResource": "nvidia.com/mig-1g.10gb",
        "terminationGracePeriodSeconds": 90,
        "serviceAccount": {"name": "speech", "annotations": {"example.com/role": "reader"}},
        "service": {"annotations": {"example.com/scheme": "internal"}},
        "podDisruptionBudget": {"maxUnavailable": "25%"},
        "grpcRoute": {"enabled": True, "parentRefs": [{"name": "all"}], "annotations": {"example.com/a": "b"}},
        "monitoring": {"podMonitor": {"enabled": True, "labels": {"release": "stack"}, "interval": "5s"}},
        "models": {
            "source": "artifact",
            "repository": True,
            "artifact": {"reference": "r.example/m:1", "subPath": "a"},
        },
        "autoscaling": {"by": "keda", "waitingPerPod": 0.5, "keda": KEDA},
    },
}


@pytest.fixture(scope="module", params=VALUES)
def documents(request: pytest.FixtureRequest, render: Render) -> list[Document]:
    return render(VALUES[request.param])


def test_objects_are_valid(documents: list[Document]) -> None:
    assert {minor: {each["kind"]: faults(each, minor) for each in documents} for minor in MINORS} == {
        minor: {each["kind"]: [] for each in documents} for minor in MINORS
    }


def test_pods_meet_the_restricted_profile(documents: list[Document]) -> None:
    pod = only(documents, "Deployment")["spec"]["template"]["spec"]
    assert unrestricted(pod) == []
    assert pod["automountServiceAccountToken"] is False
    assert all(each["securityContext"]["readOnlyRootFilesystem"] for each in pod["containers"])


def test_nothing_needs_a_shell(documents: list[Document]) -> None:
    """The image has no shell; only its entry point can run."""
    server = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert "command" not in server
    assert "lifecycle" not in server
    probes = [server[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert not any("exec" in probe for probe in probes)


def test_references_resolve(documents: list[Document]) -> None:
    """Covers mounted volumes, probed ports and selected labels."""
    deployment = only(documents, "Deployment")
    template = deployment["spec"]["template"]
    server, labels = template["spec"]["containers"][0], template["metadata"]["labels"].items()
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    volumes = [volume["name"] for volume in template["spec"]["volumes"]]
    containers = [*template["spec"].get("initContainers", ()), server]
    mounted = [mount["name"] for each in containers for mount in each["volumeMounts"]]
    assert sorted(set(mounted)) == sorted(volumes)
    paths = [mount["mountPath"] for mount in server["volumeMounts"]]
    assert len(paths) == len(set(paths))
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels
    for service in (each for each in documents if each["kind"] == "Service"):
        assert service["spec"]["selector"].items() <= labels
        # A headless Service does not translate ports: clients connect to those of the pods.
        assert all(ports[port["targetPort"]] == port["port"] for port in service["spec"]["ports"])
    for each in documents:
        spec = each.get("spec", {})
        if each["kind"] in ("PodDisruptionBudget", "PodMonitor"):
            assert spec["selector"]["matchLabels"].items() <= labels
        if each["kind"] == "NetworkPolicy":
            assert spec["podSelector"]["matchLabels"].items() <= labels
            # Health checks come from the kubelet, which policies never block.
            others = [name for name in ports if name != "health"]
            assert [port["port"] for rule in spec["ingress"] for port in rule["ports"]] == others
        if "scaleTargetRef" in spec:
            assert spec["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
        if each["kind"] == "GRPCRoute":
            backend = spec["rules"][0]["backendRefs"][0]
            service = only(documents, "Service", backend["name"])
            assert [port["port"] for port in service["spec"]["ports"]] == [backend["port"]]
    accounts = [each["metadata"]["name"] for each in documents if each["kind"] == "ServiceAccount"]
    assert template["spec"]["serviceAccountName"] in (*accounts, "default")


def test_numeric_names_stay_strings(render: Render) -> None:
    """Releases and Secrets may be named by a number or a date."""
    values = {
        "fullnameOverride": "g2p",
        "nameOverride": "7",
        "tls": {"secretName": "11", "clientAuthoritySecretName": "12"},
        "apiKeys": {"secretName": "13"},
        "models": {"source": "claim", "claim": {"name": "14"}},
        "serviceAccount": {"name": "15"},
        "priorityClassName": "16",
        "runtimeClassName": "17",
        "autoscaling": {"by": "keda", "keda": {**KEDA, "authentication": "18"}},
        "monitoring": {"podMonitor": {"enabled": True}},
    }
    documents = render(values, "--namespace", "19", release="123")
    assert {each["kind"]: faults(each, MINORS[0]) for each in documents} == {each["kind"]: [] for each in documents}
    assert {each["metadata"]["namespace"] for each in documents} == {"19"}
    labels = only(documents, "Deployment")["spec"]["selector"]["matchLabels"]
    assert labels == {"app.kubernetes.io/name": "7", "app.kubernetes.io/instance": "123"}


def test_claims_are_mounted_read_only(render: Render) -> None:
    pod = only(render(VALUES["models-on-claim"]), "Deployment")["spec"]["template"]["spec"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "models"]
    assert volume["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}


@pytest.mark.parametrize(("startup", "ready"), [(300, 60), (300, 600), (1800, 60), (1, 0)])
def test_the_progress_deadline_covers_a_successful_start(render: Render, startup: int, ready: int) -> None:
    """Kubernetes rejects a deadline that does not exceed minReadySeconds."""
    values = {"probes": {"startupSeconds": startup}, "minReadySeconds": ready}
    spec = only(render(values), "Deployment")["spec"]
    assert spec["progressDeadlineSeconds"] > startup + ready
    assert spec["minReadySeconds"] == ready


def test_gateways_with_backend_tls(render: Render) -> None:
    values = {"tls": {"secretName": "certificate"}, "grpcRoute": {**VALUES["gateway"]["grpcRoute"], "backendTLS": True}}
    documents = render(values)
    assert faults(only(documents, "GRPCRoute"), MINORS[0]) == []
    (port,) = only(documents, "Service", "dragoman")["spec"]["ports"]
    assert "appProtocol" not in port


def test_the_route_does_not_expose_the_admin_service(render: Render) -> None:
    (rule,) = only(render(VALUES["gateway"]), "GRPCRoute")["spec"]["rules"]
    services = [match["method"] for match in rule["matches"]]
    known = [generation_pb2.DESCRIPTOR, open_inference_pb2.DESCRIPTOR]
    names = [service.full_name for file in known for service in file.services_by_name.values()]
    assert services == [
        {"service": name} for name in [*names, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name]
    ]


def test_the_schemas_find_faults(render: Render) -> None:
    """Tests the tests: the schemas find an unknown field in each kind of object."""
    everything = VALUES["full"] | {"autoscaling": {"by": "hpa"}, "monitoring": {"podMonitor": {"enabled": True}}}
    kinds = set()
    for document in [*render(everything), *render(VALUES["full"])]:
        if (spec := document.get("spec")) is None:
            spec = document
        for minor in MINORS:
            assert faults(document, minor) == []
        spec["oops"] = 1
        assert any("oops" in fault for fault in faults(document, MINORS[0])), document["kind"]
        kinds.add(document["kind"])
    assert {"Deployment", "Service", "HorizontalPodAutoscaler", "ScaledObject", "PodMonitor", "GRPCRoute"} <= kinds


@pytest.mark.parametrize("name", ["defaults", "full"])
def test_lint(helm: Callable[..., subprocess.CompletedProcess[str]], name: str) -> None:
    done = helm("lint", "--strict", values=VALUES[name])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("minor", MINORS)
def test_every_kubernetes_minor_is_accepted(render: Render, minor: str) -> None:
    assert render(VALUES["full"], "--kube-version", minor)


def test_the_example_gateway_accepts_its_route(render: Render) -> None:
    gateway = yaml.safe_load((DEPLOY / "gateway" / "gateway.yaml").read_text(encoding="utf-8"))
    assert faults(gateway, MINORS[0]) == []
    route = only(render(VALUES["gateway"], "--namespace", "speech"), "GRPCRoute")
    parent, listener = route["spec"]["parentRefs"][0], gateway["spec"]["listeners"][0]
    assert (parent["name"], parent["namespace"]) == (gateway["metadata"]["name"], gateway["metadata"]["namespace"])
    assert (parent["sectionName"], route["spec"]["hostnames"]) == (listener["name"], [listener["hostname"]])
    allowed = listener["allowedRoutes"]["namespaces"]["selector"]["matchLabels"]
    assert allowed == {"kubernetes.io/metadata.name": route["metadata"]["namespace"]}


def test_the_packaged_chart_is_complete(
    helm: Callable[..., subprocess.CompletedProcess[str]], tools: tuple[Path, Path], tmp_path: Path
) -> None:
    """The archive of `helm package` renders the same objects."""
    assert helm("package", "--destination", tmp_path).returncode == 0
    (archive,) = tmp_path.glob("dragoman-*.tgz")
    values = DEPLOY / "helm" / "examples" / "monitoring.yaml"
    command = [tools[0], "template", "dragoman", archive, "--values", values]
    packed = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    assert packed.stdout == helm("template", values=VALUES["monitoring"]).stdout


def test_runbook_urls(render: Render) -> None:
    for url in ("https://git.example.com/dragoman/blob/main", "https://git.example.com/dragoman/blob/main/"):
        values = {"monitoring": {"rules": {"enabled": True, "runbookUrl": url}}}
        groups = only(render(values), "PrometheusRule")["spec"]["groups"]
        alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
        assert alerts
        assert {rule["annotations"]["runbook_url"] for rule in alerts} == {
            f"https://git.example.com/dragoman/blob/main/deploy/monitoring/RUNBOOK.md#{rule['alert'].lower()}"
            for rule in alerts
        }
        summaries = {rule["annotations"]["summary"] for rule in alerts}
        as_they_are = only(render({"monitoring": {"rules": {"enabled": True}}}), "PrometheusRule")["spec"]["groups"]
        assert summaries == {r["annotations"]["summary"] for g in as_they_are for r in g["rules"] if "alert" in r}


def test_all_values_except_nullable_ones_are_required() -> None:
    """Helm drops defaults that are set to null; the schema then rejects them by name before a template fails."""

    def needs_more(schema: dict[str, Any], path: str = "") -> list[str]:
        if path == "config" or path.endswith("resources") or "properties" not in schema:
            return []
        found = [f"{path}.{name}".strip(".") for name in schema["properties"] if name not in schema.get("required", ())]
        for name, each in schema["properties"].items():
            found += needs_more(each, f"{path}.{name}".strip("."))
        return found

    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    nullable = {"user", "terminationGracePeriodSeconds", "topologySpreadConstraints"}
    rolling = "strategy.rollingUpdate"
    kubernetes_decides = {rolling, f"{rolling}.maxSurge", f"{rolling}.maxUnavailable"}
    assert set(needs_more(schema)) == {*nullable, *kubernetes_decides, "global", "enabled"}


def test_rules_and_dashboards_are_rendered_unchanged(render: Render) -> None:
    documents = render({"monitoring": {**VALUES["monitoring"]["monitoring"], "rules": {"enabled": True}}})
    files = sorted((CHART / "files" / "rules").glob("*.yaml"))
    groups = [group for path in files for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]]
    assert groups
    assert only(documents, "PrometheusRule")["spec"]["groups"] == groups
    paths = (CHART / "files" / "dashboards").glob("*.json")
    dashboards = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    maps = [each for each in documents if each["metadata"]["labels"].get("grafana_dashboard") == "1"]
    assert dashboards
    assert {name: json.loads(text) for each in maps for name, text in each["data"].items()} == dashboards
