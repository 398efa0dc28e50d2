"""What the probes, grpc.health.v1 and calls say of a real server in each of its states."""

import http.client
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman.inference import open_inference_pb2 as oip
from dragoman.inference import open_inference_pb2_grpc
from dragoman.local import LOOPBACK, free_port, serve_command
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from dragoman_server.bundle.load import shipped_bundle
from tests.support.bundles import failing
from tests.support.certificates import Authority
from tests.support.waiting import PATIENCE, until

ALONE = [("grpc.use_local_subchannel_pool", 1)]  # else it would remember that there was no server
PROBES = ("startupz", "readyz", "livez")
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
REQUEST = pb.GenerateRequest(input=pb.Input(text="court"))


@dataclass(frozen=True)
class State:
    """What a server says: of each probe 200 or 503; of health SERVING or not; of a call its code."""

    startupz: int
    readyz: int
    livez: int
    health: str
    ready: bool
    call: str


def probe(port: int, path: str) -> tuple[int, str]:
    """Its status and its words; 0 where there is nobody."""
    try:
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/{path}", timeout=10) as page:
                return page.status, page.read().decode().strip()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode().strip()
    except (OSError, http.client.HTTPException):  # it may also go in the middle of its answer
        return 0, ""


def state(port: int, metrics_port: int) -> State:
    with grpc.insecure_channel(f"{LOOPBACK}:{port}", ALONE) as channel:
        stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
        inference: Any = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        startupz, readyz, livez = (probe(metrics_port, path)[0] for path in PROBES)
        return State(
            startupz,
            readyz,
            livez,
            health=health_pb2.HealthCheckResponse.ServingStatus.Name(health.status),
            ready=inference.ServerReady(oip.ServerReadyRequest(), timeout=PATIENCE).ready,
            call=stub.Generate.future(REQUEST, timeout=PATIENCE).code().name,
        )


LOADING = State(503, 503, 200, "NOT_SERVING", False, "UNAVAILABLE")
READY = State(200, 200, 200, "SERVING", True, "OK")
LEAVING = State(200, 503, 200, "NOT_SERVING", False, "OK")
EMPTY = State(200, 503, 200, "NOT_SERVING", False, "UNAVAILABLE")


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """A server that need not be ready: the process, and its ports."""
    port, metrics_port = free_port(), free_port()
    command = [serve_command(), "--port", str(port), "--metrics-port", str(metrics_port), "--engines", "1", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: probe(metrics_port, "livez")[0] == 200)
            yield process, port, metrics_port
        finally:
            process.kill()


def test_loading_ready_and_leaving_are_told_apart(tmp_path: Path) -> None:
    """It can't load before it has read the manifest, which is a pipe at first."""
    bundle, pipe, manifest = tmp_path / "bundle", tmp_path / "pipe", tmp_path / "manifest.json"
    shutil.copytree(shipped_bundle(), bundle)
    (bundle / "manifest.json").rename(manifest)
    os.mkfifo(pipe)
    os.link(pipe, bundle / "manifest.json")
    with serving("--bundle", str(bundle), "--drain-delay-seconds", "600") as (server, port, metrics_port):
        until(lambda: answers(port))
        assert state(port, metrics_port) == LOADING
        assert probe(metrics_port, "startupz")[1] == probe(metrics_port, "readyz")[1] == "the model is loading"
        content = manifest.read_bytes()
        manifest.replace(bundle / "manifest.json")
        pipe.write_bytes(content)
        until(lambda: probe(metrics_port, "readyz")[0] == 200)
        assert state(port, metrics_port) == READY
        server.terminate()
        until(lambda: probe(metrics_port, "readyz") == (503, "the server is draining"))
        assert state(port, metrics_port) == LEAVING


def test_a_server_without_models_has_started_and_is_not_ready_before_it_has_one(tmp_path: Path) -> None:
    repository = ("--model-repository", str(tmp_path), "--repository-poll-seconds", "0.1")
    with serving(*repository) as (server, port, metrics_port):
        until(lambda: probe(metrics_port, "startupz")[0] == 200)
        assert state(port, metrics_port) == EMPTY
        (tmp_path / "g2p-en").mkdir()
        (tmp_path / "g2p-en" / "1").symlink_to(shipped_bundle())
        until(lambda: probe(metrics_port, "readyz")[0] == 200)
        assert state(port, metrics_port) == READY
        server.terminate()
        assert server.wait(PATIENCE) == 0


def test_a_server_whose_engine_failed_is_not_alive_and_ends(tmp_path: Path) -> None:
    seen: set[tuple[str, tuple[int, str]]] = set()
    arguments = ("--bundle", str(failing(tmp_path / "bundle")), "--max-device-errors", "1")
    with serving(*arguments) as (server, port, metrics_port):
        until(lambda: probe(metrics_port, "readyz")[0] == 200)
        with grpc.insecure_channel(f"{LOOPBACK}:{port}") as channel:
            stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
            while server.poll() is None:  # as long as calls come it takes its time to end
                calls = [stub.Generate.future(pb.GenerateRequest(input=pb.Input(text="z"))) for _ in range(10)]
                seen |= {(path, probe(metrics_port, path)) for path in PROBES}
                assert {call.code() for call in calls} == {grpc.StatusCode.UNAVAILABLE}
        assert server.wait() == 1
    gone = {(path, (0, "")) for path in PROBES}
    before = {(path, (200, "ok")) for path in PROBES} | {("readyz", (503, "no model can answer at the moment"))}
    assert seen - gone - before == {("readyz", (503, "an engine failed")), ("livez", (503, "an engine failed"))}


def test_the_health_port_tells_of_the_server_from_start_to_end(tmp_path: Path) -> None:
    """In plain text beside TLS; and a watch there, which has a thread, does not keep the process from ending."""
    pair, health_port = Authority(tmp_path, "authority").sign("server"), free_port()
    options = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--health-port", str(health_port))
    with serving(*options) as (server, _, _):
        until(lambda: answers(health_port))
        with grpc.insecure_channel(f"{LOOPBACK}:{health_port}", ALONE) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
            first = next(watch).status
            assert first == SERVING or next(watch).status == SERVING, "it may have loaded before it was asked"
            server.terminate()
            assert [each.status for each in watch] == [NOT_SERVING]
        assert server.wait(PATIENCE) == 0


def answers(port: int) -> bool:
    with grpc.insecure_channel(f"{LOOPBACK}:{port}", ALONE) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check.future(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        return check.exception() is None
