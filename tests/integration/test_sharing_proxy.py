"""Servers behind a proxy that shares out calls, where one connection of a client leads to all of them."""

import asyncio
from functools import partial
from pathlib import Path

from dragoman import AsyncClient
from dragoman.local import LocalServer
from tests.support.name_server import name_server
from tests.support.nginx import nginx
from tests.support.steady_load import constant_load, steady_ports
from tests.support.waiting import until_async

WORD = "transformer"
OPTIONS = ("--engines", "1", "--log-requests", "failed", "--drain-delay-seconds", "1.5")
GENERATE = 'dragoman_requests_total{code="OK",method="dragoman.v1.GenerationService/Generate"}'
NAME = "proxy.example"


async def test_servers_behind_nginx_are_restarted_one_after_the_other_and_no_call_fails(tmp_path: Path) -> None:
    """Whatever the one says to whose health the client's watch has come."""

    def start(port: int) -> LocalServer:
        return LocalServer(*OPTIONS, log=tmp_path / f"{port}.log", port=port)

    async def is_found(server: LocalServer) -> bool:
        return (await asyncio.to_thread(server.metrics)).get(GENERATE, 0) >= 20

    ports = steady_ports(2)
    servers = list(await asyncio.gather(*(asyncio.to_thread(start, port) for port in ports)))
    folder = tmp_path / "nginx"
    folder.mkdir()
    try:
        with nginx([server.address for server in servers], folder) as port:
            async with (
                name_server(NAME, port) as names,
                AsyncClient(f"127.0.0.1:{port}") as by_address,
                AsyncClient(names.target) as by_name,
                AsyncClient(names.target, follow_health=False) as heedless,
            ):
                names.addresses = ["127.0.0.1"]
                calls = {
                    "by address": lambda: by_address.generate(WORD),
                    "by name": lambda: by_name.generate(WORD),
                    "stream": lambda: by_name.generate_stream(WORD).result(),
                    "heedless": lambda: heedless.generate(WORD),
                }
                async with constant_load(calls, at_once=2) as ended:
                    for index, server in enumerate(servers):
                        await until_async(partial(is_found, server))
                        assert await asyncio.to_thread(server.stop) == 0, server.log_tail()
                        servers[index] = await asyncio.to_thread(start, server.port)
                    await until_async(partial(is_found, servers[-1]))
    finally:
        for server in servers:
            server.kill()
    assert {outcome for _, outcome in ended} == {"OK"}, ended
    assert {name for name, _ in ended} == set(calls)
