"""grpc.health.v1, also when several watch and some do not read."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from dragoman_server.api.generation_service import SERVICE
from tests.support.fake_engines import serve_fake
from tests.support.waiting import PATIENCE

Request = health_pb2.HealthCheckRequest
Response = health_pb2.HealthCheckResponse


async def next_status(watch: Any) -> int:
    async with asyncio.timeout(PATIENCE):
        message = await watch.read()
    status: int = message.status
    return status


@pytest.mark.parametrize("service", ["", SERVICE])
async def test_check_follows_the_server(service: str) -> None:
    async with serve_fake(ready=False) as server:
        for serving in (False, True, False):
            server.health.set_serving(serving)
            status = (await server.health_stub.Check(Request(service=service))).status
            assert status == (Response.SERVING if serving else Response.NOT_SERVING)


async def test_an_unknown_service_is_not_found() -> None:
    async with serve_fake() as server:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await server.health_stub.Check(Request(service="dragoman.v0"))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        watch = server.health_stub.Watch(Request(service="dragoman.v0"))
        assert await next_status(watch) == Response.SERVICE_UNKNOWN


async def test_models_have_a_health_of_their_own() -> None:
    async with serve_fake(ready=False) as server:

        async def status(service: str) -> int:
            found: int = (await server.health_stub.Check(Request(service=service))).status
            return found

        server.health.set_models({"a": True, "b": False})
        assert await status("model:a") == Response.NOT_SERVING  # the server has not started
        watch = server.health_stub.Watch(Request(service="model:b"))
        assert await next_status(watch) == Response.NOT_SERVING
        server.health.set_serving(True)
        assert [await status(name) for name in ("", "model:a", "model:b")] == [
            Response.SERVING,
            Response.SERVING,
            Response.NOT_SERVING,
        ]
        server.health.set_models({"b": True})
        assert await next_status(watch) == Response.SERVING
        server.health.set_models({})
        assert await next_status(watch) == Response.SERVICE_UNKNOWN
        assert await status("") == Response.NOT_SERVING
        for name in ("model:a", "a", "model:"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await status(name)
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_every_watcher_hears_of_every_change() -> None:
    async with serve_fake(ready=False) as server:
        watches = [server.health_stub.Watch(Request(service=SERVICE)) for _ in range(3)]
        for watch in watches:
            assert await next_status(watch) == Response.NOT_SERVING
        server.health.set_serving(True)
        for watch in watches:
            assert await next_status(watch) == Response.SERVING
        watches.pop().cancel()  # one that leaves takes nothing from the others
        await asyncio.sleep(0.05)
        server.health.set_serving(False)
        for watch in watches:
            assert await next_status(watch) == Response.NOT_SERVING
        server.health.end()
        for watch in watches:
            assert await watch.read() is grpc.aio.EOF
