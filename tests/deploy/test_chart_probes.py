"""A server with the chart's options answers the chart's probes, and stops within the chart's grace period."""

import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman import Client
from dragoman.local import LocalServer, free_port
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from tests.deploy.conftest import Document, Render, only
from tests.support.servers import G2PServer

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


@pytest.fixture(scope="module")
def pod(render: Render) -> Document:
    spec: Document = only(render(), "Deployment")["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def health_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(render: Render, health_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """Starts a server with the chart's options; flags override the address, the ports and `admin`."""
    folder = tmp_path_factory.mktemp("chart")
    file = folder / "server.yaml"
    file.write_text(only(render(), "ConfigMap")["data"]["server.yaml"], encoding="utf-8")
    arguments = ["--config", str(file), "--admin", "--health-port", str(health_port)]
    with G2PServer(*arguments, log=folder / "server.log") as server:
        yield server


def passes(probe: dict[str, Any], server: LocalServer, health_port: int) -> bool:
    """Probes like the kubelet: status 200 to 399 passes, and SERVING for the whole server."""
    if "grpc" in probe:
        with grpc.insecure_channel(f"127.0.0.1:{health_port}") as channel:
            request = health_pb2.HealthCheckRequest(service=probe["grpc"].get("service", ""))
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=probe["timeoutSeconds"])
            except grpc.RpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
    assert probe["httpGet"]["port"] == "metrics"
    url = f"http://127.0.0.1:{server.metrics_port}{probe['httpGet']['path']}"
    try:
        with urllib.request.urlopen(url, timeout=probe["timeoutSeconds"]) as answer:
            return bool(200 <= answer.status < 400)
    except (OSError, urllib.error.URLError):
        return False


def test_probes_pass_while_it_serves(pod: Document, server: LocalServer, health_port: int) -> None:
    container = pod["containers"][0]
    assert {name: passes(container[name], server, health_port) for name in PROBES} == dict.fromkeys(PROBES, True)


def test_without_a_model_it_is_not_ready_but_alive(pod: Document, server: LocalServer, health_port: int) -> None:
    container = pod["containers"][0]
    with Client(server.address) as client:
        (model,) = client.models()
        client.unload_model(model.name)
        states = {name: passes(container[name], server, health_port) for name in ("readinessProbe", "livenessProbe")}
        client.load_model(model.name)
    assert states == {"readinessProbe": False, "livenessProbe": True}
    assert passes(container["readinessProbe"], server, health_port)


def test_it_drains_alive_within_the_grace_period(pod: Document, server: LocalServer, health_port: int) -> None:
    """It still answers clients that do not know yet."""
    container = pod["containers"][0]
    server.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + pod["terminationGracePeriodSeconds"]
    while passes(container["readinessProbe"], server, health_port) and time.monotonic() < deadline:
        time.sleep(0.05)
    with grpc.insecure_channel(server.address) as channel:
        request = pb.GenerateRequest(input=pb.Input(text="dragoman"))
        assert generation_pb2_grpc.GenerationServiceStub(channel).Generate(request, timeout=10).hypotheses
    assert passes(container["livenessProbe"], server, health_port)
    assert server.process.wait(deadline - time.monotonic()) == 0
