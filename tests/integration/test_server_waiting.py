"""What clients wait for in a server that is busy, and what it does for those who don't wait any more."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2

from dragoman.local import LocalServer, ServerStartError
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from tests.support.bundles import lengthened
from tests.support.metrics_page import sum_of
from tests.support.waiting import PATIENCE, until

TOKENS = 30_000  # that take tens of seconds to decode
WORD = pb.Input(text="dragoman")
FIFTH_SECOND = duration_pb2.Duration(nanos=200_000_000)
# A client that starts calls, says so, and reads nothing.
CLIENT = """
import sys, time, grpc
from dragoman.v1 import generation_pb2 as pb, generation_pb2_grpc
address, method, message, request, count = sys.argv[1:]
channel = grpc.insecure_channel(address)
stub = generation_pb2_grpc.GenerationServiceStub(channel)
call = getattr(stub, method)
asked = getattr(pb, message).FromString(bytes.fromhex(request))
def requests():
    yield asked
    time.sleep(600)
if method == "GenerateMany":
    calls = [call(requests()) for _ in range(int(count))]
else:
    calls = [call(asked) if method.endswith("Stream") else call.future(asked) for _ in range(int(count))]
print("sent", flush=True)
time.sleep(600)
"""


def long_request(**more: Any) -> pb.GenerateRequest:
    options = pb.GenerationOptions(min_new_tokens=TOKENS, max_new_tokens=TOKENS)
    return pb.GenerateRequest(input=WORD, options=options, **more)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lengthened(tmp_path_factory.mktemp("long") / "bundle", TOKENS)


@pytest.fixture(scope="module")
def server(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """Of one row, and a queue in which there is room for many targets to score."""
    log = tmp_path_factory.mktemp("server") / "server.log"
    arguments = ["--bundle", str(bundle), "--engines", "1", "--max-rows", "1", "--queue-size", "20000"]
    with LocalServer(*arguments, log=log) as started:
        yield started
        assert started.stop() == 0, started.log_tail()


@pytest.fixture
def stub(server: LocalServer) -> Iterator[Any]:
    with grpc.insecure_channel(server.address) as channel:
        yield generation_pb2_grpc.GenerationServiceStub(channel)
    until(lambda: sum_of(server, "dragoman_rows_running") == 0)


@pytest.fixture
def busy(server: LocalServer, stub: Any) -> Iterator[Any]:
    """A call that has the only row, for tens of seconds."""
    call = stub.Generate.future(long_request())
    until(lambda: sum_of(server, "dragoman_rows_running") == 1)
    yield call
    call.cancel()


def dropped(server: LocalServer, phase: str) -> float:
    return sum_of(server, "dragoman_drops_total", phase)


def kill_once(true: Callable[[], bool], server: LocalServer, method: str, request: Any, count: int = 1) -> None:
    """Starts a client that sends requests, and kills it in a certain state."""
    asked = request.SerializeToString().hex()
    command = [sys.executable, "-c", CLIENT, server.address, method, type(request).__name__, asked, str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == "sent\n"
            until(true)
        finally:
            client.kill()


def test_a_time_limit_of_a_fifth_of_a_second_is_kept_behind_a_request_of_many(
    server: LocalServer, stub: Any, busy: Any
) -> None:
    before = dropped(server, "waiting")
    options = pb.GenerationOptions(time_limit=FIFTH_SECOND)
    started = time.monotonic()
    answer = stub.Generate(pb.GenerateRequest(input=WORD, options=options), timeout=PATIENCE)
    took = time.monotonic() - started
    assert answer.hypotheses[0].finish_reason == pb.FINISH_REASON_TIME_LIMIT
    assert not answer.hypotheses[0].text
    assert took >= 0.2
    [item] = stub.GenerateBatch(pb.GenerateBatchRequest(inputs=[WORD], options=options), timeout=PATIENCE).items
    assert item.response.hypotheses[0].finish_reason == pb.FINISH_REASON_TIME_LIMIT
    *_, last = stub.GenerateStream(pb.GenerateRequest(input=WORD, options=options), timeout=PATIENCE)
    assert last.final.hypotheses[0].finish_reason == pb.FINISH_REASON_TIME_LIMIT
    assert not busy.done(), "nobody had to wait for the row"
    assert dropped(server, "waiting") == before


def test_a_deadline_ends_the_call_and_its_place_in_the_queue(server: LocalServer, stub: Any, busy: Any) -> None:
    before = dropped(server, "waiting")
    with pytest.raises(grpc.RpcError) as late:
        stub.Generate(pb.GenerateRequest(input=WORD), timeout=1)  # by when it is there, whatever the machine
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    until(lambda: dropped(server, "waiting") == before + 1)
    assert not busy.done()


def test_a_batch_keeps_its_time_limit_behind_another_that_has_all_places(stub: Any, busy: Any) -> None:
    large = stub.GenerateBatch.future(pb.GenerateBatchRequest(inputs=[WORD] * 1000))
    options = pb.GenerationOptions(time_limit=FIFTH_SECOND)
    items = stub.GenerateBatch(pb.GenerateBatchRequest(inputs=[WORD] * 10, options=options), timeout=PATIENCE).items
    reasons = {item.response.hypotheses[0].finish_reason for item in items}
    assert reasons == {pb.FINISH_REASON_TIME_LIMIT}
    assert not busy.done()
    assert not large.done()
    large.cancel()


def test_a_large_batch_lets_small_requests_and_batches_through(server: LocalServer, stub: Any) -> None:
    words = [pb.Input(text=word) for word in ("alpha", "beta", "gamma")]
    alone = [stub.Generate(pb.GenerateRequest(input=word)).hypotheses[0].text for word in words]
    large = stub.GenerateBatch.future(pb.GenerateBatchRequest(inputs=[WORD] * 9000))
    until(lambda: sum_of(server, "dragoman_rows_running") == 1)
    for _ in range(5):
        batch = pb.GenerateBatchRequest(inputs=words)
        items = stub.GenerateBatch(batch, timeout=PATIENCE).items
        assert [item.response.hypotheses[0].text for item in items] == alone
        for priority in (pb.PRIORITY_INTERACTIVE, pb.PRIORITY_BATCH):
            single = pb.GenerateRequest(input=words[0], priority=priority)
            assert stub.Generate(single, timeout=PATIENCE).hypotheses[0].text == alone[0]
    assert not large.done()
    large.cancel()


def test_a_time_limit_ends_what_runs_with_what_there_is(stub: Any) -> None:
    request = long_request()
    request.options.time_limit.FromSeconds(1)  # in which any machine makes a token
    answer = stub.Generate(request, timeout=PATIENCE)
    assert answer.hypotheses[0].finish_reason == pb.FINISH_REASON_TIME_LIMIT
    assert 0 < answer.hypotheses[0].target_tokens < TOKENS


def test_a_client_that_is_killed_while_it_waits_leaves_the_queue(server: LocalServer, busy: Any) -> None:
    before = dropped(server, "waiting")
    waiting = "dragoman_requests_waiting"
    kill_once(lambda: sum_of(server, waiting) == 20, server, "Generate", pb.GenerateRequest(input=WORD), 20)
    until(lambda: sum_of(server, waiting) == 0)
    until(lambda: dropped(server, "waiting") == before + 20)
    assert sum_of(server, "dragoman_queue_tokens") == 0
    assert not busy.done()


@pytest.mark.parametrize("method", ["Generate", "GenerateBatch", "GenerateMany", "GenerateStream"])
def test_the_work_of_a_client_that_is_killed_while_it_is_decoded_stops(
    server: LocalServer, stub: Any, method: str
) -> None:
    """The stream is not read."""
    before = dropped(server, "running")
    request: Any = long_request(details=pb.Details(top_tokens=20))
    if method == "GenerateBatch":
        request = pb.GenerateBatchRequest(inputs=[WORD] * 5, options=request.options)
    if method == "GenerateMany":
        items = [pb.ManyItem(id=str(number), request=pb.GenerateRequest(input=WORD)) for number in range(5)]
        request = pb.GenerateManyRequest(defaults=pb.GenerateRequest(options=request.options), items=items)
    kill_once(lambda: sum_of(server, "dragoman_rows_running") == 1, server, method, request)
    assert stub.Generate(pb.GenerateRequest(input=WORD), timeout=PATIENCE).hypotheses[0].text
    until(lambda: dropped(server, "running") == before + 1)
    assert sum_of(server, "dragoman_requests_waiting") == 0


def test_targets_of_a_client_that_is_killed_are_not_scored(server: LocalServer, stub: Any) -> None:
    targets = [pb.Input(token_ids=pb.TokenIds(ids=[5 + index % 30] * 20)) for index in range(64)]
    request = pb.ScoreRequest(input=WORD, targets=targets)
    calls, runs = 100, "dragoman_score_rows_count"  # a run takes less than a quarter of them
    kill_once(lambda: sum_of(server, runs) >= 1, server, "Score", request, calls)
    until(lambda: sum_of(server, "dragoman_requests_in_flight", "Score") == 0)
    stub.Score(pb.ScoreRequest(input=WORD, targets=targets[:1]), timeout=PATIENCE)
    assert sum_of(server, "dragoman_scored_tokens_total") < calls * len(targets) * 21


def test_a_slow_reader_holds_up_nobody_and_gets_all_of_it_in_the_end(bundle: Path, tmp_path: Path) -> None:
    arguments = ["--bundle", str(bundle), "--engines", "1", "--max-rows", "2"]
    with LocalServer(*arguments, log=tmp_path / "server.log") as server:
        # Else gRPC would take a megabyte or two ahead of the reader.
        narrow = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 2**16)]
        with (
            grpc.insecure_channel(server.address, options=narrow) as slow,
            grpc.insecure_channel(server.address) as quick,
        ):
            request = pb.GenerateRequest(input=WORD, details=pb.Details(top_tokens=20))
            request.options.min_new_tokens = request.options.max_new_tokens = 2000
            stream = generation_pb2_grpc.GenerationServiceStub(slow).GenerateStream(request)
            until(lambda: sum_of(server, "dragoman_rows_running") == 1)
            stub = generation_pb2_grpc.GenerationServiceStub(quick)
            answers = {stub.Generate(pb.GenerateRequest(input=WORD)).hypotheses[0].text for _ in range(50)}
            assert len(answers) == 1
            until(lambda: sum_of(server, "dragoman_rows_running") == 0)  # the engine did not wait for the reader
            assert sum_of(server, "dragoman_requests_in_flight", "GenerateStream") == 1
            messages = list(stream)
        final = messages[-1].final.hypotheses[0]
        assert final.target_tokens == 2000
        assert "".join(message.text for message in messages) == final.text
        assert [token.id for message in messages for token in message.tokens] == [token.id for token in final.tokens]
        assert len(messages) < 1000, "what he lagged behind came together"


def test_a_memory_budget_decides_the_rows_and_the_log_does_the_sum(bundle: Path, tmp_path: Path) -> None:
    """A row of such long answers takes more than 100 MiB."""
    log = tmp_path / "server.log"
    arguments = ["--bundle", str(bundle), "--engines", "1", "--memory-budget", "1GiB", "--log-format", "json"]
    with LocalServer(*arguments, log=log) as server:
        rows = sum_of(server, "dragoman_rows")
        assert 1 <= rows < 10
        assert sum_of(server, "dragoman_cache_bytes") < 2**30
    [told] = [json.loads(line)["sum"] for line in log.read_text().splitlines() if '"memory"' in line]
    assert told.startswith("of the budget of 1.0 GiB ")
    assert f"1 engine gets {rows:.0f} cache rows (what there is room for) of 117 MiB, together " in told
    with pytest.raises(ServerStartError, match="not enough memory for even one cache row in 1 engine, 117 MiB: of the"):
        LocalServer(*arguments[:-3], "100MB", log=log)
