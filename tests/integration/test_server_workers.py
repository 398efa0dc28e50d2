"""Worker processes: same results as in-process, and the fate of requests when a worker dies, hangs or fails."""

import os
import resource
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman import Client, Result
from dragoman.local import LocalServer, ServerStartError, serve_command
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from dragoman_server.workers.worker_main import RESERVE
from tests.conftest import StartServer
from tests.integration.test_decoding_examples import EXAMPLES
from tests.support.bundles import failing, lengthened
from tests.support.metrics_page import sum_of
from tests.support.waiting import PATIENCE, until

ROWS = 16
TOKENS = 30_000  # decoding them takes tens of seconds
TOKEN_OPTIONS = ("suppressed_tokens", "vocabulary")  # options of EXAMPLES that name tokens
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lengthened(tmp_path_factory.mktemp("long") / "bundle", TOKENS)


@pytest.fixture(scope="module")
def pair(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server with two workers."""
    log = tmp_path_factory.mktemp("server") / "server.log"
    arguments = ["--bundle", str(bundle), "--workers", "2", "--engines", "1", "--max-rows", str(ROWS)]
    with LocalServer(*arguments, "--hang-seconds", "1", log=log) as started:
        yield started
        assert started.stop() == 0, started.log_tail()


@pytest.fixture
def stub(pair: LocalServer) -> Iterator[Any]:
    until(lambda: sum_of(pair, "dragoman_rows") == 2 * ROWS)
    with grpc.insecure_channel(pair.address) as channel:
        yield generation_pb2_grpc.GenerationServiceStub(channel)
    until(lambda: sum_of(pair, "dragoman_rows_running") == 0)


def workers_up(server: LocalServer) -> float:
    return sum_of(server, "dragoman_worker_up")


def restarts(server: LocalServer, reason: str = "") -> float:
    return sum_of(server, "dragoman_worker_restarts_total", reason)


def workers(server: LocalServer) -> list[psutil.Process]:
    children = psutil.Process(server.process.pid).children()
    return [child for child in children if "dragoman_server.workers.worker_main" in child.cmdline()]


def long_request() -> pb.GenerateRequest:
    options = pb.GenerationOptions(min_new_tokens=TOKENS, max_new_tokens=TOKENS)
    return pb.GenerateRequest(input=pb.Input(text="dragoman"), options=options)


def short_request() -> pb.GenerateRequest:
    return pb.GenerateRequest(input=pb.Input(text="hello"))


def readiness(server: LocalServer) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/readyz", timeout=10) as page:
            return str(page.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


def test_results_equal_those_of_an_in_process_server(pair: LocalServer) -> None:
    with Client(pair.address) as client:
        ids = {token.text: token.id for token in client.tokenize("AA AH EY T M OW D", side="target")}

        def texts(name: str) -> list[str]:
            word, options, _ = EXAMPLES[name]
            token_ids = {
                key: [ids[token] for token in options[key]] for key in options if options[key] and key in TOKEN_OPTIONS
            }
            return [hypothesis.text for hypothesis in client.generate(word, **options | token_ids).hypotheses]

        with ThreadPoolExecutor(16) as executor:
            results = dict(zip(EXAMPLES, executor.map(texts, EXAMPLES), strict=True))
        [scored] = client.score("dragoman", ["D R AE G OW M AH N"], attention=True).scores
    assert results == {name: expected for name, (_, _, expected) in EXAMPLES.items()}
    assert scored.attention is not None
    assert scored.log_probability < 0


def test_requests_go_to_the_worker_with_the_most_free_rows(pair: LocalServer, stub: Any) -> None:
    calls = [stub.Generate.future(long_request()) for _ in range(6)]
    until(lambda: sum_of(pair, "dragoman_rows_running") == 6)
    assert sorted(value for key, value in pair.metrics().items() if "dragoman_rows_running{" in key) == [3, 3]
    for call in calls:
        call.cancel()


def test_a_dead_worker_fails_only_its_own_requests(pair: LocalServer, stub: Any) -> None:
    before = restarts(pair, "died")
    calls = [stub.Generate.future(long_request()) for _ in range(4)]
    until(lambda: sum_of(pair, "dragoman_rows_running") == 4)
    workers(pair)[0].kill()
    until(lambda: sum(call.done() for call in calls) == 2)
    assert readiness(pair) == "ok\n", "the other worker serves"
    assert [stub.Generate(short_request()).hypotheses[0].text for _ in range(3)] == ["HH EH L OW"] * 3
    failed = [call for call in calls if call.done()]
    assert {call.code() for call in failed} == {grpc.StatusCode.UNAVAILABLE}
    assert "worker process" in failed[0].details()
    until(lambda: sum_of(pair, "dragoman_rows") == 2 * ROWS)
    assert (workers_up(pair), restarts(pair, "died")) == (2, before + 1)
    more = [stub.Generate.future(long_request()) for _ in range(4)]
    until(lambda: sorted(value for key, value in pair.metrics().items() if "_rows_running{" in key) == [3, 3])
    assert not any(call.done() for call in calls if call not in failed), "requests of the other worker continue"
    for call in [*calls, *more]:
        call.cancel()


def test_a_client_batch_survives_a_dead_worker(pair: LocalServer, stub: Any) -> None:
    before = restarts(pair, "died")
    with Client(pair.address) as client, ThreadPoolExecutor(1) as background:
        batch = background.submit(client.generate_batch, ["hello"] * 8, min_new_tokens=1000, max_new_tokens=1000)
        until(lambda: sum_of(pair, "dragoman_rows_running") == 8)
        workers(pair)[0].kill()
        answers = batch.result(PATIENCE)
    assert [type(answer) for answer in answers] == [Result] * 8
    assert len({answer.text for answer in answers if isinstance(answer, Result)}) == 1
    until(lambda: restarts(pair, "died") == before + 1)


def test_a_hanging_worker_is_replaced(pair: LocalServer, stub: Any) -> None:
    before = restarts(pair, "hung")
    calls = [stub.Generate.future(long_request()) for _ in range(2)]
    until(lambda: sum_of(pair, "dragoman_rows_running") == 2)
    workers(pair)[0].suspend()
    until(lambda: sum(call.done() for call in calls) == 1)
    [failed] = [call for call in calls if call.done()]
    assert failed.code() is grpc.StatusCode.UNAVAILABLE
    until(lambda: workers_up(pair) == 2 and restarts(pair, "hung") == before + 1)
    for call in calls:
        call.cancel()


def test_an_idle_hanging_worker_is_replaced(pair: LocalServer, stub: Any) -> None:
    before = restarts(pair, "hung")
    workers(pair)[1].suspend()
    until(lambda: restarts(pair, "hung") == before + 1)
    until(lambda: workers_up(pair) == 2)
    assert stub.Generate(short_request()).hypotheses[0].text == "HH EH L OW"


def test_scoring_continues_after_its_worker_died(pair: LocalServer, stub: Any) -> None:
    request = pb.ScoreRequest(input=pb.Input(text="hello"), targets=[pb.Input(text="HH AH L OW")])
    for worker in workers(pair):
        first = stub.Score(request)
        worker.kill()
        until(lambda: sum_of(pair, "dragoman_rows") == 2 * ROWS)
        answers: list[pb.ScoreResponse] = []
        codes: set[grpc.StatusCode] = set()
        while len(answers) < 2:
            call = stub.Score.future(request)
            codes.add(call.code())
            if call.code() is grpc.StatusCode.OK:
                answers.append(call.result())
        assert answers == [first] * 2
        assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}


def test_the_server_is_not_ready_while_no_worker_runs(start_server: StartServer, tiny_bundle: Path) -> None:
    server = start_server("--bundle", str(tiny_bundle), "--workers", "1")
    with grpc.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        request = pb.GenerateRequest(input=pb.Input(text="42"))
        assert stub.Generate(request).hypotheses[0].text == "forty two"
        statuses = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(statuses).status == SERVING
        os.kill(workers(server)[0].pid, signal.SIGKILL)
        assert next(statuses).status == NOT_SERVING
        codes = set()
        while (answer := readiness(server)) != "ok\n":
            assert answer == "no model can answer at the moment\n"
            try:
                stub.Generate(request)
            except grpc.RpcError as error:
                codes.add(error.code())
        assert codes <= {grpc.StatusCode.UNAVAILABLE}
        assert next(statuses).status == SERVING
        assert stub.Generate(request).hypotheses[0].text == "forty two"
        statuses.cancel()


def test_workers_end_when_the_server_stops_or_is_killed(start_server: StartServer, tiny_bundle: Path) -> None:
    for end_server in (lambda server: server.stop(), lambda server: server.kill()):
        server = start_server("--bundle", str(tiny_bundle), "--workers", "2")
        processes = workers(server)
        assert len(processes) == 2
        end_server(server)  # type: ignore[no-untyped-call]
        gone, alive = psutil.wait_procs(processes, timeout=PATIENCE)
        assert (len(gone), alive) == (2, [])


def test_workers_end_when_the_server_stops_during_its_start(tiny_bundle: Path) -> None:
    command = [serve_command(), "--bundle", str(tiny_bundle), "--workers", "2", "--port", "0", "--metrics-port", "0"]
    for event in ("listening", "worker runs", "engines"):
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            lines: list[str] = []
            while f'"event": "{event}"' not in "".join(lines[-1:]):
                lines.append(server.stderr.readline())
                assert lines[-1], lines
            processes = psutil.Process(server.pid).children()
            server.terminate()
            lines += server.stderr.readlines()
            assert server.wait(PATIENCE) == 0
        assert all(line.startswith("{") for line in lines), lines
        assert psutil.wait_procs(processes, timeout=PATIENCE)[1] == []


def test_a_suspended_worker_ends_when_the_server_is_killed(start_server: StartServer, tiny_bundle: Path) -> None:
    server = start_server("--bundle", str(tiny_bundle), "--workers", "1")
    processes = workers(server)
    processes[0].suspend()
    server.kill()
    assert psutil.wait_procs(processes, timeout=PATIENCE)[1] == []


def test_a_hanging_worker_does_not_delay_the_drain(start_server: StartServer, bundle: Path) -> None:
    few = ["--engines", "1", "--max-rows", "4"]
    server = start_server("--bundle", str(bundle), "--workers", "1", "--drain-seconds", "0.2", *few)
    with grpc.insecure_channel(server.address) as channel:
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate.future(long_request())
        until(lambda: sum_of(server, "dragoman_rows_running") == 1)
        workers(server)[0].suspend()
        assert server.stop(wait_seconds=30) == 0, "does not wait hang_seconds, a minute"
        assert call.code() is grpc.StatusCode.UNAVAILABLE


def test_the_start_fails_if_a_worker_lacks_its_device(tmp_path: Path, tiny_bundle: Path) -> None:
    with pytest.raises(ServerStartError) as refused:
        LocalServer("--bundle", str(tiny_bundle), "--workers", "2", "--device", "cuda:0,cuda:1", log=tmp_path / "log")
    assert "exited with 1" in str(refused.value)
    assert "device cuda:0" in str(refused.value) or "device cuda:1" in str(refused.value)


def test_device_errors_fail_their_requests_and_a_series_ends_the_server(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server("--bundle", str(failing(tmp_path / "bundle")), "--engines", "1")
    with grpc.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)

        def generate(word: str) -> str:
            call = stub.Generate.future(pb.GenerateRequest(input=pb.Input(text=word)))
            return str(call.result().hypotheses[0].text if call.code() is grpc.StatusCode.OK else call.code().name)

        assert [generate(word) for word in ("hello", "jazz", "zoo", "hello")] == [
            "HH EH L OW",
            "UNAVAILABLE",
            "UNAVAILABLE",
            "HH EH L OW",
        ]
        assert sum_of(server, "dragoman_device_errors_total") == 2
        assert readiness(server) == "ok\n"
        assert [generate("zoo") for _ in range(3)] == ["UNAVAILABLE"] * 3
        assert server.process.wait(PATIENCE) == 1


def test_a_worker_restarts_after_a_series_of_device_errors(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(
        "--bundle", str(failing(tmp_path / "bundle")), "--workers", "1", "--engines", "1", "--max-device-errors", "2"
    )
    with grpc.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        for _ in range(2):
            assert stub.Generate(short_request()).hypotheses[0].text == "HH EH L OW"
            for _ in range(2):
                call = stub.Generate.future(pb.GenerateRequest(input=pb.Input(text="zoo")))
                assert call.code() is grpc.StatusCode.UNAVAILABLE
            until(lambda: readiness(server) != "ok\n")
            until(lambda: readiness(server) == "ok\n")
        assert restarts(server, "errors") == 2


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit, which only Linux has")
def test_running_out_of_memory_fails_requests_not_the_worker(start_server: StartServer) -> None:
    server = start_server("--workers", "1", "--engines", "1")
    [worker] = workers(server)
    [data] = [line for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines() if line.startswith("VmData")]
    size = int(data.split()[1]) * 1024 + RESERVE + 2**23  # less than encoding all requests at once takes
    _, hard_limit = resource.prlimit(worker.pid, resource.RLIMIT_DATA)
    with grpc.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        resource.prlimit(worker.pid, resource.RLIMIT_DATA, (size, hard_limit))
        calls = [stub.Generate.future(pb.GenerateRequest(input=pb.Input(text="abcdefghi" * 6))) for _ in range(128)]
        codes = [call.code() for call in calls]
        assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert grpc.StatusCode.RESOURCE_EXHAUSTED in codes
        assert sum_of(server, "dragoman_device_errors_total", "out_of_memory") > 0
        resource.prlimit(worker.pid, resource.RLIMIT_DATA, (hard_limit, hard_limit))
        assert stub.Generate(short_request()).hypotheses[0].text == "HH EH L OW"
    assert restarts(server) == 0
    assert sum_of(server, "dragoman_rows_running") == 0


def test_a_hanging_step_fails_its_requests_and_ends_the_server(start_server: StartServer) -> None:
    """With so little time, a step of a thousand rows counts as hanging."""
    server = start_server("--max-rows", "1024", "--engines", "1", "--hang-seconds", "0.04")
    request = pb.GenerateRequest(
        input=pb.Input(text="abcdefgh" * 7), options=pb.GenerationOptions(beam_size=16, min_new_tokens=40)
    )
    with grpc.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        calls = [stub.Generate.future(request) for _ in range(64)]
        assert {call.code() for call in calls} == {grpc.StatusCode.UNAVAILABLE}
    assert server.process.wait(PATIENCE) == 1
    assert "an engine hangs" in server.log.read_text()
