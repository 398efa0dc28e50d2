"""Spans of calls, in the client's trace if it has one, checked with OpenTelemetry's in-memory exporter."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.config import ServerConfig
from dragoman_server.core.call_record import CallRecord
from dragoman_server.core.errors import StartError
from dragoman_server.telemetry.observer import start_tracing
from dragoman_server.telemetry.tracing import CODES, CallTracer, tracer_provider
from tests.support.call_logs import Log, call_record
from tests.support.fake_engines import MODEL, serve_fake

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PHASES = ["receive", "tokenize", "wait", "encode", "decode", "detokenize"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


class Traces:
    """A tracer and the spans that it exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider: TracerProvider = tracer_provider(self.exporter)
        self.tracer = CallTracer(self.provider)

    def spans(self) -> list[ReadableSpan]:
        """Returns the spans in the order of their starts, the call before its phases."""
        self.provider.force_flush()
        spans = list(self.exporter.get_finished_spans())
        return sorted(spans, key=lambda span: (span.start_time or 0, span.kind is not SpanKind.SERVER))


@pytest.fixture
def traces() -> Iterator[Traces]:
    traces = Traces()
    yield traces
    traces.provider.shutdown()


def test_a_call_and_its_phases_are_spans_with_their_times(traces: Traces) -> None:
    record = call_record(20.0, encoding=13.0, encoded=15.0, decoded=18.0, answered=18.5)
    trace = traces.tracer.trace(record, 1000.0)
    call, *parts = traces.spans()
    assert [span.name for span in parts] == PHASES
    seconds = [((span.start_time or 0) / 1e9, (span.end_time or 0) / 1e9) for span in (call, *parts)]
    assert seconds == [
        (1009, 1020),
        (1009, 1011),
        (1011, 1012),
        (1012, 1013),
        (1013, 1015),
        (1015, 1018),
        (1018, 1018.5),
    ]
    assert call.context is not None
    assert all(span.parent is not None and span.parent.span_id == call.context.span_id for span in parts)
    assert (call.kind, call.parent, call.status.status_code) == (SpanKind.SERVER, None, StatusCode.UNSET)
    assert trace == f"{call.context.trace_id:032x}"
    assert call.resource.attributes["service.name"] == "dragoman"


async def test_a_call_of_a_server_joins_its_client_s_trace(traces: Traces) -> None:
    log = Log(tracer=traces.tracer)
    async with serve_fake(observer=log.observer) as server:
        metadata = [("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "vendor=1"), ("x-request-id", "mine")]
        await server.stub.Generate(pb.GenerateRequest(input=pb.Input(text="cab")), metadata=metadata)
        [entry] = await log.entries(1)
    call, *parts = traces.spans()
    assert call.context is not None
    assert call.parent is not None
    assert (f"{call.context.trace_id:032x}", f"{call.parent.span_id:016x}") == (TRACE, PARENT)
    assert call.context.trace_state["vendor"] == "1"
    assert entry["trace_id"] == TRACE
    assert sorted(span.name for span in parts) == sorted(PHASES)
    assert (call.start_time or 0) < (parts[-1].end_time or 0) <= (call.end_time or 0)
    received = next(span for span in parts if span.name == "receive")
    assert received.start_time == call.start_time
    assert dict(call.attributes or {}) == {
        "rpc.system": "grpc",
        "rpc.service": "dragoman.v1.GenerationService",
        "rpc.method": "Generate",
        "rpc.grpc.status_code": 0,
        "dragoman.request_id": "mine",
        "dragoman.model": MODEL,
        "dragoman.version": "1",
        "dragoman.inputs": 1,
        "dragoman.source_tokens": 4,
        "dragoman.target_tokens": 3,
        "dragoman.hypotheses": 1,
        "dragoman.finish": "eos",
    }


async def test_spans_hold_no_text_of_requests(traces: Traces) -> None:
    log = Log(tracer=traces.tracer)
    words = "zut zut"
    async with serve_fake(observer=log.observer) as server:
        bad = [("traceparent", words), ("tracestate", words), ("x-request-id", words)]
        for request in (pb.GenerateRequest(input=pb.Input(text="zut")), pb.GenerateRequest(model="zut")):
            await server.stub.Generate(request, metadata=bad).code()
        await log.entries(2)
    spans = traces.spans()
    assert {span.kind for span in spans} == {SpanKind.SERVER, SpanKind.INTERNAL}
    assert all("zut" not in span.to_json() and "tuz" not in span.to_json() for span in spans)


@pytest.mark.parametrize(("code", "fault"), [("OK", False), ("INVALID_ARGUMENT", False), ("UNAVAILABLE", True)])
def test_server_errors_are_errors_of_the_span(traces: Traces, code: str, fault: bool) -> None:
    record = call_record(13.0)
    record.code = code
    traces.tracer.trace(record, 0.0)
    call = traces.spans()[0]
    assert (call.status.status_code is StatusCode.ERROR) is fault
    assert (call.attributes or {})["rpc.grpc.status_code"] == getattr(grpc.StatusCode, code).value[0]


def test_codes_have_the_numbers_of_grpc() -> None:
    assert {name: number for number, name in enumerate(CODES)} == {code.name: code.value[0] for code in grpc.StatusCode}


@pytest.mark.parametrize(
    ("variables", "sampled", "name"),
    [
        ({"OTEL_TRACES_SAMPLER": "always_off", "OTEL_SERVICE_NAME": "theirs"}, [], "theirs"),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, [TRACE], "dragoman"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=mine"}, ["", TRACE], "mine"),
    ],
)
def test_the_standard_variables_set_sampling_and_service_name(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], sampled: list[str], name: str
) -> None:
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    traces = Traces()
    records: list[CallRecord] = [call_record(13.0), call_record(13.0)]
    records[1].traceparent = f"00-{TRACE}-{PARENT}-01"
    ids = [traces.tracer.trace(record, 0.0) for record in records]
    calls = [span for span in traces.spans() if span.kind is SpanKind.SERVER]
    assert len(calls) == len(sampled) == sum(map(bool, ids))
    assert (TRACE in ids) is (TRACE in sampled)
    assert traces.provider.resource.attributes["service.name"] == name
    traces.provider.shutdown()


def test_missing_packages_for_tracing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon")
    with pytest.raises(StartError, match=r"^OTEL_EXPORTER_OTLP_PROTOCOL is carrier-pigeon, but must be one of grpc, "):
        start_tracing(ServerConfig(tracing=True))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(StartError, match=r"pip install opentelemetry-exporter-otlp-proto-http$"):
        start_tracing(ServerConfig(tracing=True))


def test_without_tracing_opentelemetry_is_neither_needed_nor_imported() -> None:
    def run(code: str) -> Any:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    code = "import sys, dragoman_server.process.app; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    assert run(code) == "[]\n"
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from dragoman_server.telemetry.observer import start_tracing\n"
        "from dragoman_server.config import ServerConfig\n"
        "print(start_tracing(ServerConfig()))\n"
        "try: start_tracing(ServerConfig(tracing=True))\n"
        "except Exception as error: print(error)"
    )
    message = "--tracing needs opentelemetry; `pip install '.[server,tracing]'` in a clone of Dragoman installs it"
    assert run(code) == f"None\n{message}\n"
