"""What may come between a server and its calls: signals while it loads, pings of clients that wait."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman.local import LocalServer, serve_command
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from tests.conftest import StartServer
from tests.support.waiting import PATIENCE, until


def test_sigterm_while_loading_ends_without_having_been_ready(tiny_bundle: Path) -> None:
    command = [serve_command(), "--bundle", str(tiny_bundle), "--port", "0", "--metrics-port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        events: list[str] = []
        while "listening" not in events:  # before that nobody has heard of it
            events.append(json.loads(server.stderr.readline())["event"])
        server.send_signal(signal.SIGTERM)
        events += [json.loads(line)["event"] for line in server.stderr]
        assert server.wait(PATIENCE) == 0
    assert "stopped" in events  # what loads may have its say until the process ends
    assert "ready" not in events[events.index("signal") :]


def test_a_client_that_waits_and_pings_is_not_sent_away(tiny_server: LocalServer) -> None:
    # gRPC's own default ends the connection at the third ping that no data came between.
    options = [("grpc.keepalive_time_ms", 1200), ("grpc.http2.max_pings_without_data", 0)]
    with grpc.insecure_channel(tiny_server.address, options=options) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=6.5)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        error = watch.exception()
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED, error


def test_bytes_that_are_no_message_of_a_stream_are_refused(tiny_server: LocalServer) -> None:
    with grpc.insecure_channel(tiny_server.address) as channel:
        ask: Any = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        with pytest.raises(grpc.RpcError) as refused:
            list(ask(iter([b"\xff\xff"])))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_calls_that_come_while_the_server_ends_are_told_to_go_elsewhere(
    start_server: StartServer, tiny_bundle: Path
) -> None:
    server = start_server("--bundle", str(tiny_bundle))
    with grpc.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        request = pb.GenerateRequest(input=pb.Input(text="4207"))
        calls = [stub.Generate.future(request) for _ in range(500)]
        server.process.send_signal(signal.SIGTERM)

        def some_are_sent_away() -> bool:
            calls.extend(stub.Generate.future(request) for _ in range(500))
            return any(call.done() and call.code() is grpc.StatusCode.UNAVAILABLE for call in calls)

        until(some_are_sent_away)
        codes = {call.code() for call in calls}
        assert server.process.wait(PATIENCE) == 0
    assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}
