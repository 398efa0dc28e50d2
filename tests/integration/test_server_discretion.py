"""Text that clients send never appears in logs, metrics or pages, whichever method they call and however it fails."""

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

# The model can read the first; the second has unknown characters.
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
    """Yields the path to every string or bytes field of a message."""
    for field in descriptor.fields:
        if field.message_type is not None and depth:
            for rest in leaves(field.message_type, depth - 1):
                yield (field, *rest)
        elif field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            yield (field,)


def put(message: Message, path: tuple[FieldDescriptor, ...], text: str) -> None:
    """Sets the field at a path."""
    field, *rest = path
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
    """Yields messages with a canary in one field, with canaries in all fields, and invalid messages."""
    for canary in CANARIES:
        full = GetMessageClass(method.input_type)()
        for path in leaves(method.input_type):
            message = GetMessageClass(method.input_type)()
            put(message, path, canary)
            put(full, path, canary)
            yield message.SerializeToString()
        yield full.SerializeToString()
        yield canary.encode()
        yield b"\x0a\x06canar\xff"  # not UTF-8


def send(channel: grpc.Channel, method: MethodDescriptor, data: bytes) -> str:
    """Calls a method. Returns the name of the status."""
    name = f"/{method.containing_service.full_name}/{method.name}"
    kind: Any = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, True): channel.stream_stream,
    }[method.client_streaming, method.server_streaming]
    metadata = [("x-anything", "canary"), ("authorization", "Bearer canary"), ("traceparent", "canary")]
    request = iter([data]) if method.client_streaming else data
    try:
        # Health.Watch never ends.
        answer = kind(name)(request, timeout=0.2 if method.name == "Watch" else 20, metadata=metadata)
        if method.server_streaming:
            list(answer)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def pages(server: LocalServer) -> str:
    """Returns the log, the metrics and all pages of the server."""
    text = server.log.read_text()
    for path in ("/metrics", "/livez", "/readyz", "/startupz", "/canary"):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}{path}", timeout=10) as page:
                text += page.read().decode()
        except urllib.error.HTTPError as error:
            text += error.read().decode()
    return text


def test_text_of_clients_is_not_revealed(start_server: StartServer) -> None:
    server = start_server("--log-level", "debug", "--max-message-bytes", "65536")
    codes: dict[str, set[str]] = {}
    with grpc.insecure_channel(server.address) as channel:
        for method in METHODS:
            codes[method.full_name] = {send(channel, method, data) for data in messages(method)}
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        answer = stub.Generate(pb.GenerateRequest(input=pb.Input(text="canary"))).hypotheses[0].text
        for data in (b"canary" * 20_000, b"canary"):  # too large, and of an unknown method
            path = "Generate" if len(data) > 6 else "canary"
            call: Any = channel.unary_unary(f"/dragoman.v1.GenerationService/{path}")
            with pytest.raises(grpc.RpcError):
                call(data)
    revealed = pages(server)
    assert server.stop() == 0
    revealed += server.log.read_text()
    for secret in ("canary", "Жc", "\\u0416c", answer):
        assert secret.casefold() not in revealed.casefold()
    seen = set().union(*codes.values())
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND"} <= seen
    assert not seen & {"INTERNAL", "UNKNOWN"}, {name: found for name, found in codes.items() if "INTERNAL" in found}


def test_a_debug_option_logs_requests_with_a_warning(start_server: StartServer) -> None:
    server = start_server("--log-text")
    with grpc.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        stub.Generate(pb.GenerateRequest(input=pb.Input(text="canary")))
        assert len(list(stub.GenerateStream(pb.GenerateRequest(input=pb.Input(text="canary"))))) > 0
        items = [pb.ManyItem(id=id_, request=pb.GenerateRequest(input=pb.Input(text="canary"))) for id_ in "ab"]
        many = iter([pb.GenerateManyRequest(items=items), pb.GenerateManyRequest(items=items[:1], cancel=["canary"])])
        assert len(list(stub.GenerateMany(many))) > 0
    assert server.stop() == 0
    events = [json.loads(line) for line in server.log.read_text().splitlines()]
    received = [event for event in events if event["event"] == "received"]
    assert [event["method"].rpartition("/")[2] for event in received] == [
        *("Generate", "GenerateStream", "GenerateMany", "GenerateMany")
    ]
    assert all("canary" in event["request"] for event in received)
    [warning] = [event for event in events if event["level"] == "warning"]
    assert warning["event"] == "EVERYTHING THAT CLIENTS SEND IS LOGGED, because of --log-text"
