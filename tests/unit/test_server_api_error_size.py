"""A status and all that goes with it stay small, whatever was sent and however many names there are."""

import base64
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.messages.api_error import ApiError, invalid
from dragoman_server.messages.error_text import list_nearest, truncate
from dragoman_server.models.registry import ModelVersions
from tests.support.fake_engines import MODEL, FakeServer

MOST_BYTES = 4096
LONG = {
    "letters": "a" * 100_000,
    "percent signs": "%" * 100_000,
    "Han": "漢" * 100_000,
    "emoji": "\U0001f600" * 100_000,
    "unprintable": "\U000e0001" * 100_000,
}
REQUEST_ID = ("x-request-id", "a" * 128)  # the longest that is sent back


def size_of(error: grpc.aio.AioRpcError) -> int:
    """Of a status and its trailers, as HTTP/2 counts headers: 32 bytes for each beside its name and value."""
    headers = [
        ("grpc-status", "5"),
        ("grpc-message", quote(error.details() or "", safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")),
    ]
    for name, value in error.trailing_metadata():
        headers.append((name, base64.b64encode(value).decode() if isinstance(value, bytes) else value))
    return sum(len(name) + len(value) + 32 for name, value in headers)


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    assert size_of(error.value) < MOST_BYTES
    return error.value


def add_aliases(server: FakeServer, names: list[str]) -> None:
    with server.registry.use("") as model:
        [served] = [server.registry.find("")]
        versions = ModelVersions(model.version, {model.version: served}, aliases=dict.fromkeys(names, model.version))
        server.registry.update({MODEL: versions}, MODEL)


async def test_of_many_names_the_nearest_five_are_told(server: FakeServer) -> None:
    add_aliases(server, [f"{'x' * 57}{number:03}" for number in range(150)])
    for _ in range(20):  # trailers that are too large are refused at random
        error = await refused(
            server.stub.Generate(pb.GenerateRequest(model=f"{MODEL}@{'x' * 57}0421"), metadata=[REQUEST_ID])
        )
        assert error.code() is grpc.StatusCode.NOT_FOUND
    message = error.details() or ""
    names = message.split("available: ")[1]
    assert names.count(f"{MODEL}@x") == 5
    assert "x042," in names
    assert message.endswith("and 146 more")


async def test_a_server_without_a_default_names_five_models(server: FakeServer) -> None:
    served = server.registry.find("")
    server.registry.update({f"model-{number}": ModelVersions("1", {"1": served}) for number in range(9)}, None)
    error = await refused(server.stub.Generate(pb.GenerateRequest()))
    assert (error.details() or "").endswith("name one of model-0, model-1, model-2, model-3, model-4 and 4 more")


@pytest.mark.parametrize("value", LONG.values(), ids=LONG)
async def test_what_was_sent_is_repeated_in_part_at_most(server: FakeServer, value: str) -> None:
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
        await refused(call(request, metadata=[REQUEST_ID]))


@pytest.mark.parametrize("value", LONG.values(), ids=LONG)
def test_no_error_can_be_made_too_large(value: str) -> None:
    error = invalid(value, value)
    [violation] = error_details_pb2.BadRequest.FromString(error.status().details[0].value).field_violations
    encoded = len(base64.b64encode(error.status().SerializeToString())) + len(quote(error.message, safe=" ()"))
    assert encoded < MOST_BYTES - 400  # for the rest
    for text in (error.message, violation.field, violation.description):
        assert text.endswith("...")
        assert value.startswith(text.removesuffix("..."))


def test_a_text_that_fits_is_left_as_it_is() -> None:
    assert truncate("a" * 700, 700) == "a" * 700
    assert truncate("ab%d", 6) == "ab%d"
    assert truncate("ab%d", 5) == "ab%..."
    assert list_nearest([]) == "none"
    assert list_nearest(["b", "a"], "a") == "b, a"
    assert list_nearest(list("fedcba"), "a").startswith("a, ")


def test_the_message_is_that_of_the_status() -> None:
    error = ApiError(grpc.StatusCode.INTERNAL, "a" * 1000)
    assert str(error) == error.message == error.status().message == "a" * 700 + "..."


async def test_a_stream_of_the_other_protocol_says_no_more(server: FakeServer) -> None:
    requests = [oip.ModelInferRequest(model_name=LONG["letters"])]
    [response] = [response async for response in server.inference_stub.ModelStreamInfer(iter(requests))]
    assert "NOT_FOUND" in response.error_message
    assert len(response.error_message) < 1000


async def test_the_details_can_be_read(server: FakeServer) -> None:
    error = await refused(server.stub.Generate(pb.GenerateRequest(model="a" * 1000)))
    status: Any = rpc_status.from_call(error)  # type: ignore[arg-type]
    resource = error_details_pb2.ResourceInfo()
    assert status.details[0].Unpack(resource)
    assert resource.resource_name == "a" * 100 + "..."
