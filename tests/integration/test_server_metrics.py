"""The metrics of a real server: the documented ones, and no series created by clients."""

import asyncio
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from dragoman import Client, ResourceExhaustedError, Result, Tls
from dragoman.inference import open_inference_pb2 as oip
from dragoman.inference import open_inference_pb2_grpc as oip_grpc
from dragoman.local import LocalServer
from dragoman.retry import NO_RETRY
from dragoman.v1 import admin_pb2, admin_pb2_grpc, generation_pb2_grpc
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.new_key import add
from tests.conftest import StartServer
from tests.support.bundles import SHIPPED_G2P
from tests.support.certificates import Authority
from tests.support.metrics_page import documented, exposed, series, sum_of
from tests.support.servers import G2PServer
from tests.support.waiting import until

MODEL, WORDS, MADE_UP = "g2p", ["transformer", "dragoman", "quokka"], 1000
# A machine without a GPU has none of the former, and a server whose engines run in its own process none of the latter.
NOT_EVERYWHERE = ("dragoman_gpu_", "dragoman_worker_")


class Running(NamedTuple):
    """A server with every feature that has metrics, and what its clients need."""

    server: LocalServer
    credentials: grpc.ChannelCredentials
    ca: Path
    key: str

    def page(self) -> str:
        return page_of(self.server)

    def settled(self) -> str:
        """Returns the page once models are loaded and every call is counted, after its response."""
        until(lambda: sum_of(self.server, "dragoman_requests_in_flight") == 0)
        until(lambda: sum_of(self.server, "dragoman_model_load_failures_total", "broken"))
        return self.page()

    def channel(self) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(self.server.address, self.credentials)


