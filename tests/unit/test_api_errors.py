"""Statuses with their details stay below 4 KB, whatever a client sent and however many models there are."""

import base64
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from google.rpc import error_details_pb2

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.messages.api_error import ApiError, invalid
from dragoman_server.messages.error_text import list_nearest, truncate
from dragoman_server.models.registry import ModelVersions
from tests.support.fake_engines import MODEL, FakeServer
from tests.support.refusals import detail, refused

MAX_BYTES = 4096
LONG = {
    "letters": "a" * 100_000,
    "percent signs": "%" * 100_000,
    "Han": "漢" * 100_000,
    "emoji": "\U0001f600" * 100_000,
    "unprintable": "\U000e0001" * 100_000,
}
REQUEST_ID = ("x-request-id", "a" * 128)  # the longest that is returned


def size_of(error: grpc.aio.AioRpcError) -> int:
    """Returns the size of a status and its trailers as HTTP/2 counts headers: 32 bytes for each, its name and value."""
    headers = [
        ("grpc-status", "5"),
        ("grpc-message", quote(error.details() or "", safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")),
    ]
    for name, value in error.trailing_metadata():
        headers.append((name, base64.b64encode(value).decode() if isinstance(value, bytes) else value))
    return sum(len(name) + len(value) + 32 for name, value in headers)


async def small_error(call: Any) -> grpc.aio.AioRpcError:
    error = await refused(call)
    assert size_of(error) < MAX_BYTES
    return error


async def test_the_five_most_similar_names_are_listed(server: FakeServer) -> None:
    served = server.registry.find("")
    aliases = dict.fromkeys([f"{'x' * 57}{number:03}" for number in range(150)], "1")
    server.registry.update({MODEL: ModelVersions("1", {"1": served}, aliases=aliases)}, MODEL)
    request = pb.GenerateRequest(model=f"{MODEL}@{'x' * 57}0421")
    for _ in range(20):  # gRPC refuses trailers that are too large at random
        error = await small_error(server.stub.Generate(request, metadata=[REQUEST_ID]))
        assert error.code() is grpc.StatusCode.NOT_FOUND
    names = (error.details() or "").split("available: ")[1]
    assert names.count(f"{MODEL}@x") == 5
    assert "x042," in names
    assert names.endswith("and 146 more")
    server.registry.update({f"model-{number}": ModelVersions("1", {"1": served}) for number in range(9)}, None)
    error = await small_error(server.stub.Generate(pb.GenerateRequest()))
    assert (error.details() or "").endswith("name one of model-0, model-1, model-2, model-3, model-4 and 4 more")


@pytest.mark.parametrize("value", LONG.values(), ids=LONG)
async def test_a_long_value_is_quoted_in_part(server: FakeServer, value: str) -> None:
    infer = oip.ModelInferRequest(model_name=MODEL)
    infer.inputs.add(name="text", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"a")
    infer.parameters[value].bool_param = True
    for call, request in [
        (server.stub.Generate, pb.GenerateRequest(model=value)),
        (server.stub.Generate, pb.GenerateRequest(model=f"{MODEL}@{value}")),
        (server.stub.Generate, pb.GenerateRequest(input=pb.Input(text=value[:4000]))),
        (server.stub.GetModel, pb.GetModelRequest(model=value)),
        (server.inference_stub.ModelInfer, oip.ModelInferRequest(model_name=value)),
        (server.inference_stub.ModelInfer, infer),
    ]:
        await small_error(call(request, metadata=[REQUEST_ID]))


@pytest.mark.parametrize("value", LONG.values(), ids=LONG)
def test_no_error_can_be_made_too_large(value: str) -> None:
    error = invalid(value, value)
    [violation] = error_details_pb2.BadRequest.FromString(error.status().details[0].value).field_violations
    encoded = len(base64.b64encode(error.status().SerializeToString())) + len(quote(error.message, safe=" ()"))
    assert encoded < MAX_BYTES - 400  # for the other headers
    for text in (error.message, violation.field, violation.description):
        assert text.endswith("...")
        assert value.startswith(text.removesuffix("..."))


def test_short_texts_are_left_as_they_are() -> None:
    assert truncate("a" * 700, 700) == "a" * 700
    assert truncate("ab%d", 6) == "ab%d"
    assert truncate("ab%d", 5) == "ab%..."
    assert list_nearest([]) == "none"
    assert list_nearest(["b", "a"], "a") == "b, a"
    assert list_nearest(list("fedcba"), "a").startswith("a, ")


def test_the_message_is_that_of_the_status() -> None:
    error = ApiError(grpc.StatusCode.INTERNAL, "a" * 1000)
    assert str(error) == error.message == error.status().message == "a" * 700 + "..."


async def test_errors_within_a_stream_are_short_as_well(server: FakeServer) -> None:
    requests = [oip.ModelInferRequest(model_name=LONG["letters"])]
    [response] = [response async for response in server.inference_stub.ModelStreamInfer(iter(requests))]
    assert "NOT_FOUND" in response.error_message
    assert len(response.error_message) < 1000


async def test_the_details_are_truncated_and_valid(server: FakeServer) -> None:
    error = await small_error(server.stub.Generate(pb.GenerateRequest(model="a" * 1000)))
    assert detail(error, error_details_pb2.ResourceInfo).resource_name == "a" * 100 + "..."
