"""Health checks (grpc.health.v1) and server reflection."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from dragoman_server.api.generation_service import SERVICE
from dragoman_server.api.inference.inference_service import SERVICE as INFERENCE
from dragoman_server.api.interceptor import CallInterceptor
from dragoman_server.api.reflection import enable_reflection
from dragoman_server.metrics import ServerMetrics
from tests.support.fake_engines import FakeServer, serve_fake
from tests.support.refusals import refused
from tests.support.waiting import PATIENCE

Request = health_pb2.HealthCheckRequest
Response = health_pb2.HealthCheckResponse


async def next_status(watch: Any) -> int:
    async with asyncio.timeout(PATIENCE):
        message = await watch.read()
    status: int = message.status
    return status


@pytest.mark.parametrize("service", ["", SERVICE])
async def test_a_check_follows_the_server(service: str) -> None:
    async with serve_fake(ready=False) as server:
        for serving in (False, True, False):
            server.health.set_serving(serving)
            status = (await server.health_stub.Check(Request(service=service))).status
            assert status == (Response.SERVING if serving else Response.NOT_SERVING)


async def test_an_unknown_service_is_not_found(server: FakeServer) -> None:
    unknown = Request(service="dragoman.v0")
    assert (await refused(server.health_stub.Check(unknown))).code() is grpc.StatusCode.NOT_FOUND
    assert await next_status(server.health_stub.Watch(unknown)) == Response.SERVICE_UNKNOWN


async def test_every_model_has_its_own_health() -> None:
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
            assert (await refused(server.health_stub.Check(Request(service=name)))).code() is grpc.StatusCode.NOT_FOUND


async def test_every_watcher_is_notified_of_every_change() -> None:
    async with serve_fake(ready=False) as server:
        watches = [server.health_stub.Watch(Request(service=SERVICE)) for _ in range(3)]

        async def expect(status: int) -> None:
            for watch in watches:
                assert await next_status(watch) == status

        await expect(Response.NOT_SERVING)
        server.health.set_serving(True)
        await expect(Response.SERVING)
        watches.pop().cancel()  # the others are not affected
        await asyncio.sleep(0.05)
        server.health.set_serving(False)
        await expect(Response.NOT_SERVING)
        server.health.end()
        for watch in watches:
            assert await watch.read() is grpc.aio.EOF


VERSIONS = ["v1alpha", "v1"]


@pytest_asyncio.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server(interceptors=[CallInterceptor(ServerMetrics())])
    enable_reflection([SERVICE, INFERENCE], server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


async def reflect(channel: grpc.aio.Channel, version: str, **request: Any) -> reflection_pb2.ServerReflectionResponse:
    call: Any = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )(iter([reflection_pb2.ServerReflectionRequest(**request)]))
    [response] = [response async for response in call]
    return response  # type: ignore[no-any-return]


@pytest.mark.parametrize("version", VERSIONS)
async def test_reflection_lists_the_services_and_itself(channel: grpc.aio.Channel, version: str) -> None:
    response = await reflect(channel, version, list_services="")
    names = {service.name for service in response.list_services_response.service}
    assert names == {SERVICE, INFERENCE, *(f"grpc.reflection.{each}.ServerReflection" for each in VERSIONS)}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        (SERVICE, "dragoman/v1/generation.proto"),
        (f"{SERVICE}.Generate", "dragoman/v1/generation.proto"),
        (f"{INFERENCE}.ModelInfer", "dragoman/inference/open_inference.proto"),
        ("dragoman.v1.GenerateRequest.input", "dragoman/v1/generation.proto"),
        ("dragoman.v1.FinishReason", "dragoman/v1/generation.proto"),
        ("grpc.reflection.v1.ServerReflection.ServerReflectionInfo", "grpc_reflection/v1/reflection.proto"),
        ("google.rpc.BadRequest", "google/rpc/error_details.proto"),
        ("google.rpc.RetryInfo", "google/rpc/error_details.proto"),
        ("google.rpc.ErrorInfo", "google/rpc/error_details.proto"),
        ("google.rpc.ResourceInfo", "google/rpc/error_details.proto"),
    ],
)
async def test_a_symbol_comes_with_all_files_that_its_file_imports(
    channel: grpc.aio.Channel, version: str, symbol: str, file: str
) -> None:
    response = await reflect(channel, version, file_containing_symbol=symbol)
    files = [FileDescriptorProto.FromString(data) for data in response.file_descriptor_response.file_descriptor_proto]
    assert files[0].name == file
    assert {name for each in files for name in each.dependency} <= {each.name for each in files}


@pytest.mark.parametrize(
    "symbol", ["dragoman.v1.Nothing", f"{SERVICE}.Nothing", f"{SERVICE}.Generate.Nothing", "", "."]
)
async def test_an_unknown_symbol_is_not_found(channel: grpc.aio.Channel, symbol: str) -> None:
    response = await reflect(channel, "v1", file_containing_symbol=symbol)
    assert response.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
