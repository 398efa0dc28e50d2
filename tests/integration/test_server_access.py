"""TLS, mutual TLS and API keys of real servers, as seen by real clients."""

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

from dragoman import (
    AsyncClient,
    Client,
    HealthStatus,
    ResourceExhaustedError,
    RetryPolicy,
    Tls,
    UnauthenticatedError,
    UnavailableError,
)
from dragoman.inference import open_inference_pb2 as oip
from dragoman.inference import open_inference_pb2_grpc as oip_grpc
from dragoman.local import LocalServer, serve_command
from dragoman.v1 import admin_pb2, admin_pb2_grpc, generation_pb2_grpc
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.new_key import add
from tests.conftest import StartServer
from tests.support.certificates import Authority, Mount, Pair
from tests.support.waiting import until

WORD, SOUND = "transformer", "T R AE N S F AO R M ER"
ONCE = RetryPolicy(attempts=1)
SERVICE = "dragoman.v1.GenerationService"


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "theirs")


def generate(server: LocalServer, tls: Tls | bool = False, **arguments: Any) -> str:
    with Client(server.address, tls=tls, retry=ONCE, timeout=20, **arguments) as client:
        return client.generate(WORD).text


def command(server: LocalServer, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("dragoman"))
    words = [program, "generate", WORD, "--address", server.address, *map(str, arguments)]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment}
    )


def events(server: LocalServer) -> list[Any]:
    return [json.loads(line) for line in server.log.read_text().splitlines()]


