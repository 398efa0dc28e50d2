"""Log lines of calls: id, sizes, phases and status, and never any text."""

import asyncio
import math
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import grpc
import pytest

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.core.call_record import CallRecord, record_call
from dragoman_server.telemetry.observer import call_fields
from dragoman_server.telemetry.phases import phases
from dragoman_server.telemetry.summary import MAX_TIMES, SummaryWindow, percentile
from tests.support.call_logs import Log, call_record
from tests.support.fake_engines import MODEL, FakeEngines, FakeServer, serve_fake

SERVICE = "dragoman.v1.GenerationService"


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
async def server(log: Log) -> AsyncIterator[FakeServer]:
    async with serve_fake(observer=log.observer) as server:
        yield server


def asked(text: str, **options: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(input=pb.Input(text=text), **options)


async def test_a_call_has_one_line_with_sizes_and_times(server: FakeServer, log: Log) -> None:
    answer = await server.stub.Generate(asked("cab"))
    [entry] = await log.entries(1)
    times = {name: entry.pop(name) for name in list(entry) if name.endswith("_ms")}
    assert list(times) == ["tokenize_ms", "queue_ms", "encode_ms", "decode_ms", "detokenize_ms", "total_ms"]
    assert all(0 <= time <= times["total_ms"] for time in times.values())
    assert entry.pop("timestamp").endswith("Z")
    assert entry.pop("request_id")
    assert entry == {
        "event": "request",
        "level": "info",
        "method": f"{SERVICE}/Generate",
        "code": "OK",
        "model": answer.model,
        "version": answer.model_version,
        "source_tokens": 4,
        "target_tokens": 3,
        "hypotheses": 1,
        "finish": "eos",
    }


async def test_a_batch_has_the_sums_of_its_inputs(server: FakeServer, log: Log) -> None:
    inputs = [pb.Input(text=text) for text in ("ab", "abc", "", "a")]
    await server.stub.GenerateBatch(pb.GenerateBatchRequest(inputs=inputs))
    [entry] = await log.entries(1)
    assert (entry["inputs"], entry["failed"], entry["finish"]) == (4, 1, "eos=3")
    assert (entry["source_tokens"], entry["target_tokens"], entry["hypotheses"]) == (9, 6, 3)


async def test_streamed_responses_and_scores_have_a_line_too(server: FakeServer, log: Log) -> None:
    assert [message async for message in server.stub.GenerateStream(asked("abc"))]
    await server.stub.Score(pb.ScoreRequest(input=pb.Input(text="ab"), targets=[pb.Input(text="abc")]))
    stream, score = await log.entries(2)
    assert (stream["method"], stream["target_tokens"], stream["finish"]) == (f"{SERVICE}/GenerateStream", 3, "eos")
    assert (score["source_tokens"], score["target_tokens"], score["hypotheses"]) == (3, 4, 1)


async def test_each_request_of_a_stream_of_requests_has_a_line(server: FakeServer, log: Log) -> None:
    def infer(text: bytes) -> oip.ModelInferRequest:
        tensor = oip.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])
        tensor.contents.bytes_contents.append(text)
        return oip.ModelInferRequest(model_name=MODEL, inputs=[tensor])

    requests = [infer(b"abc"), infer(b"")]
    call = server.inference_stub.ModelStreamInfer(iter(requests), metadata=[("x-request-id", "theirs")])
    assert [message async for message in call]
    first, second, whole = await log.entries(3)
    parts = {entry["request_id"]: entry for entry in (first, second)}
    assert {name: part["code"] for name, part in parts.items()} == {"theirs/1": "OK", "theirs/2": "INVALID_ARGUMENT"}
    assert parts["theirs/1"]["target_tokens"] == 3
    assert (whole["request_id"], whole["code"], whole["requests"]) == ("theirs", "OK", 2)
    summing = asyncio.create_task(log.observer.summarize(0.01))
    summary = (await log.entries(4))[3]
    summing.cancel()
    assert (summary["calls"], summary["not_ok"]) == (2, 1)  # counts the requests, not their stream
    assert summary["target_tokens_per_second"] > 0


