"""Very many items in one call take no more memory than some: not in the server, and not in its clients."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

import grpc
import psutil
import pytest

from dragoman.local import LOOPBACK, LocalServer
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from tests.support.many_load import ManyGenerator
from tests.support.metrics_page import sum_of
from tests.support.servers import G2PServer
from tests.support.waiting import until

WORDS = "court between two dragoman transformer serendipity a of interpreter language".split()
SHORT = ["a", "of"]  # what is decoded for an item takes time, but hardly any memory
FIRST, ITEMS = 4_000, 12_000
ROOM = 6 * 2**20  # for what the allocator does; a kilobyte an item would take 8
# Sends items from a generator and prints its memory after some, and after all.
CLIENT = """
import asyncio, itertools, sys, psutil
from dragoman import AsyncClient, Client, Result
kind, address, texts, first, count = sys.argv[1], sys.argv[2], sys.argv[3].split(), int(sys.argv[4]), int(sys.argv[5])
words, memory = itertools.islice(itertools.cycle(texts), count), psutil.Process().memory_info
def check(number, outcome):
    assert isinstance(outcome, Result), outcome
    if number in (first, count):
        print(memory().rss, flush=True)
async def run():
    async with AsyncClient(address) as client:
        number = 0
        async for outcome in client.generate_many(words):
            number += 1
            check(number, outcome)
if kind == "async":
    asyncio.run(run())
else:
    with Client(address) as client:
        for number, outcome in enumerate(client.generate_many(words), 1):
            check(number, outcome)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    log = tmp_path_factory.mktemp("many") / "server.log"
    with G2PServer(log=log) as started:
        yield started
        assert started.stop() == 0, started.log_tail()


def resident(server: LocalServer) -> int:
    return int(psutil.Process(server.process.pid).memory_info().rss)


def test_the_server_s_memory_does_not_grow_with_the_items_of_a_call(server: LocalServer) -> None:
    generator = ManyGenerator((LOOPBACK, server.port), server.process.pid, b"", SHORT)
    sizes: list[int] = []
    samples = generator.watched(64, [FIRST, ITEMS], lambda: sizes.append(resident(server)))
    assert (samples.sequences, samples.failed) == (ITEMS, 0)
    assert sizes[1] - sizes[0] < ROOM


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_client_s_memory_does_not_grow_with_its_sources(server: LocalServer, kind: str) -> None:
    command = [sys.executable, "-c", CLIENT, kind, server.address, " ".join(SHORT), str(FIRST), str(ITEMS)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    some, all_ = map(int, output.split())
    assert all_ - some < ROOM


def test_a_client_that_sends_and_does_not_read_is_held_up(server: LocalServer) -> None:
    details = pb.GenerateRequest(details=pb.Details(top_tokens=10))
    count, message = 2_000, 10

    def messages() -> Iterator[pb.GenerateManyRequest]:
        yield pb.GenerateManyRequest(defaults=details)
        numbered = enumerate(islice(cycle(WORDS), count))
        for _ in range(count // message):
            items = [
                pb.ManyItem(id=str(number), request=pb.GenerateRequest(input=pb.Input(text=text)))
                for number, text in islice(numbered, message)
            ]
            yield pb.GenerateManyRequest(items=items)

    answered, before = 'dragoman_items_total{code="OK",method="dragoman.v1.GenerationService/GenerateMany"}', 0.0
    narrow = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 2**16)]
    with grpc.insecure_channel(server.address, options=narrow) as channel:
        start = server.metrics().get(answered, 0.0)
        stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
        call = stub.GenerateMany(messages())
        still = 0

        def stands_still() -> bool:
            nonlocal before, still
            now = server.metrics().get(answered, 0.0) - start
            still = still + 1 if now == before and now else 0
            before = now
            return still == 10

        until(stands_still)
        assert 0 < before < count / 2
        assert sum_of(server, "dragoman_requests_waiting") == 0
        assert sum(len(response.answers) for response in call) == count
