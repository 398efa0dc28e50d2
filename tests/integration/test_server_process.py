"""`dragoman-serve` as a process: its needs, its start, refusals to start, and its exit."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from dragoman.local import LocalServer, serve_command
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from tests.conftest import StartServer
from tests.support.bundles import SHIPPED_G2P, lengthened
from tests.support.metrics_page import sum_of
from tests.support.waiting import PATIENCE, until

SERVICE = "dragoman.v1.GenerationService"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
TOKENS = 30_000  # which take tens of seconds to decode
# A second of work even on a fast machine, since the server is slowed down; on a slow one, draining may take minutes.
SLOW = ("--engines", "1", "--max-rows", "2")
PATIENT = ("--drain-seconds", "300")
LARGE = pb.GenerateBatchRequest(inputs=[pb.Input(text=str(number % 1000)) for number in range(2_000)])


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.fixture(scope="module")
def long_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lengthened(tmp_path_factory.mktemp("long") / "bundle", TOKENS)


def stubs(server: LocalServer) -> tuple[grpc.Channel, generation_pb2_grpc.GenerationServiceStub]:
    channel = grpc.insecure_channel(server.address)
    return channel, generation_pb2_grpc.GenerationServiceStub(channel)


def probe_status(server: LocalServer, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/{path}", timeout=10) as page:
            return int(page.status)
    except urllib.error.HTTPError as error:
        return error.code


def refuses_to_start(*arguments: str | Path, cwd: Path | None = None) -> str:
    """Returns the sentence that the server prints when it refuses to start."""
    ports = [] if "--port" in arguments else ["--port", "0", "--metrics-port", "0"]
    command = [serve_command(), *ports, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=cwd)
    assert done.returncode == 1, done.stderr
    # Apart from the sentence there is at most a log line that it listens.
    sentences = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(sentences) == 1, done.stderr
    assert done.stdout == ""
    return sentences[0].removeprefix("dragoman-serve: ")


def test_it_starts_fast_in_little_memory_and_without_torch(start_server: StartServer, tiny_bundle: Path) -> None:
    shipped = SHIPPED_G2P
    server = start_server("--bundle", str(shipped if shipped.is_dir() else tiny_bundle))
    process = psutil.Process(server.process.pid)
    used = process.cpu_times()
    # CPU time, since other processes may have the machine; with the machine to itself it takes no longer by the clock.
    assert used.user + used.system < 2
    assert process.memory_info().rss < 250 * 2**20
    libraries = Path(f"/proc/{process.pid}/maps").read_text()
    assert "libonnxruntime" in libraries or "onnxruntime" in libraries
    assert "torch" not in libraries


def test_it_does_not_import_training() -> None:
    code = "import dragoman_server.process.cli, dragoman_server.process.app, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert "dragoman_server" in imported
    assert not imported & {
        "torch",
        "onnx",
        "onnxscript",
        "dragoman_training",
        "dragoman_export",
        "sacrebleu",
        "matplotlib",
    }


def test_a_port_in_use_is_refused(tiny_bundle: Path, taken_port: int) -> None:
    bundle = ["--bundle", str(tiny_bundle)]
    error = refuses_to_start(*bundle, "--port", str(taken_port), "--metrics-port", "0")
    assert error == f"port {taken_port} of 127.0.0.1 is in use; choose another with --port"
    error = refuses_to_start(*bundle, "--port", "0", "--metrics-port", str(taken_port))
    assert error == f"port {taken_port} of 127.0.0.1 is in use; choose another with --metrics-port"


@pytest.mark.parametrize("files", [16, 64])
def test_too_few_open_files_are_refused_before_anything_fails(tiny_bundle: Path, files: int) -> None:
    command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", serve_command(), "--bundle", str(tiny_bundle)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    error = f"the system allows this process {files} open files (ulimit -n); it needs at least 272"
    assert done.stderr == f"dragoman-serve: {error}\n"


def test_two_servers_never_share_a_port(start_server: StartServer, tiny_bundle: Path) -> None:
    first = start_server("--bundle", str(tiny_bundle))
    error = refuses_to_start("--bundle", tiny_bundle, "--port", str(first.port), "--metrics-port", "0")
    assert f"port {first.port}" in error


def test_a_host_of_another_machine_is_refused(tiny_bundle: Path) -> None:
    error = refuses_to_start("--bundle", tiny_bundle, "--host", "192.0.2.1")
    assert error.startswith("--host 192.0.2.1 is not an address of this machine: ")
    assert "no.such.host.invalid" in refuses_to_start("--bundle", tiny_bundle, "--host", "no.such.host.invalid")


def test_an_unusable_bundle_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    assert "can't be opened: No such file" in refuses_to_start("--bundle", tmp_path / "nothing")
    broken = tmp_path / "broken"
    shutil.copytree(tiny_bundle, broken)
    with (broken / "weights.bin").open("r+b") as weights:
        weights.seek(1000)
        weights.write(b"other")
    assert "weights.bin was changed" in refuses_to_start("--bundle", broken)
    (broken / "weights.bin").unlink()
    assert "weights.bin is missing" in refuses_to_start("--bundle", "broken", cwd=tmp_path)


def test_a_missing_gpu_is_refused(tiny_bundle: Path) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("is about machines without a GPU, and this ONNX Runtime may find one")
    assert "cuda" in refuses_to_start("--bundle", tiny_bundle, "--device", "cuda")


def test_a_bundle_is_served_through_links_and_relative_paths(
    start_server: StartServer, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Like a Kubernetes mount: model -> ..data/model, ..data -> ..version, all of it read-only.
    version = tmp_path / "mount" / "..version"
    shutil.copytree(tiny_bundle, version / "model")
    (tmp_path / "mount" / "..data").symlink_to("..version")
    (tmp_path / "mount" / "model").symlink_to("..data/model")
    for path in (*(version / "model").iterdir(), version / "model"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    monkeypatch.chdir(tmp_path)
    channel, stub = stubs(start_server("--bundle", "mount/model"))
    with channel:
        assert stub.Generate(pb.GenerateRequest(input=pb.Input(text="42"))).hypotheses[0].text
    (version / "model").chmod(0o755)  # so that it can be removed


def test_reflection_and_health_know_the_services(tiny_server: LocalServer) -> None:
    with grpc.insecure_channel(tiny_server.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert {SERVICE, "grpc.health.v1.Health"} <= set(database.get_services())
        assert "GenerateStream" in str(database.FindFileContainingSymbol(SERVICE))
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            assert health.Check(health_pb2.HealthCheckRequest(service=service)).status == SERVING


def test_single_streamed_and_batched_responses_are_equal(tiny_server: LocalServer) -> None:
    channel, stub = stubs(tiny_server)
    details = pb.Details(log_probabilities=True)
    with channel:
        inputs = [pb.Input(text=str(number)) for number in range(64)]
        items = stub.GenerateBatch(pb.GenerateBatchRequest(inputs=inputs, details=details)).items
        for source, item in zip(inputs, items, strict=True):
            request = pb.GenerateRequest(input=source, details=details)
            alone = stub.Generate(request)
            messages = list(stub.GenerateStream(request))
            assert "".join(message.text for message in messages) == alone.hypotheses[0].text
            for answer in (item.response, messages[-1].final):
                assert answer.hypotheses[0].text == alone.hypotheses[0].text
                assert [t.id for t in answer.hypotheses[0].tokens] == [t.id for t in alone.hypotheses[0].tokens]
                # Rounding may depend on the batch; tokens do not.
                assert answer.hypotheses[0].log_probability == pytest.approx(
                    alone.hypotheses[0].log_probability, abs=1e-4
                )


def test_a_full_queue_refuses_single_calls_while_a_batch_waits(start_server: StartServer, tiny_bundle: Path) -> None:
    server = start_server("--bundle", str(tiny_bundle), "--queue-size", "2", "--max-rows", "1", "--engines", "1")
    channel, stub = stubs(server)
    with channel:
        inputs = [pb.Input(text=str(number)) for number in range(300)]
        batch = stub.GenerateBatch.future(pb.GenerateBatchRequest(inputs=inputs))
        singles = [stub.Generate.future(pb.GenerateRequest(input=inputs[0])) for _ in range(50)]
        refused = [call.exception() for call in singles if call.exception()]
        assert refused
        assert all(error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED for error in refused)
        assert all("retry in" in error.details() for error in refused)
        assert all(item.HasField("response") for item in batch.result().items)
    assert server.metrics()['dragoman_rejections_total{reason="queue_full"}'] >= len(refused)


@pytest.mark.parametrize("leave", ["cancel", "deadline"])
def test_rows_of_clients_that_leave_are_freed(start_server: StartServer, long_bundle: Path, leave: str) -> None:
    server = start_server("--bundle", str(long_bundle), "--max-rows", "1", "--engines", "1")
    request = pb.GenerateRequest(input=pb.Input(text="court"))
    endless = pb.GenerationOptions(min_new_tokens=TOKENS, max_new_tokens=TOKENS)

    def are_there(running: int, waiting: int) -> bool:
        names = ("dragoman_rows_running", "dragoman_requests_waiting")
        return [sum_of(server, name) for name in names] == [running, waiting]

    def dropped(*reasons: str) -> float:
        return sum(sum_of(server, "dragoman_drops_total", reason, "waiting") for reason in reasons)

    channel, stub = stubs(server)
    with channel:
        busy = stub.GenerateBatch.future(pb.GenerateBatchRequest(inputs=[request.input] * 2, options=endless))
        until(lambda: are_there(running=1, waiting=1))

        def ask(timeout: float | None = None) -> list[Any]:
            calls = [stub.Generate.future(request, timeout=timeout) for _ in range(100)]
            return calls + [stub.GenerateStream(request, timeout=timeout) for _ in range(100)]

        def some_expire() -> bool:  # a slow machine may not have sent all of them
            assert {call.code() for call in ask(timeout=1)} == {grpc.StatusCode.DEADLINE_EXCEEDED}
            return dropped("expired", "cancelled") > 0  # if the client's clock is first, the server sees a cancellation

        if leave == "cancel":
            left = ask()
            until(lambda: are_there(running=1, waiting=201))
            for call in left:
                call.cancel()
            until(lambda: dropped("cancelled") == 200)
        else:
            until(some_expire)
        until(lambda: are_there(running=1, waiting=1))
        busy.cancel()
        until(lambda: are_there(running=0, waiting=0))
        assert sum_of(server, "dragoman_drops_total", "cancelled", "running") == 1
        assert stub.Generate(request).hypotheses[0].text
    assert sum_of(server, "dragoman_finishes_total") == 1


def test_health_answers_under_load_with_fifty_watches(tiny_server: LocalServer) -> None:
    channel, stub = stubs(tiny_server)
    with channel:
        health = health_pb2_grpc.HealthStub(channel)
        watches = [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(50)]
        assert {next(watch).status for watch in watches} == {SERVING}
        batch = stub.GenerateBatch.future(LARGE)
        seconds = []
        while not batch.done():
            started = time.perf_counter()
            assert health.Check(health_pb2.HealthCheckRequest(), timeout=5).status == SERVING
            seconds.append(time.perf_counter() - started)
            time.sleep(0.01)
        assert len(batch.result().items) == len(LARGE.inputs)
        for watch in watches:
            watch.cancel()
    assert len(seconds) > 5
    assert sorted(seconds)[len(seconds) // 2] < 0.1


def test_sigterm_finishes_running_calls_and_refuses_new_ones(start_server: StartServer, tiny_bundle: Path) -> None:
    server = start_server("--bundle", str(tiny_bundle), *SLOW, *PATIENT)
    channel, stub = stubs(server)
    with channel:
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert next(watch).status == SERVING
        batch = stub.GenerateBatch.future(LARGE)
        until(lambda: sum_of(server, "dragoman_rows_running") > 0)
        server.process.send_signal(signal.SIGTERM)
        assert next(watch).status == NOT_SERVING
        assert health.Check(health_pb2.HealthCheckRequest()).status == NOT_SERVING
        assert [probe_status(server, path) for path in ("startupz", "readyz", "livez")] == [200, 503, 200]
        with pytest.raises(grpc.RpcError) as refused:
            stub.Generate(pb.GenerateRequest(input=pb.Input(text="1")))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert refused.value.details() == "the server is shutting down"
        assert all(item.HasField("response") for item in batch.result().items)
        assert list(watch) == []
    assert server.process.wait(PATIENCE) == 0


def test_batch_items_that_do_not_finish_in_time_are_unavailable(start_server: StartServer, tiny_bundle: Path) -> None:
    server = start_server("--bundle", str(tiny_bundle), *SLOW, "--drain-seconds", "0")
    channel, stub = stubs(server)
    with channel:
        batch = stub.GenerateBatch.future(LARGE)
        until(lambda: sum_of(server, "dragoman_rows_running") > 0)
        server.process.send_signal(signal.SIGTERM)
        if batch.exception(PATIENCE):  # on a busy machine gRPC ends the call before the server responds
            assert batch.code() is grpc.StatusCode.UNAVAILABLE
        else:
            codes = {item.error.code for item in batch.result().items if item.HasField("error")}
            assert codes == {grpc.StatusCode.UNAVAILABLE.value[0]}
    assert server.process.wait(PATIENCE) == 0


def test_a_second_signal_ends_a_draining_server_at_once(start_server: StartServer, tiny_bundle: Path) -> None:
    server = start_server("--bundle", str(tiny_bundle), *SLOW)
    channel, stub = stubs(server)
    with channel:
        batch = stub.GenerateBatch.future(LARGE)
        until(lambda: sum_of(server, "dragoman_rows_running") > 0)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == SERVING
        server.process.send_signal(signal.SIGTERM)
        assert next(watch).status == NOT_SERVING
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 1
        assert batch.exception() is not None


def test_logs_are_json_without_the_text_of_requests(start_server: StartServer, tiny_bundle: Path) -> None:
    server = start_server("--bundle", str(tiny_bundle), "--log-level", "debug")
    channel, stub = stubs(server)
    with channel:
        stub.Generate(pb.GenerateRequest(input=pb.Input(text="90817263")))
        with pytest.raises(grpc.RpcError):
            stub.Generate(pb.GenerateRequest(input=pb.Input(text="Ж")))
    assert server.process.poll() is None
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE) == 0
    log = server.log.read_text()
    events = [json.loads(line)["event"] for line in log.splitlines()]
    assert [event for event in events if event in ("listening", "ready", "draining", "stopped")] == [
        "listening",
        "ready",
        "draining",
        "stopped",
    ]
    assert "90817263" not in log
    assert "Ж" not in log