async def test_a_call_of_many_items_has_the_sums_of_its_items(server: FakeServer, log: Log) -> None:
    call = server.stub.GenerateMany(metadata=[("x-request-id", "theirs")])
    many = [pb.ManyItem(id=text, request=asked(text)) for text in ("ab", "abc", "", "a")]
    await call.write(pb.GenerateManyRequest(items=many))
    read = 0
    while read < len(many):
        read += len((await call.read()).answers)
    summing = asyncio.create_task(log.observer.summarize(0.01))
    [summary] = await log.entries(1)  # while the call goes on
    summing.cancel()
    assert (summary["calls"], summary["not_ok"]) == (4, 1)
    assert summary["source_tokens_per_second"] > summary["target_tokens_per_second"] > 0
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    entry = (await log.entries(2))[1]
    assert (entry["method"], entry["code"]) == (f"{SERVICE}/GenerateMany", "OK")
    assert (entry["inputs"], entry["failed"], entry["finish"]) == (4, 1, "eos=3")
    assert (entry["source_tokens"], entry["target_tokens"], entry["hypotheses"]) == (9, 6, 3)
    assert 0 <= entry["decode_ms"] <= entry["total_ms"]
    assert log.observer._window.calls == 0, "the call itself is not counted beside its items"


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("a-name:1/2.3_4+5=6@7", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("two words", False),
        ('"quoted"', False),
        ("", False),
    ],
)
async def test_a_call_keeps_a_valid_id_of_the_client_or_gets_one(
    server: FakeServer, log: Log, sent: str, kept: bool
) -> None:
    for text in ("cab", ""):  # answered and refused
        call = server.stub.Generate(asked(text), metadata=[("x-request-id", sent)])
        code = await call.code()
        assert (code is grpc.StatusCode.OK) is bool(text)
        names = [value for key, value in await call.trailing_metadata() if key == "x-request-id"]
        assert len(names) == 1
        assert (names[0] == sent) is kept
        entry = (await log.entries(1 if text else 2))[-1]
        assert (entry["request_id"], entry["code"]) == (names[0], code.name)


async def test_ids_of_calls_are_unique(server: FakeServer) -> None:
    names = set()
    for _ in range(5):
        call = server.stub.Generate(asked("cab"))
        names |= {value for key, value in await call.trailing_metadata() if key == "x-request-id"}
    assert len(names) == 5


async def test_a_cancelled_call_has_a_line() -> None:
    log, engines = Log(), FakeEngines(automatic=False)
    async with serve_fake(engines, observer=log.observer) as server:
        call = server.stub.Generate(asked("cab"))
        await engines.until(running=1)
        call.cancel()
        [entry] = await log.entries(1)
        with pytest.raises(grpc.RpcError):
            await server.stub.Generate(asked("cab"), timeout=0.5)
        late = (await log.entries(2))[1]
    assert (entry["code"], late["code"]) == ("CANCELLED", "DEADLINE_EXCEEDED")
    assert "finish" not in entry
    assert entry["queue_ms"] <= entry["total_ms"]


async def test_health_checks_have_a_line_only_on_demand() -> None:
    from grpc_health.v1 import health_pb2

    for probes in (False, True):
        log = Log(probes=probes)
        async with serve_fake(observer=log.observer) as server:
            await server.health_stub.Check(health_pb2.HealthCheckRequest())
            await server.stub.Generate(asked("cab"))
            methods = [entry["method"] for entry in await log.entries(1 + probes)]
        assert methods == ["grpc.health.v1.Health/Check"] * probes + [f"{SERVICE}/Generate"]


async def test_lines_of_calls_can_be_switched_off() -> None:
    log = Log(requests="none", load=lambda: (3, 5))
    async with serve_fake(observer=log.observer) as server:
        call = server.stub.Generate(asked("cab"), metadata=[("x-request-id", "mine")])
        assert ("x-request-id", "mine") in tuple(await call.trailing_metadata())
        task = asyncio.create_task(log.observer.summarize(0.01))
        entry = (await log.entries(1))[0]
        task.cancel()
    assert (entry["event"], entry["calls"], entry["not_ok"]) == ("summary", 1, 0)
    assert (entry["waiting"], entry["rows_running"]) == (3, 5)


async def test_lines_can_be_limited_to_failed_calls() -> None:
    log = Log(requests="failed")
    async with serve_fake(observer=log.observer) as server:
        await server.stub.Generate(asked("cab"))
        await server.stub.Generate(asked("")).code()
        [entry] = await log.entries(1)
    assert entry["code"] == "INVALID_ARGUMENT"