def page(server: LocalServer, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}{path}", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def refusal(*arguments: str | Path) -> str:
    words = [serve_command(), "--port", "0", "--metrics-port", "0", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    # Leaves out lines of the log.
    return "\n".join(line for line in done.stderr.splitlines() if not line.startswith("{"))


def tls_options(pair: Pair, ca: Path | None = None) -> list[str]:
    words = ["--tls-cert", str(pair.cert), "--tls-key", str(pair.key)]
    return [*words, "--tls-client-ca", str(ca)] if ca is not None else words


async def test_clients_that_trust_the_certificate_connect(
    start_server: StartServer, ours: Authority, theirs: Authority
) -> None:
    server = start_server(*tls_options(ours.sign("server")))
    assert generate(server, Tls(ca=ours.ca)) == SOUND
    async with AsyncClient(server.address, tls=Tls(ca=str(ours.ca))) as client:
        assert (await client.generate(WORD)).text == SOUND
        assert [piece.text async for piece in client.generate_stream(WORD)]
        assert [result async for result in client.generate_many([WORD] * 3)]
        assert await client.health() is HealthStatus.SERVING
    for wrong in (Tls(ca=theirs.ca), True):
        with pytest.raises(UnavailableError, match=r"is not signed by a trusted authority"):
            generate(server, wrong)
    with pytest.raises(UnavailableError):
        generate(server, False)
    # The metrics port has no TLS: the kubelet and Prometheus have no certificates.
    assert page(server, "/readyz") == "ok\n"
    assert "dragoman_build_info" in page(server, "/metrics")


def test_a_certificate_for_another_name_needs_the_server_name(start_server: StartServer, ours: Authority) -> None:
    server = start_server(*tls_options(ours.sign("server", host="dragoman.example")))
    with pytest.raises(UnavailableError, match="the server's certificate is for another name"):
        generate(server, Tls(ca=ours.ca))
    assert generate(server, Tls(ca=ours.ca, server_name="dragoman.example")) == SOUND
    named = ("--server-name", "dragoman.example")
    assert "if it is the right server, pass that name (--server-name)" in command(server, "--ca", ours.ca).stderr
    assert command(server, "--ca", ours.ca, *named).stdout == SOUND + "\n"
    # The option implies TLS.
    assert "is not signed by a trusted authority" in command(server, *named).stderr


def test_a_client_with_tls_is_told_that_the_server_has_none(start_server: StartServer) -> None:
    with pytest.raises(UnavailableError, match="it does not speak TLS"):
        generate(start_server(), True)


def test_calls_are_balanced_over_several_servers_with_tls(start_server: StartServer, ours: Authority) -> None:
    servers = [start_server(*tls_options(ours.sign("server"))) for _ in range(2)]
    tls = Tls(ca=ours.ca, server_name="localhost")
    with Client([server.address for server in servers], tls=tls) as client:
        assert [client.generate(WORD).text for _ in range(20)] == [SOUND] * 20
    counts = [sum(v for k, v in server.metrics().items() if k.startswith("dragoman_finishes")) for server in servers]
    assert sum(counts) == 20
    assert all(counts)


def test_mutual_tls_requires_a_signed_client_certificate(
    start_server: StartServer, ours: Authority, theirs: Authority
) -> None:
    server = start_server(*tls_options(ours.sign("server"), theirs.ca))
    good = theirs.sign("client")
    assert generate(server, Tls(ours.ca, good.cert, good.key)) == SOUND
    stranger, expired = ours.sign("stranger"), theirs.sign("client", days=-1)
    for wrong in (Tls(ours.ca), Tls(ours.ca, stranger.cert, stranger.key), Tls(ours.ca, expired.cert, expired.key)):
        with pytest.raises(UnavailableError, match="requires TLS or a client certificate, or has"):
            generate(server, wrong)
    assert page(server, "/livez") == "ok\n"


def test_the_command_line_uses_tls(start_server: StartServer, ours: Authority, theirs: Authority) -> None:
    server = start_server(*tls_options(ours.sign("server"), theirs.ca))
    good = theirs.sign("client")
    done = command(server, "--ca", ours.ca, "--cert", good.cert, "--key", good.key)
    assert (done.stdout, done.stderr) == (SOUND + "\n", "")
    names = {"DRAGOMAN_CA": str(ours.ca), "DRAGOMAN_CLIENT_CERT": str(good.cert), "DRAGOMAN_CLIENT_KEY": str(good.key)}
    assert command(server, **names).stdout == SOUND + "\n"
    for arguments, status, words in (
        (("--tls", "--timeout", "2"), 1, "is not signed by a trusted authority"),
        (("--ca", ours.ca, "--cert", good.cert), 2, "--cert and --key must be set together"),
        (("--ca", "/no/such"), 2, "tls: ca /no/such can't be read: No such file or directory"),
        (("--ca", good.key), 2, "holds no certificate in PEM form"),
    ):
        done = command(server, *arguments)
        assert done.returncode == status
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_certificates_are_renewed_while_connections_are_open(
    start_server: StartServer, ours: Authority, theirs: Authority, tmp_path: Path
) -> None:
    mount = Mount(tmp_path / "secret")
    mount.put(ours.sign("old"))
    server = start_server("--tls-cert", str(mount.cert), "--tls-key", str(mount.key))
    with Client(server.address, tls=Tls(ca=ours.ca), retry=ONCE) as before:
        assert before.generate(WORD).text == SOUND
        mount.put(theirs.sign("new"))
        until(lambda: any(event["event"] == "files reloaded" for event in events(server)))
        assert generate(server, Tls(ca=theirs.ca)) == SOUND
        with pytest.raises(UnavailableError):
            generate(server, Tls(ca=ours.ca))
        assert before.generate(WORD).text == SOUND  # open connections stay
        # An invalid renewal changes nothing.
        mount.put(Pair(ours.sign("one").cert, ours.sign("another").key))
        until(lambda: server.metrics()['dragoman_files_unusable{files="TLS certificates"}'] == 1)
        assert any(event["level"] == "error" for event in events(server))
        assert generate(server, Tls(ca=theirs.ca)) == SOUND


def test_clients_of_a_removed_authority_are_refused(
    start_server: StartServer, ours: Authority, theirs: Authority, tmp_path: Path
) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(ours.ca.read_bytes() + theirs.ca.read_bytes())
    server = start_server(*tls_options(ours.sign("server"), trusted))
    ally, rival = ours.sign("client"), theirs.sign("client")
    for pair in (ally, rival):
        assert generate(server, Tls(ours.ca, pair.cert, pair.key)) == SOUND
    trusted.write_bytes(ours.ca.read_bytes())
    until(lambda: any(event["event"] == "files reloaded" for event in events(server)))
    assert generate(server, Tls(ours.ca, ally.cert, ally.key)) == SOUND
    with pytest.raises(UnavailableError):
        generate(server, Tls(ours.ca, rival.cert, rival.key))


def test_unusable_files_prevent_the_start(ours: Authority, tmp_path: Path) -> None:
    pair, other = ours.sign("server"), ours.sign("other")
    mismatch = f"the key in {other.key} does not match the certificate in {pair.cert}"
    said = refusal("--tls-cert", pair.cert, "--tls-key", other.key)
    assert said == f"dragoman-serve: {mismatch} (--tls-cert, --tls-key)"
    assert "--tls-cert and --tls-key must be set together" in refusal("--tls-cert", pair.cert)
    assert "--tls-client-ca needs --tls-cert and --tls-key" in refusal("--tls-client-ca", ours.ca)
    keys = tmp_path / "keys.txt"
    gone = f"dragoman-serve: {keys} can't be read: No such file or directory"
    assert refusal("--api-keys", keys) == f"{gone} (--api-keys)"
    assert refusal("--tls-cert", keys, "--tls-key", pair.key) == f"{gone} (--tls-cert)"
    keys.write_text("canary\n")
    assert refusal("--api-keys", keys).startswith(f"dragoman-serve: line 1 of {keys} must have sha256:")


def test_calls_need_a_known_key(start_server: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    key, other = add(file, "speech"), add(tmp_path / "other.txt", "speech")
    server = start_server("--api-keys", str(file))
    assert generate(server, api_key=key) == SOUND
    with pytest.raises(UnauthenticatedError, match=r"^this server requires an API key; send a key as metadata"):
        generate(server)
    with pytest.raises(UnauthenticatedError, match=r"^unknown API key") as error:
        generate(server, api_key=other)
    assert other not in str(error.value)
    done = command(server, DRAGOMAN_API_KEY=key)
    assert (done.stdout, done.stderr) == (SOUND + "\n", "")
    done = command(server, "--api-key", other)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    metrics = server.metrics()
    assert metrics['dragoman_key_calls_total{key="speech"}'] == 2
    assert metrics['dragoman_rejections_total{reason="unauthenticated"}'] == 3
    assert all(secret not in server.log.read_text() + page(server, "/metrics") for secret in (key, other))


async def test_a_refused_call_is_sent_once(start_server: StartServer, tmp_path: Path) -> None:
    """Even if the server refuses it while its first message is written, as happens to some of so many."""
    add(tmp_path / "keys.txt", "speech")
    server = start_server("--api-keys", str(tmp_path / "keys.txt"))

    async def ask(client: AsyncClient) -> None:
        with pytest.raises(UnauthenticatedError, match=r"^unknown API key"):
            [_ async for _ in client.generate_many([WORD])]

    for _ in range(5):
        async with AsyncClient(server.address, api_key="unknown") as client:
            await asyncio.gather(*(ask(client) for _ in range(30)))
    assert server.metrics()['dragoman_rejections_total{reason="unauthenticated"}'] == 150


def test_every_method_but_health_needs_a_key(start_server: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    key = add(file, "speech")
    server = start_server("--api-keys", str(file))
    with grpc.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
        assert next(health.Watch(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        for name, method in pb.DESCRIPTOR.services_by_name["GenerationService"].methods_by_name.items():
            call: Any = (channel.unary_stream if method.server_streaming else channel.unary_unary)(
                f"/{SERVICE}/{name}", request_serializer=None, response_deserializer=None
            )
            receive = list if method.server_streaming else bytes
            with pytest.raises(grpc.RpcError) as refused:
                receive(call(b""))
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED, name
        with pytest.raises(grpc.RpcError) as refused:
            ProtoReflectionDescriptorDatabase(channel).get_services()
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        reflect: Any = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        list_services = b"\x3a\x00"  # list_services in ServerReflectionRequest
        assert SERVICE.encode() in next(reflect(iter([list_services]), metadata=[("authorization", f"bearer {key}")]))


def test_keys_are_added_and_revoked_while_the_server_runs(start_server: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    first = add(file, "first")
    server = start_server("--api-keys", str(file))
    with Client(server.address, api_key=first, retry=ONCE) as client:
        assert client.generate(WORD).text == SOUND
        file.unlink()
        second = add(file, "second")
        until(lambda: any(event["event"] == "files reloaded" for event in events(server)))
        assert generate(server, api_key=second) == SOUND
        with pytest.raises(UnauthenticatedError):  # even on an open connection
            client.generate(WORD)
        file.write_text("what is this\n")
        until(lambda: any(event["level"] == "error" for event in events(server)))
        assert generate(server, api_key=second) == SOUND


def test_limits_of_a_key_are_enforced_with_a_retry_delay(start_server: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    slow, narrow, free = add(file, "slow", per_second="0.01"), add(file, "narrow", at_once="1"), add(file, "free")
    server = start_server("--api-keys", str(file), "--engines", "1", "--max-rows", "2")
    assert generate(server, api_key=slow) == SOUND
    with pytest.raises(ResourceExhaustedError, match=r"0\.01 requests per second; retry in") as refused:
        generate(server, api_key=slow)
    assert refused.value.retry_after == pytest.approx(100, abs=50)
    assert generate(server, api_key=free) == SOUND
    with grpc.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        metadata = (("authorization", f"Bearer {narrow}"),)
        batch = pb.GenerateBatchRequest(inputs=[pb.Input(text=f"{WORD}{'ab'[n % 2] * (n % 9)}") for n in range(2000)])
        running = stub.GenerateBatch.future(batch, metadata=metadata)
        until(lambda: server.metrics().get('dragoman_key_calls_total{key="narrow"}') == 1)
        single = pb.GenerateRequest(input=pb.Input(text=WORD))
        with pytest.raises(grpc.RpcError) as error:
            stub.Generate(single, metadata=metadata)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        status: Any = rpc_status.from_call(error.value)  # type: ignore[arg-type]
        retry = error_details_pb2.RetryInfo()
        assert status.details[0].Unpack(retry)
        assert retry.retry_delay.ToNanoseconds() > 0
        assert generate(server, api_key=free) == SOUND
        running.cancel()

        def let_in() -> bool:
            try:
                return bool(stub.Generate(single, metadata=metadata).hypotheses)
            except grpc.RpcError:
                return False

        until(let_in)
    assert server.metrics()['dragoman_key_refusals_total{key="narrow"}'] >= 1


def test_reflection_can_be_switched_off(start_server: StartServer) -> None:
    server = start_server("--no-reflection")
    with grpc.insecure_channel(server.address) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            ProtoReflectionDescriptorDatabase(channel).get_services()
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert generate(server) == SOUND


def status_of(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    try:
        call(*arguments, **options)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def test_administration_needs_an_admin_key_and_can_be_switched_off(start_server: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    plain, admin = add(file, "plain"), add(file, "admin", admin=True)
    status = admin_pb2.GetStatusRequest()
    load = oip.RepositoryModelLoadRequest(model_name="no-such-model")
    unload = oip.RepositoryModelUnloadRequest(model_name="no-such-model")
    server = start_server("--api-keys", str(file))
    with grpc.insecure_channel(server.address) as channel:
        ours, kserve = admin_pb2_grpc.AdminServiceStub(channel), oip_grpc.GRPCInferenceServiceStub(channel)
        for key, codes in ((plain, ["PERMISSION_DENIED"] * 3), (admin, ["OK", "NOT_FOUND", "NOT_FOUND"])):
            metadata = [("authorization", f"Bearer {key}")]
            assert codes == [
                status_of(ours.GetStatus, status, metadata=metadata),
                status_of(kserve.RepositoryModelLoad, load, metadata=metadata),
                status_of(kserve.RepositoryModelUnload, unload, metadata=metadata),
            ]
    closed = start_server("--no-admin")
    with grpc.insecure_channel(closed.address) as channel:
        ours, kserve = admin_pb2_grpc.AdminServiceStub(channel), oip_grpc.GRPCInferenceServiceStub(channel)
        assert status_of(ours.GetStatus, status) == "UNIMPLEMENTED"
        assert status_of(kserve.RepositoryModelLoad, load) == "FAILED_PRECONDITION"
        assert status_of(kserve.RepositoryModelUnload, unload) == "FAILED_PRECONDITION"
    assert generate(closed) == SOUND
