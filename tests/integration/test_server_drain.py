"""How a server leaves: unready at once, serving on for a while, then finishing what it has, and gone."""

import json
import signal
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman import Client, HealthStatus, Result
from dragoman.inference import open_inference_pb2 as oip
from dragoman.inference import open_inference_pb2_grpc
from dragoman.local import LOOPBACK, LocalServer, free_port
from dragoman.retry import NO_RETRY
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from tests.conftest import StartServer
from tests.support.bundles import lengthened
from tests.support.samples import sum_of
from tests.support.waiting import PATIENCE, until

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
WORD = pb.Input(text="dragoman")
SHORT = pb.GenerateRequest(input=WORD)
TOKENS = 30_000  # that take tens of seconds to decode
LONG = pb.GenerateRequest(
    input=WORD, options=pb.GenerationOptions(min_new_tokens=TOKENS, max_new_tokens=TOKENS), priority=pb.PRIORITY_BATCH
)
ALONE = [("grpc.use_local_subchannel_pool", 1)]  # else channels to one server share a connection


@pytest.fixture(scope="module")
def long_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lengthened(tmp_path_factory.mktemp("long") / "bundle", TOKENS)


def stub(channel: grpc.Channel) -> Any:
    return generation_pb2_grpc.GenerationServiceStub(channel)


def watch(channel: grpc.Channel) -> Any:
    return health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())


def probe(server: LocalServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{server.metrics_port}/{path}", timeout=10) as page:
            return page.status, page.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode().strip()


def running(server: LocalServer) -> float:
    return sum_of(server, "dragoman_rows_running")


def is_listening(server: LocalServer) -> bool:
    try:
        socket.create_connection((LOOPBACK, server.port)).close()
    except OSError:
        return False
    return True


def test_it_is_unready_at_once_and_serves_on_for_the_delay(start_server: StartServer) -> None:
    server = start_server("--engines", "1", "--drain-delay-seconds", "600")
    with grpc.insecure_channel(server.address) as channel, grpc.insecure_channel(server.address, ALONE) as late:
        watches = [watch(channel) for _ in range(50)]
        assert [next(each).status for each in watches] == [SERVING] * 50
        server.process.send_signal(signal.SIGTERM)
        assert [next(each).status for each in watches] == [NOT_SERVING] * 50
        assert stub(channel).Generate(SHORT).hypotheses[0].text
        assert stub(late).Generate(SHORT).hypotheses[0].text, "new connections are served, too"
        assert probe(server, "readyz") == (503, "the server is draining")
        assert probe(server, "livez") == probe(server, "startupz") == (200, "ok")
        assert health_pb2_grpc.HealthStub(late).Check(health_pb2.HealthCheckRequest()).status == NOT_SERVING
        inference: Any = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert not inference.ServerReady(oip.ServerReadyRequest()).ready
        assert inference.ServerLive(oip.ServerLiveRequest()).live
    server.kill()


def test_after_the_delay_it_serves_nobody_and_ends(start_server: StartServer) -> None:
    server = start_server("--engines", "1", "--drain-delay-seconds", "0.5", "--log-format", "json")
    with grpc.insecure_channel(server.address) as channel:
        watches = [watch(channel) for _ in range(50)]
        assert [next(each).status for each in watches] == [SERVING] * 50
        server.process.send_signal(signal.SIGTERM)
        assert [next(each).status for each in watches] == [NOT_SERVING] * 50
        until(lambda: stub(channel).Generate.future(SHORT).code() is not grpc.StatusCode.OK)
        assert stub(channel).Generate.future(SHORT).code() is grpc.StatusCode.UNAVAILABLE
        assert [list(each) for each in watches] == [[]] * 50, "they end, and held up nothing"
        assert server.process.wait(PATIENCE) == 0
    told = [json.loads(line)["event"] for line in server.log.read_text().splitlines()]
    steps = ("ready", "signal", "drain delay", "draining", "stopped")
    assert [event for event in told if event in steps] == list(steps)


def test_what_runs_is_finished_while_nobody_can_connect_any_more(start_server: StartServer, long_bundle: Path) -> None:
    """A client that stays with its connection would else send its calls here as long as one runs."""
    server = start_server("--bundle", str(long_bundle), "--engines", "1", "--max-rows", "2", "--drain-seconds", "60")
    with grpc.insecure_channel(server.address) as channel:
        batch = stub(channel).GenerateBatch.future(pb.GenerateBatchRequest(inputs=[WORD] * 50))
        with_deadline = stub(channel).Generate.future(LONG, timeout=3)
        endless = stub(channel).Generate.future(LONG)
        until(lambda: sum_of(server, "dragoman_requests_in_flight", "Generate") == 3)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: not is_listening(server))
        assert not endless.done()
        assert probe(server, "livez") == (200, "ok")
        assert with_deadline.exception().code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert all(item.HasField("response") for item in batch.result().items)
        assert not endless.done()
        endless.cancel()
        assert server.process.wait(PATIENCE) == 0


def test_what_is_not_finished_when_its_time_is_over_is_unavailable(
    start_server: StartServer, long_bundle: Path
) -> None:
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


def test_calls_that_never_cease_are_all_told_to_go_elsewhere(start_server: StartServer) -> None:
    """Of clients that do not follow health; gRPC itself would end some of them with CANCELLED."""
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


def test_our_client_calls_a_server_that_leaves_where_it_knows_no_other(start_server: StartServer) -> None:
    """One's word need not be that of all behind an address, as behind a proxy; and this one answers, still."""
    server = start_server("--engines", "1", "--drain-delay-seconds", "600")
    nobody = f"{LOOPBACK}:{free_port()}"
    with Client(server.address, retry=NO_RETRY) as alone, Client([server.address, nobody], retry=NO_RETRY) as watching:
        assert alone.generate("court").text == watching.generate("court").text == "K AO R T"
        server.process.send_signal(signal.SIGTERM)
        until(lambda: alone.health() is HealthStatus.NOT_SERVING)
        for _ in range(20):  # it may hear of it in between
            assert alone.generate("court").text == watching.generate("court").text == "K AO R T"
            assert watching.generate_stream("court").result().text == "K AO R T"
        assert [each.text for each in watching.generate_many(["court"] * 3) if isinstance(each, Result)] == [
            "K AO R T"
        ] * 3
        assert alone.repository_status().versions
    server.kill()
