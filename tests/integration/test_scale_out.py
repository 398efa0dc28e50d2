"""Servers behind one name, as the pods of a headless Service: some are added, and one is killed, while clients call."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import grpc

from dragoman import AsyncClient, RetryPolicy
from dragoman.local import LocalServer
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from tests.conftest import ROOT
from tests.support.name_server import NameServer, name_server
from tests.support.servers import G2PServer
from tests.support.steady_load import constant_load, steady_ports
from tests.support.waiting import PATIENCE, until_async

NAME = "g2p-dragoman.speech.svc"
AT_ONCE = 16  # concurrent calls of each client: enough that some almost certainly run on every server at any time
CONNECTION_AGE = 2.0
GRPC_BETWEEN_LOOKS = 30.0  # seconds, at least; our client asks for fewer
LONG = "honorificabilitudinitatibus" * 2
GENERATE = 'dragoman_requests_total{code="OK",method="dragoman.v1.GenerationService/Generate"}'
ONCE = RetryPolicy(attempts=1)
[SERVICE_CONFIG] = re.findall(
    r"^```json\n(.*?)^```$", (ROOT / "deploy" / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


class Fleet:
    """Servers with one port and an address each, as pods have, and the name that stands for all of them."""

    def __init__(self, names: NameServer, port: int, logs: Path) -> None:
        self.names, self.servers = names, list[LocalServer]()
        self.started: list[LocalServer] = []
        self._port, self._logs = port, logs

    async def grow(self, count: int) -> None:
        """Starts servers, and has the name stand for them once all are ready."""
        first = len(self.started) + 1
        hosts = [f"127.0.0.{number}" for number in range(first, first + count)]
        new = await asyncio.gather(*(asyncio.to_thread(self._start, host) for host in hosts))
        self.started += new
        self.servers += new
        self.names.addresses = [server.host for server in self.servers]

    async def shrink(self) -> int:
        """Tells the first one to stop, and the name to stand for the others.

        Returns:
            its exit status.
        """
        leaving = self.servers.pop(0)
        self.names.addresses = [server.host for server in self.servers]
        return await asyncio.to_thread(leaving.stop)

    def _start(self, host: str) -> LocalServer:
        options = ("--engines", "1", "--max-rows", "16", "--log-requests", "failed")
        life = ("--max-connection-age-seconds", str(CONNECTION_AGE), "--drain-delay-seconds", "2")
        return G2PServer(*options, *life, log=self._logs / f"{host}.log", host=host, port=self._port)

    async def answered(self) -> list[float]:
        """How many calls each server has answered."""
        pages = await asyncio.gather(*(asyncio.to_thread(server.metrics) for server in self.servers))
        return [page.get(GENERATE, 0) for page in pages]


@asynccontextmanager
async def fleet(logs: Path) -> AsyncIterator[Fleet]:
    [port] = steady_ports(1)
    async with name_server(NAME, port) as names:
        made = Fleet(names, port, logs)
        try:
            yield made
        finally:
            for server in made.started:
                server.kill()


def channel(address: str, retries: bool) -> grpc.aio.Channel:
    """One of plain gRPC, with the service config that is recommended, or the same without retries."""
    config = json.loads(SERVICE_CONFIG)
    if not retries:
        del config["methodConfig"]
    options: list[tuple[str, Any]] = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.service_config", json.dumps(config)),
    ]
    return grpc.aio.insecure_channel(address, options)


def generate(to: grpc.aio.Channel, text: str) -> Callable[[], Awaitable[object]]:
    stub: Any = generation_pb2_grpc.GenerationServiceStub(to)
    request = pb.GenerateRequest(input=pb.Input(text=text))
    return lambda: stub.Generate(request, timeout=PATIENCE)


def lost(ended: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    return {how: count for how, count in ended.items() if how[1] != "OK"}


async def test_servers_that_are_added_get_their_share_so_that_the_first_one_can_leave(tmp_path: Path) -> None:
    async with fleet(tmp_path) as made:
        await made.grow(1)
        async with AsyncClient(made.names.target, retry=ONCE) as client:
            calls = {"client": lambda: client.generate("of")}
            async with constant_load(calls) as while_they_come:
                await until_async(lambda: _all_answer(made, more_than=20))
                await made.grow(2)
                grown = time.monotonic()
                await until_async(lambda: _all_answer(made, more_than=0))
                moved_after = time.monotonic() - grown
            before = await made.answered()
            async with constant_load(calls) as shared:
                await until_async(lambda: _all_answer(made, more_than=150, since=before))
            share = [late - early for early, late in zip(before, await made.answered(), strict=True)]
            async with constant_load(calls) as while_one_leaves:
                assert await made.shrink() == 0
                after = await made.answered()
                await until_async(lambda: _all_answer(made, more_than=20, since=after))
    assert [lost(ended) for ended in (while_they_come, shared, while_one_leaves)] == [{}] * 3
    assert moved_after < GRPC_BETWEEN_LOOKS
    assert max(share) <= 1.5 * min(share), share


async def _all_answer(made: Fleet, more_than: float, since: Sequence[float] = ()) -> bool:
    return min(now - then for now, then in zip_longest(await made.answered(), since, fillvalue=0.0)) > more_than


async def test_a_server_that_is_killed_takes_along_what_it_has_and_no_more(tmp_path: Path) -> None:
    async with fleet(tmp_path) as made:
        await made.grow(3)
        async with (
            channel(made.names.target, retries=False) as once,
            channel(made.names.target, retries=True) as again,
            AsyncClient(made.names.target) as client,
        ):
            calls = {
                "once": generate(once, LONG),
                "again": generate(again, LONG),
                "client": lambda: client.generate(LONG),
            }
            async with constant_load(calls, AT_ONCE) as ended:
                await until_async(lambda: _all_answer(made, more_than=20))
                await asyncio.to_thread(made.servers.pop().kill)
                now = await made.answered()
                await until_async(lambda: _all_answer(made, more_than=40, since=now))
    assert {(name, outcome.split(":")[0]) for name, outcome in lost(ended)} <= {("once", "UNAVAILABLE")}, ended
    assert sum(lost(ended).values()) <= AT_ONCE, ended
