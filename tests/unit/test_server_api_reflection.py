"""What grpcurl and others learn by reflection, asked over both of its versions."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2

from dragoman_server.api.generation_service import SERVICE
from dragoman_server.api.inference.inference_service import SERVICE as INFERENCE
from dragoman_server.api.interceptor import CallInterceptor
from dragoman_server.api.reflection import enable_reflection
from dragoman_server.metrics import ServerMetrics

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


async def ask(
    channel: grpc.aio.Channel, version: str, request: reflection_pb2.ServerReflectionRequest
) -> reflection_pb2.ServerReflectionResponse:
    call: Any = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )(iter([request]))
    [response] = [response async for response in call]
    return response  # type: ignore[no-any-return]


def request(symbol: str) -> reflection_pb2.ServerReflectionRequest:
    return reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)


@pytest.mark.parametrize("version", VERSIONS)
async def test_both_versions_list_the_services_and_themselves(channel: grpc.aio.Channel, version: str) -> None:
    answer = await ask(channel, version, reflection_pb2.ServerReflectionRequest(list_services=""))
    names = {service.name for service in answer.list_services_response.service}
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
async def test_a_symbol_is_found_with_all_that_its_file_imports(
    channel: grpc.aio.Channel, version: str, symbol: str, file: str
) -> None:
    answer = await ask(channel, version, request(symbol))
    files = [FileDescriptorProto.FromString(each) for each in answer.file_descriptor_response.file_descriptor_proto]
    assert files[0].name == file
    assert {name for each in files for name in each.dependency} <= {each.name for each in files}


@pytest.mark.parametrize(
    "symbol", ["dragoman.v1.Nothing", f"{SERVICE}.Nothing", f"{SERVICE}.Generate.Nothing", "", "."]
)
async def test_what_is_no_symbol_is_not_found(channel: grpc.aio.Channel, symbol: str) -> None:
    answer = await ask(channel, "v1", request(symbol))
    assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
