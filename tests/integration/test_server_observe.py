"""What a real server reports about calls: log lines, summaries and traces, and never their text."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from dragoman import Client, DeadlineExceededError, InvalidArgumentError, UnavailableError
from dragoman.local import LocalServer, free_port, serve_command
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from dragoman_server.new_key import add
from tests.conftest import StartServer
from tests.support.waiting import until

CANARY = "canary"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PHASES = ["tokenize_ms", "queue_ms", "encode_ms", "decode_ms", "detokenize_ms"]


def entries(server: LocalServer, event: str) -> list[dict[str, Any]]:
    """Returns the lines of the log after the server has exited."""
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """A trace collector."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def Export(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Runs a collector, and points servers started meanwhile to it."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    yield collector
    server.stop(None).wait()


def test_lines_of_calls_have_all_phases_and_the_caller_s_id(start_server: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    key = add(file, "team-a")
    server = start_server("--api-keys", str(file), "--summary-seconds", "0.2")
    with Client(server.address, api_key=key) as client:
        model = client.model()
        answer = client.generate(CANARY, beam_size=3, num_hypotheses=2)
        client.generate_batch([CANARY, "", "one"])
        assert list(client.generate_stream(CANARY))
    time.sleep(0.5)  # in which nothing is done
    assert server.stop() == 0
    lines = {entry["method"].partition("/")[2]: entry for entry in entries(server, "request")}
    single, batch, stream = (lines[name] for name in ("Generate", "GenerateBatch", "GenerateStream"))
    for entry in (single, batch, stream):
        spent = [entry[name] for name in PHASES]
        assert all(time >= 0 for time in spent)
        assert entry["encode_ms"] > 0
        assert entry["decode_ms"] > 0
        assert sum(spent) <= entry["total_ms"] + 0.01
        assert (entry["model"], entry["version"], entry["key"], entry["code"]) == (
            model.name,
            model.version,
            "team-a",
            "OK",
        )
    assert (single["source_tokens"], single["hypotheses"], single["finish"]) == (answer.source_tokens, 2, "eos")
    assert (batch["inputs"], batch["failed"], batch["finish"]) == (3, 1, "eos=2")
    assert len({entry["request_id"] for entry in lines.values()}) == len(lines)
    summaries = entries(server, "summary")
    assert sum(entry["calls"] for entry in summaries) == 4
    assert len(summaries) <= 4  # none while nothing was done
    text = server.log.read_text()
    assert CANARY not in text
    assert answer.text not in text
    assert key not in text


def test_a_failed_call_can_be_found_by_the_id_in_its_error(start_server: StartServer) -> None:
    server = start_server()
    with Client(server.address) as client:
        with pytest.raises(InvalidArgumentError) as wrong:
            client.generate("")
        with pytest.raises(DeadlineExceededError) as late:
            client.generate_batch([CANARY] * 5000, beam_size=8, min_new_tokens=40, max_new_tokens=40, timeout=1)
    assert server.stop() == 0
    lines = {entry["request_id"]: entry for entry in entries(server, "request")}
    assert lines[wrong.value.request_id or ""]["code"] == "INVALID_ARGUMENT"
    assert not hasattr(wrong.value, "__notes__")  # says all itself
    assert lines[late.value.request_id or ""]["code"] in ("DEADLINE_EXCEEDED", "CANCELLED")
    assert late.value.__notes__ == [f"request id: {late.value.request_id}"]


def test_traces_reach_a_collector_with_every_phase_and_no_text(start_server: StartServer, collector: Collector) -> None:
    server = start_server("--tracing")
    with grpc.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        request = pb.GenerateRequest(input=pb.Input(text=CANARY))
        answer = stub.Generate(request, metadata=[("traceparent", f"00-{TRACE}-{PARENT}-01")])
        wrong = pb.GenerateRequest(input=pb.Input(text=f"{CANARY}Ж"), model="")
        with pytest.raises(grpc.RpcError):
            stub.Generate(wrong)
    assert server.stop() == 0  # which sends what has not been sent
    spans = collector.spans
    mine = [span for span in spans if span.trace_id.hex() == TRACE]
    [call] = [span for span in mine if span.parent_span_id.hex() == PARENT]
    parts = sorted((span for span in mine if span is not call), key=lambda span: span.start_time_unix_nano)
    assert [span.name for span in parts] == ["receive", "tokenize", "wait", "encode", "decode", "detokenize"]
    assert all(span.parent_span_id == call.span_id for span in parts)
    assert all(before.end_time_unix_nano == after.start_time_unix_nano for before, after in pairwise(parts))
    assert call.start_time_unix_nano == parts[0].start_time_unix_nano
    assert abs(call.end_time_unix_nano / 1e9 - time.time()) < 600
    assert len({span.trace_id for span in spans}) == 2
    assert next(entry["trace_id"] for entry in entries(server, "request")) == TRACE
    sent = "".join(str(request) for request in collector.requests)
    assert 'string_value: "dragoman"' in sent
    assert CANARY not in sent
    assert answer.hypotheses[0].text not in sent


def test_a_missing_collector_only_loses_traces(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    server = start_server("--tracing")
    with Client(server.address) as client:
        assert client.generate(CANARY).text
    assert server.stop(20) == 0
    assert CANARY not in server.log.read_text()


def answers_are_given(client: Client) -> bool:
    try:
        client.generate("one")
    except UnavailableError:
        return False
    return True


def test_calls_are_answered_although_nobody_reads_the_log(tmp_path: Path) -> None:
    """A full pipe would block a writer."""
    port, metrics_port = free_port(), free_port()
    command = [serve_command(), "--port", str(port), "--metrics-port", str(metrics_port), "--log-format", "json"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        with Client(f"127.0.0.1:{port}", timeout=60) as client:
            until(lambda: answers_are_given(client))
            for _ in range(500):  # each has a line of some 400 bytes; 64 KiB have room
                client.generate("a")
        os.set_blocking(process.stderr.fileno(), True)
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    lines = [json.loads(line) for line in said.splitlines()]
    assert sum(line["event"] == "request" for line in lines) >= 501
    assert lines[-1]["event"] == "stopped"