async def test_an_idle_server_logs_no_summary(log: Log) -> None:
    task = asyncio.create_task(log.observer.summarize(0.001))
    await asyncio.sleep(0.05)
    assert await log.entries(0) == []
    log.observer.ended(ended(seconds=0.5))
    [call, summary] = await log.entries(2)
    await asyncio.sleep(0.05)
    assert len(await log.entries(2)) == 2
    task.cancel()
    assert (call["event"], summary["event"], summary["p50_ms"]) == ("request", "summary", 500)


def ended(seconds: float = 1.0, code: str = "OK") -> CallRecord:
    record = CallRecord(f"{SERVICE}/Generate", "name")
    record.ended = record.started + seconds
    record.code = code
    return record


def test_the_summary_has_rates_and_exact_percentiles() -> None:
    window = SummaryWindow(100.0)
    for thousandths in range(200, 0, -1):
        record = ended(thousandths / 1000, "OK" if thousandths % 2 else "CANCELLED")
        record.source_tokens, record.target_tokens = 3, 2
        window.add(record)
    fields = window.fields(110.0, 0, 4)
    assert fields["p50_ms"] == pytest.approx(100, abs=0.01)
    assert fields["p99_ms"] == pytest.approx(198, abs=0.01)
    assert (fields["seconds"], fields["calls"], fields["not_ok"], fields["calls_per_second"]) == (10.0, 200, 100, 20.0)
    assert (fields["source_tokens_per_second"], fields["target_tokens_per_second"]) == (60.0, 40.0)
    assert "p50_ms" not in SummaryWindow(0.0).fields(1.0, 2, 0)
    assert percentile([7.0], 50) == percentile([7.0], 99) == 7.0
    assert percentile([1.0, 2.0], 50) == 1.0


def test_a_window_keeps_a_bounded_number_of_times() -> None:
    window, record = SummaryWindow(0.0), ended()
    for _ in range(MAX_TIMES + 10):
        window.add(record)
    assert window.fields(1.0, 0, 0)["calls"] == MAX_TIMES + 10
    assert len(window._times) == MAX_TIMES


@pytest.mark.parametrize(
    ("record", "spent"),
    [
        (
            call_record(20.0, encoding=13.0, encoded=15.0, decoded=18.0, answered=18.5),
            {"tokenize": 1, "queue": 1, "encode": 2, "decode": 3, "detokenize": 0.5},
        ),
        (call_record(14.0), {"tokenize": 1, "queue": 2}),  # cancelled while it waited
        (call_record(14.0, encoding=13.0), {"tokenize": 1, "queue": 1, "encode": 1}),
        (call_record(16.0, encoding=13.0, encoded=14.0), {"tokenize": 1, "queue": 1, "encode": 1, "decode": 2}),
        # Its time limit passed while it waited, so the response is empty.
        (call_record(16.0, decoded=15.0, answered=15.5), {"tokenize": 1, "queue": 3, "detokenize": 0.5}),
        # The engine noticed late that the client had left.
        (call_record(13.5, encoding=13.0, encoded=15.0, decoded=18.0), {"tokenize": 1, "queue": 1, "encode": 0.5}),
    ],
)
def test_phases_are_consecutive_up_to_the_end_of_the_call(record: CallRecord, spent: dict[str, float]) -> None:
    found = list(phases(record))
    assert {name: end - start for name, start, end in found} == spent
    assert all(end == start for (_, _, end), (_, start, _) in pairwise(found))
    assert call_fields(record)["total_ms"] == (record.ended - 10) * 1000


def test_a_call_refused_early_has_no_phases() -> None:
    record = ended(seconds=0.001, code="NOT_FOUND")
    assert list(phases(record)) == []
    fields = call_fields(record)
    assert math.isclose(fields.pop("total_ms"), 1, rel_tol=0.01)
    assert fields == {"request_id": "name", "method": f"{SERVICE}/Generate", "code": "NOT_FOUND"}


def test_metadata_may_be_bytes_or_missing() -> None:
    for metadata in (None, [], [("x-request-id", b"bytes")]):
        record = record_call("a/B", metadata)
        assert record.id
        assert record.traceparent == ""
