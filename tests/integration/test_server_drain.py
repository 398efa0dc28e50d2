"""What probes, health and calls show from start to exit, and how a server drains."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman import Client, HealthStatus, Result
from dragoman.inference import open_inference_pb2 as oip
from dragoman.inference import open_inference_pb2_grpc
from dragoman.local import LOOPBACK, LocalServer, free_port, serve_command
from dragoman.retry import NO_RETRY
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from tests.conftest import StartServer
from tests.support.bundles import SHIPPED_G2P, failing, lengthened
from tests.support.certificates import Authority
from tests.support.metrics_page import sum_of
from tests.support.servers import serving_g2p
from tests.support.waiting import PATIENCE, until

ALONE = [("grpc.use_local_subchannel_pool", 1)]  # a channel shares no connection, and remembers no failure
PROBES = ("startupz", "readyz", "livez")
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
REQUEST = pb.GenerateRequest(input=pb.Input(text="court"))


@dataclass(frozen=True)
class State:
    """Status codes of the probes, health, readiness, and the status of a call."""

    startupz: int
    readyz: int
    livez: int
    health: str
    ready: bool
    call: str


def probe(port: int, path: str) -> tuple[int, str]:
    """Returns status and text; 0 if nobody answers."""
    try:
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/{path}", timeout=10) as page:
                return page.status, page.read().decode().strip()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode().strip()
    except (OSError, http.client.HTTPException):  # it may exit while it answers
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
DRAINING = State(200, 503, 200, "NOT_SERVING", False, "OK")
EMPTY = State(200, 503, 200, "NOT_SERVING", False, "UNAVAILABLE")


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """Starts a server without waiting until it is ready; yields the process and its ports."""
    port, metrics_port = free_port(), free_port()
    command = [serve_command(), "--port", str(port), "--metrics-port", str(metrics_port), "--engines", "1"]
    command += serving_g2p(*arguments)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: probe(metrics_port, "livez")[0] == 200)
            yield process, port, metrics_port
        finally:
            process.kill()


def test_the_states_of_loading_ready_and_draining_servers(tmp_path: Path) -> None:
    """The manifest is a pipe at first, which delays loading."""
    bundle, pipe, manifest = tmp_path / "bundle", tmp_path / "pipe", tmp_path / "manifest.json"
    shutil.copytree(SHIPPED_G2P, bundle)
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
        assert state(port, metrics_port) == DRAINING


def test_a_server_without_models_is_started_but_not_ready(tmp_path: Path) -> None:
    repository = ("--model-repository", str(tmp_path), "--repository-poll-seconds", "0.1")
    with serving(*repository) as (server, port, metrics_port):
        until(lambda: probe(metrics_port, "startupz")[0] == 200)
        assert state(port, metrics_port) == EMPTY
        (tmp_path / "g2p-en").mkdir()
        (tmp_path / "g2p-en" / "1").symlink_to(SHIPPED_G2P)
        until(lambda: probe(metrics_port, "readyz")[0] == 200)
        assert state(port, metrics_port) == READY
        server.terminate()
        assert server.wait(PATIENCE) == 0


def test_a_server_with_a_failed_engine_is_not_alive_and_exits(tmp_path: Path) -> None:
    seen: set[tuple[str, tuple[int, str]]] = set()
    arguments = ("--bundle", str(failing(tmp_path / "bundle")), "--max-device-errors", "1")
    with serving(*arguments) as (server, port, metrics_port):
        until(lambda: probe(metrics_port, "readyz")[0] == 200)
        with grpc.insecure_channel(f"{LOOPBACK}:{port}") as channel:
            stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
            while server.poll() is None:  # it keeps running while calls arrive
                calls = [stub.Generate.future(pb.GenerateRequest(input=pb.Input(text="z"))) for _ in range(10)]
                seen |= {(path, probe(metrics_port, path)) for path in PROBES}
                assert {call.code() for call in calls} == {grpc.StatusCode.UNAVAILABLE}
        assert server.wait() == 1
    gone = {(path, (0, "")) for path in PROBES}
    before = {(path, (200, "ok")) for path in PROBES} | {("readyz", (503, "no model can answer at the moment"))}
    assert seen - gone - before == {("readyz", (503, "an engine failed")), ("livez", (503, "an engine failed"))}


def test_the_health_port_from_start_to_exit(tmp_path: Path) -> None:
    """It uses plain text beside TLS, and the thread of a watch does not keep the process from exiting."""
    pair, health_port = Authority(tmp_path, "authority").sign("server"), free_port()
    options = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--health-port", str(health_port))
    with serving(*options) as (server, _, _):
        until(lambda: answers(health_port))
        with grpc.insecure_channel(f"{LOOPBACK}:{health_port}", ALONE) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
            first = next(watch).status
            assert first == SERVING or next(watch).status == SERVING, "it may already have loaded"
            server.terminate()
            assert [each.status for each in watch] == [NOT_SERVING]
        assert server.wait(PATIENCE) == 0


def answers(port: int) -> bool:
    with grpc.insecure_channel(f"{LOOPBACK}:{port}", ALONE) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check.future(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        return check.exception() is None


WORD = pb.Input(text="dragoman")
SHORT = pb.GenerateRequest(input=WORD)
TOKENS = 30_000  # which take tens of seconds to decode
LONG = pb.GenerateRequest(
    input=WORD, options=pb.GenerationOptions(min_new_tokens=TOKENS, max_new_tokens=TOKENS), priority=pb.PRIORITY_BATCH
)


@pytest.fixture(scope="module")
def long_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lengthened(tmp_path_factory.mktemp("long") / "bundle", TOKENS)


def stub(channel: grpc.Channel) -> Any:
    return generation_pb2_grpc.GenerationServiceStub(channel)


def watch(channel: grpc.Channel) -> Any:
    return health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())


def running(server: LocalServer) -> float:
    return sum_of(server, "dragoman_rows_running")


def is_listening(server: LocalServer) -> bool:
    try:
        socket.create_connection((LOOPBACK, server.port)).close()
    except OSError:
        return False
    return True


def test_it_is_unready_at_once_and_serves_during_the_delay(start_server: StartServer) -> None:
    server = start_server("--engines", "1", "--drain-delay-seconds", "600")
    with grpc.insecure_channel(server.address) as channel, grpc.insecure_channel(server.address, ALONE) as late:
        watches = [watch(channel) for _ in range(50)]
        assert [next(stream).status for stream in watches] == [SERVING] * 50
        server.process.send_signal(signal.SIGTERM)
        assert [next(stream).status for stream in watches] == [NOT_SERVING] * 50
        assert stub(channel).Generate(SHORT).hypotheses[0].text
        assert stub(late).Generate(SHORT).hypotheses[0].text, "new connections are served too"
        assert probe(server.metrics_port, "readyz") == (503, "the server is draining")
        assert probe(server.metrics_port, "livez") == probe(server.metrics_port, "startupz") == (200, "ok")
        assert health_pb2_grpc.HealthStub(late).Check(health_pb2.HealthCheckRequest()).status == NOT_SERVING
        inference: Any = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert not inference.ServerReady(oip.ServerReadyRequest()).ready
        assert inference.ServerLive(oip.ServerLiveRequest()).live
    server.kill()


def test_after_the_delay_it_refuses_calls_and_exits(start_server: StartServer) -> None:
    server = start_server("--engines", "1", "--drain-delay-seconds", "0.5", "--log-format", "json")
    with grpc.insecure_channel(server.address) as channel:
        watches = [watch(channel) for _ in range(50)]
        assert [next(stream).status for stream in watches] == [SERVING] * 50
        server.process.send_signal(signal.SIGTERM)
        assert [next(stream).status for stream in watches] == [NOT_SERVING] * 50
        until(lambda: stub(channel).Generate.future(SHORT).code() is not grpc.StatusCode.OK)
        assert stub(channel).Generate.future(SHORT).code() is grpc.StatusCode.UNAVAILABLE
        assert [list(stream) for stream in watches] == [[]] * 50, "they end, and delayed nothing"
        assert server.process.wait(PATIENCE) == 0
    events = [json.loads(line)["event"] for line in server.log.read_text().splitlines()]
    steps = ("ready", "signal", "drain delay", "draining", "stopped")
    assert [event for event in events if event in steps] == list(steps)


def test_running_calls_finish_after_the_port_is_closed(start_server: StartServer, long_bundle: Path) -> None:
    """Else a client that keeps its connection would send calls here as long as one runs."""
    server = start_server("--bundle", str(long_bundle), "--engines", "1", "--max-rows", "2", "--drain-seconds", "60")
    with grpc.insecure_channel(server.address) as channel:
        batch = stub(channel).GenerateBatch.future(pb.GenerateBatchRequest(inputs=[WORD] * 50))
        with_deadline = stub(channel).Generate.future(LONG, timeout=3)
        endless = stub(channel).Generate.future(LONG)
        until(lambda: sum_of(server, "dragoman_requests_in_flight", "Generate") == 3)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: not is_listening(server))
        assert not endless.done()
        assert probe(server.metrics_port, "livez") == (200, "ok")
        assert with_deadline.exception().code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert all(item.HasField("response") for item in batch.result().items)
        assert not endless.done()
        endless.cancel()
        assert server.process.wait(PATIENCE) == 0


def test_calls_that_do_not_finish_in_time_are_unavailable(start_server: StartServer, long_bundle: Path) -> None:
    server = start_server("--bundle", str(long_bundle), "--engines", "1", "--max-rows", "1", "--drain-seconds", "0.5")
    with grpc.insecure_channel(server.address) as channel:
        endless, waiting = (stub(channel).Generate.future(LONG) for _ in range(2))
        until(lambda: running(server) == 1)
        server.process.send_signal(signal.SIGTERM)
        codes = [call.exception().code() for call in (endless, waiting)]
        assert codes == [grpc.StatusCode.UNAVAILABLE] * 2
        assert server.process.wait(PATIENCE) == 0


def test_a_second_signal_ends_the_delay_and_the_server(start_server: StartServer) -> None:
    server = start_server("--engines", "1", "--drain-delay-seconds", "600")
    with grpc.insecure_channel(server.address) as channel:
        watching = watch(channel)
        assert next(watching).status == SERVING
        server.process.send_signal(signal.SIGTERM)
        assert next(watching).status == NOT_SERVING
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 1
        assert watching.exception().code() is grpc.StatusCode.UNAVAILABLE


def test_a_closed_terminal_lets_running_calls_finish(start_server: StartServer) -> None:
    server = start_server("--engines", "1", "--drain-delay-seconds", "1")
    with grpc.insecure_channel(server.address) as channel:
        watching = watch(channel)
        assert next(watching).status == SERVING
        server.process.send_signal(signal.SIGHUP)
        assert next(watching).status == NOT_SERVING
        assert stub(channel).Generate(SHORT).hypotheses[0].text
    assert server.process.wait(PATIENCE) == 0


def test_nohup_keeps_a_server_from_stopping_with_its_terminal(start_server: StartServer) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does; restored after the test
    server = start_server("--engines", "1", "--drain-delay-seconds", "1")
    server.process.send_signal(signal.SIGHUP)
    with grpc.insecure_channel(server.address) as channel:
        assert stub(channel).Generate(SHORT).hypotheses[0].text
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE) == 0, "SIGTERM was the first signal that counts"


def test_calls_that_never_stop_arriving_get_unavailable(start_server: StartServer) -> None:
    """gRPC itself would end some with CANCELLED. These clients do not watch health."""
    server = start_server("--engines", "1", "--log-requests", "none")
    codes: set[grpc.StatusCode] = set()
    with grpc.insecure_channel(server.address) as channel:

        def call_on() -> None:
            while server.process.poll() is None:
                calls = [stub(channel).Generate.future(SHORT, timeout=PATIENCE) for _ in range(20)]
                codes.update(call.code() for call in calls)

        callers = [threading.Thread(target=call_on) for _ in range(4)]
        for caller in callers:
            caller.start()
        until(lambda: grpc.StatusCode.OK in codes)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
        for caller in callers:
            caller.join()
    assert codes == {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}


def test_our_client_calls_a_draining_server_if_it_knows_no_other(start_server: StartServer) -> None:
    """Behind a proxy, other servers of the same address may be ready; and this one still answers."""
    server = start_server("--engines", "1", "--drain-delay-seconds", "600")
    nobody = f"{LOOPBACK}:{free_port()}"
    with Client(server.address, retry=NO_RETRY) as alone, Client([server.address, nobody], retry=NO_RETRY) as watching:
        assert alone.generate("court").text == watching.generate("court").text == "K AO R T"
        server.process.send_signal(signal.SIGTERM)
        until(lambda: alone.health() is HealthStatus.NOT_SERVING)
        for _ in range(20):  # the watch may report it in between
            assert alone.generate("court").text == watching.generate("court").text == "K AO R T"
            assert watching.generate_stream("court").result().text == "K AO R T"
        assert [each.text for each in watching.generate_many(["court"] * 3) if isinstance(each, Result)] == [
            "K AO R T"
        ] * 3
        assert alone.repository_status().versions
    server.kill()
