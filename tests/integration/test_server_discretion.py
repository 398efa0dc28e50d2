"""What clients send shows up in no log, no metric and no page, whatever they call and whatever is wrong with it."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

from dragoman.inference import open_inference_pb2
from dragoman.local import LocalServer
from dragoman.v1 import admin_pb2, generation_pb2_grpc
from dragoman.v1 import generation_pb2 as pb
from tests.conftest import StartServer

# The first can be read by the model, the second has characters that it has never seen.
CANARIES = ("canary", "Жcanary\N{SNOWMAN}")
DEPTH = 4
SERVICES: list[ServiceDescriptor] = [
    pb.DESCRIPTOR.services_by_name["GenerationService"],
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
    open_inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"],
    health_pb2.DESCRIPTOR.services_by_name["Health"],
]
METHODS = [method for service in SERVICES for method in service.methods]


def leaves(descriptor: Descriptor, depth: int = DEPTH) -> Iterator[tuple[FieldDescriptor, ...]]:
    """Ways to every field of a message that holds text or bytes."""
    for field in descriptor.fields:
        if field.message_type is not None and depth:
            for rest in leaves(field.message_type, depth - 1):
                yield (field, *rest)
        elif field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            yield (field,)


def put(message: Message, way: tuple[FieldDescriptor, ...], text: str) -> None:
    """Sets one of those fields."""
    field, *rest = way
    value: Any = text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        of_value = entry.fields_by_name["value"]
        entries: Any = getattr(message, field.name)
        key: Any = text if entry.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING else 1
        if of_value.message_type is None:
            entries[key] = text if of_value.type == FieldDescriptor.TYPE_STRING else 1
        elif len(rest) > 1:
            put(entries[key], tuple(rest[1:]), text)
        else:
            entries[key].SetInParent()
    elif field.is_repeated:
        many: Any = getattr(message, field.name)
        if rest:
            put(many.add(), tuple(rest), text)
        else:
            many.append(value)
    elif rest:
        put(getattr(message, field.name), tuple(rest), text)
    else:
        setattr(message, field.name, value)


def messages(method: MethodDescriptor) -> Iterator[bytes]:
    """One with a canary in each field by itself, one with canaries in all of them, and some that are none."""
    for canary in CANARIES:
        whole = GetMessageClass(method.input_type)()
        for way in leaves(method.input_type):
            message = GetMessageClass(method.input_type)()
            put(message, way, canary)
            put(whole, way, canary)
            yield message.SerializeToString()
        yield whole.SerializeToString()
        yield canary.encode()
        yield b"\x0a\x06canar\xff"  # text that is not UTF-8


def send(channel: grpc.Channel, method: MethodDescriptor, data: bytes) -> str:
    """The status code."""
    name = f"/{method.containing_service.full_name}/{method.name}"
    kind: Any = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, True): channel.stream_stream,
    }[method.client_streaming, method.server_streaming]
    metadata = [("x-anything", "canary"), ("authorization", "Bearer canary"), ("traceparent", "canary")]
    request = iter([data]) if method.client_streaming else data
    try:
        # Health's Watch goes on for ever.
        answer = kind(name)(request, timeout=0.2 if method.name == "Watch" else 20, metadata=metadata)
        if method.server_streaming:
            list(answer)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def pages(server: LocalServer) -> str:
    """All that the server tells those who run it."""
    text = server.log.read_text()
    for path in ("/metrics", "/livez", "/readyz", "/startupz", "/canary"):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}{path}", timeout=10) as page:
                text += page.read().decode()
        except urllib.error.HTTPError as error:
            text += error.read().decode()
    return text


def test_nothing_of_what_clients_send_is_told_to_others(start_server: StartServer) -> None:
    server = start_server("--log-level", "debug", "--max-message-bytes", "65536")
    codes: dict[str, set[str]] = {}
    with grpc.insecure_channel(server.address) as channel:
        for method in METHODS:
            codes[method.full_name] = {send(channel, method, data) for data in messages(method)}
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        answer = stub.Generate(pb.GenerateRequest(input=pb.Input(text="canary"))).hypotheses[0].text
        for data in (b"canary" * 20_000, b"canary"):  # too large, and of a method that there is not
            path = "Generate" if len(data) > 6 else "canary"
            call: Any = channel.unary_unary(f"/dragoman.v1.GenerationService/{path}")
            with pytest.raises(grpc.RpcError):
                call(data)
    told = pages(server)
    assert server.stop() == 0
    told += server.log.read_text()
    for secret in ("canary", "Жc", "\\u0416c", answer):
        assert secret.casefold() not in told.casefold()
    seen = set().union(*codes.values())
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND"} <= seen
    assert not seen & {"INTERNAL", "UNKNOWN"}, {name: found for name, found in codes.items() if "INTERNAL" in found}


def test_a_debug_flag_logs_what_comes_and_says_so_loudly(start_server: StartServer) -> None:
    server = start_server("--log-text")
    with grpc.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        stub.Generate(pb.GenerateRequest(input=pb.Input(text="canary")))
        assert len(list(stub.GenerateStream(pb.GenerateRequest(input=pb.Input(text="canary"))))) > 0
    assert server.stop() == 0
    events = [json.loads(line) for line in server.log.read_text().splitlines()]
    received = [event for event in events if event["event"] == "received"]
    assert [event["method"].rpartition("/")[2] for event in received] == ["Generate", "GenerateStream"]
    assert all("canary" in event["request"] for event in received)
    [warning] = [event for event in events if event["level"] == "warning"]
    assert warning["event"] == "EVERYTHING THAT CLIENTS SEND IS LOGGED, because of --log-text"
