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


def test_sigterm_while_loading_ends_without_having_been_ready(tiny_bundle: Path) -> None:
    command = [serve_command(), "--bundle", str(tiny_bundle), "--port", "0", "--metrics-port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        events = [json.loads(server.stderr.readline())["event"]]
        server.send_signal(signal.SIGTERM)
        events += [json.loads(line)["event"] for line in server.stderr]
        assert server.wait(30) == 0
    assert events[0] == "listening"
    assert events[-1] == "stopped"
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