def page_of(server: LocalServer) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=10) as page:
        return str(page.read().decode())


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Serves one of two models, since the other is broken, and calls every service."""
    folder = tmp_path_factory.mktemp("metrics")
    authority = Authority(folder, "ours")
    pair, keys = authority.sign("server"), folder / "keys"
    key, slow = add(keys, "team", admin=True), add(keys, "slow", per_second="1")
    for name in (MODEL, "broken"):
        shutil.copytree(SHIPPED_G2P, folder / "models" / name / "1")
    with (folder / "models" / "broken" / "1" / "weights.bin").open("r+b") as weights:
        weights.write(b"other")
    options = ["--model-repository", folder / "models", "--api-keys", keys]
    options += ["--tls-cert", pair.cert, "--tls-key", pair.key, "--log-requests", "none"]
    log = folder / "server.log"
    with G2PServer(*map(str, options), log=log) as server:
        running = Running(server, grpc.ssl_channel_credentials(authority.ca.read_bytes()), authority.ca, key)
        with Client(server.address, tls=Tls(ca=authority.ca), api_key=key, timeout=20) as client:
            client.generate_batch(WORDS, model=MODEL)
            client.score("transformer", ["T R AE N S F AO R M ER"], model=MODEL)
        with Client(server.address, tls=Tls(ca=authority.ca), api_key=slow, retry=NO_RETRY) as client:
            client.generate_batch(WORDS * 20, model=MODEL)  # for which it has to pay back a minute
            with pytest.raises(ResourceExhaustedError):
                client.generate("quokka", model=MODEL)
        yield running
        assert server.stop() == 0, server.log_tail()


def test_the_documented_table_matches_a_live_page(running: Running) -> None:
    live, table = exposed(running.settled()), documented()
    assert {name: row for name, row in table.items() if name in live} == live
    absent = set(table) - set(live)
    assert {name for name in absent if not name.startswith(NOT_EVERYWHERE)} == set()


def test_openmetrics_declares_units(running: Running) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{running.server.metrics_port}/metrics",
        headers={"Accept": "application/openmetrics-text; version=1.0.0"},
    )
    with urllib.request.urlopen(request, timeout=10) as page:
        lines = page.read().decode().splitlines()
    units = dict(line.split()[2:] for line in lines if line.startswith("# UNIT"))
    ours = [row for row in documented().values() if row.name.startswith("dragoman_") and row.unit]
    wanted = {row.name.removesuffix("_total"): row.unit for row in ours}
    del wanted["dragoman_certificate_end_timestamp_seconds"]  # a moment, no duration
    assert units == wanted


def test_a_model_has_a_few_hundred_series(running: Running) -> None:
    ours = [name for name in series(running.page()) if f'model="{MODEL}"' in name]
    assert 200 < len(ours) < 400


async def test_clients_can_not_create_series(running: Running) -> None:
    """Sends a thousand unknown models, methods, keys, versions and call ids to every service that takes them."""
    async with running.channel() as channel:
        await make_up(running, channel, 0)  # the refusals themselves are counted, and so is each face
        before = series(running.settled())
        await asyncio.gather(*(make_up(running, channel, number) for number in range(1, MADE_UP + 1)))
    page = running.settled()
    assert series(page) == before
    assert "canary" not in page
    unknown = [line for line in page.splitlines() if line.startswith("dragoman_requests_total") and "unknown" in line]
    assert sum(float(line.split()[-1]) for line in unknown) == MADE_UP + 1


async def make_up(running: Running, channel: grpc.aio.Channel, number: int) -> None:
    name = f"canary-{number}"
    admitted = (("authorization", f"Bearer {running.key}"), ("x-request-id", name), (name, name))
    stub, inference = generation_pb2_grpc.GenerationServiceStub(channel), oip_grpc.GRPCInferenceServiceStub(channel)
    request = pb.GenerateRequest(model=name, input=pb.Input(text="a"))
    versioned = pb.GenerateRequest(model=f"{MODEL}@{number + 2}", input=pb.Input(text="a"))
    unknown: Any = channel.unary_unary(f"/dragoman.v1.GenerationService/{name}")
    codes = [
        await refusal(stub.Generate(request, metadata=admitted)),
        await refusal(stub.Generate(versioned, metadata=admitted)),
        await refusal(stub.Generate(request, metadata=(("authorization", f"Bearer {name}"),))),
        await refusal(inference.ModelMetadata(oip.ModelMetadataRequest(name=name), metadata=admitted)),
        await refusal(unknown(b"", metadata=admitted)),
        await refusal(
            admin_pb2_grpc.AdminServiceStub(channel).LoadModel(
                admin_pb2.LoadModelRequest(model=name), metadata=admitted
            )
        ),
    ]
    missing = grpc.StatusCode.NOT_FOUND
    assert codes == [
        missing,
        missing,
        grpc.StatusCode.UNAUTHENTICATED,
        missing,
        grpc.StatusCode.UNIMPLEMENTED,
        missing,
    ]


async def refusal(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code()


def test_counts_are_exact_with_several_worker_processes(start_server: StartServer) -> None:
    """Compares the counts with the responses: nothing is lost or counted twice between the processes."""
    server = start_server("--workers", "2", "--engines", "1")
    with Client(server.address, timeout=30) as client:
        answers = client.generate_batch(WORDS * 100)
    phones = sum(len(answer.text.split()) for answer in answers if isinstance(answer, Result))
    samples = server.metrics()

    def of(name: str) -> list[float]:
        return [value for key, value in samples.items() if key.split("{")[0] == f"dragoman_{name}"]

    assert sum(of("finishes_total")) == sum(of("generation_seconds_count")) == len(WORDS) * 100
    assert sum(of("first_token_seconds_count")) == sum(of("queue_seconds_count")) == len(WORDS) * 100
    assert sum(of("target_tokens_total")) == phones
    assert of("worker_up") == [1, 1]
    assert min(of("worker_resident_memory_bytes")) > 20 << 20
    live, table = exposed(page_of(server)), documented()
    workers = {name: row for name, row in live.items() if name.startswith("dragoman_worker_")}
    assert workers == {name: row for name, row in table.items() if name.startswith("dragoman_worker_")}
