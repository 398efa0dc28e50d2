"""Servers that are restarted or killed under constant load."""

import asyncio
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from dragoman import AsyncClient, Result, RetryPolicy
from dragoman.inference import open_inference_pb2 as oip
from dragoman.inference import open_inference_pb2_grpc
from dragoman.local import LocalServer
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from tests.support.proxies import connection_balancer
from tests.support.servers import G2PServer
from tests.support.steady_load import constant_load, steady_ports
from tests.support.waiting import PATIENCE, until_async

WORD, SOUND = "transformer", "T R AE N S F AO R M ER"
REQUEST = pb.GenerateRequest(input=pb.Input(text=WORD))
SHORT, SHORT_SOUND = "of", "AH F"  # a call is lost where connections change, whatever is decoded meanwhile
SHORT_REQUEST = pb.GenerateRequest(input=pb.Input(text=SHORT))
ONE_ENGINE = ("--engines", "1", "--max-rows", "16", "--log-requests", "failed")
PAGE = Path(__file__).parents[2] / "docs" / "drain.md"
[BALANCE_CALLS] = re.findall(r"^```json\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def channel(address: str, service_config: str = "{}") -> grpc.aio.Channel:
    """One without a retry policy: gRPC sends a call again only where a connection closed before a server looked at it.

    That is its default. With `grpc.enable_retries` 0 not even that is done, and a call that crosses the GOAWAY of a
    connection that has reached its age, as happens all the time here, is lost.
    """
    options: list[tuple[str, Any]] = [("grpc.use_local_subchannel_pool", 1), ("grpc.service_config", service_config)]
    return grpc.aio.insecure_channel(address, options)


async def test_a_rolling_restart_of_three_servers_loses_no_call(tmp_path: Path) -> None:
    """Balances calls by gRPC itself and by our client, and balances connections, all without a retry policy."""
    leaving = ("--drain-delay-seconds", "3", "--max-connection-age-seconds", "0.5")

    def start(port: int) -> LocalServer:
        return G2PServer(*ONE_ENGINE, *leaving, log=tmp_path / f"{port}.log", port=port)

    servers = [start(port) for port in steady_ports(3)]
    addresses = [server.address for server in servers]
    try:
        async with (
            connection_balancer(servers) as balancer,
            channel(f"ipv4:{','.join(addresses)}", BALANCE_CALLS) as balanced_calls,
            channel(balancer.address) as balanced_connections,
            AsyncClient(addresses, retry=RetryPolicy(attempts=1)) as client,
            AsyncClient(addresses) as retrying,
        ):
            stub: Any = generation_pb2_grpc.GenerationServiceStub(balanced_calls)
            pinned: Any = generation_pb2_grpc.GenerationServiceStub(balanced_connections)
            calls = {
                "calls": lambda: stub.Generate(SHORT_REQUEST, timeout=PATIENCE),
                "stream": lambda: client.generate_stream(SHORT).result(),
                "client": lambda: client.generate(SHORT),
                "connections": lambda: pinned.Generate(SHORT_REQUEST, timeout=PATIENCE),
            }
            await until_async(lambda: _work(pinned, stub))
            over = asyncio.Event()
            many = asyncio.create_task(_ask_until(over, retrying))
            async with constant_load(calls, pause=0.1) as ended:
                for index, server in enumerate(servers):
                    assert await asyncio.to_thread(server.stop) == 0, server.log_tail()
                    servers[index] = await asyncio.to_thread(start, server.port)
                    await until_async(partial(_is_found, servers[index]))  # before the next one leaves
            over.set()
            outcomes = await asyncio.wait_for(many, PATIENCE)
    finally:
        for server in servers:
            server.kill()
    assert {outcome for _, outcome in ended} == {"OK"}, ended
    assert {name for name, _ in ended} == set(calls)
    assert set(outcomes) == {SHORT_SOUND}
    assert outcomes.total() > 200


async def test_clients_of_a_killed_server_get_unavailable_only(tmp_path: Path) -> None:
    [port] = steady_ports(1)

    def start() -> LocalServer:
        return G2PServer(*ONE_ENGINE, log=tmp_path / "server.log", port=port)

    server = start()
    try:
        async with channel(server.address) as connection:
            stub: Any = generation_pb2_grpc.GenerationServiceStub(connection)
            inference: Any = open_inference_pb2_grpc.GRPCInferenceServiceStub(connection)
            batch = pb.GenerateBatchRequest(inputs=[REQUEST.input] * 40)
            items = [pb.ManyItem(id=str(number), request=REQUEST) for number in range(40)]
            infer = oip.ModelInferRequest(model_name="g2p-en")
            infer.inputs.add(name="text", datatype="BYTES", shape=[1]).contents.bytes_contents.append(WORD.encode())
            calls = {
                "unary": lambda: stub.Generate(REQUEST, timeout=PATIENCE),
                "stream": lambda: _read(stub.GenerateStream(REQUEST, timeout=PATIENCE)),
                "many": lambda: _read(stub.GenerateMany(iter([pb.GenerateManyRequest(items=items)]), timeout=PATIENCE)),
                "batch": lambda: stub.GenerateBatch(batch, timeout=PATIENCE),
                "infer": lambda: inference.ModelInfer(infer, timeout=PATIENCE),
            }
            async with constant_load(calls) as ended:
                await until_async(partial(_are_counted, ended, "OK", set(calls)))
                server.kill()
                await until_async(partial(_are_counted, ended, "UNAVAILABLE", set(calls)))
                server = await asyncio.to_thread(start)
                ended.clear()
                await until_async(partial(_are_counted, ended, "OK", set(calls)))
    finally:
        server.kill()


def test_bulk_generation_continues_through_a_restart(tmp_path: Path) -> None:
    """The restart takes longer than a few quick attempts."""
    [port] = steady_ports(1)
    words = tmp_path / "words"
    words.write_text(f"{WORD}\n" * 1000, encoding="utf-8")

    def start() -> LocalServer:
        return G2PServer(*ONE_ENGINE, log=tmp_path / "server.log", port=port)

    server = start()
    try:
        command = [str(Path(sys.executable).with_name("dragoman")), "generate", "--address", server.address]
        with (
            words.open("rb") as stdin,
            subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process,
        ):
            assert process.stdout is not None
            assert process.stderr is not None
            first = process.stdout.readline()
            server.kill()
            time.sleep(2)
            server = start()
            rest, told = process.stdout.read(), process.stderr.read()
    finally:
        server.kill()
    assert (process.returncode, [line for line in told.decode().splitlines() if "retrying" not in line]) == (0, [])
    assert [first, *rest.splitlines(keepends=True)] == [f"{SOUND}\n".encode()] * 1000


async def _ask_until(over: asyncio.Event, client: AsyncClient) -> Counter[str]:
    """Sends the same word over and over with generate_many; returns how often each outcome came."""

    async def words() -> AsyncIterator[str]:
        while not over.is_set():
            yield SHORT
            await asyncio.sleep(0.01)

    outcomes: Counter[str] = Counter()
    async for outcome in client.generate_many(words()):
        outcomes[outcome.text if isinstance(outcome, Result) else str(outcome)] += 1
    return outcomes


async def _read(stream: Any) -> None:
    async for _ in stream:
        pass


async def _are_counted(ended: Counter[tuple[str, str]], code: str, names: set[str]) -> bool:
    """Returns whether a call of each name ended like this; no call may end in a third way."""
    codes = {(name, outcome.partition(":")[0]) for name, outcome in ended}
    assert {each for _, each in codes} <= {"OK", "UNAVAILABLE"}, ended
    return {name for name, each in codes if each == code} == names


async def _work(*stubs: Any) -> bool:
    try:
        await asyncio.gather(*(stub.Generate(REQUEST, timeout=PATIENCE) for stub in stubs))
    except grpc.aio.AioRpcError:
        return False
    return True


async def _is_found(server: LocalServer) -> bool:
    """Returns whether clients call a server."""
    metrics = await asyncio.to_thread(server.metrics)
    return metrics.get('dragoman_requests_total{code="OK",method="dragoman.v1.GenerationService/Generate"}', 0) >= 20
