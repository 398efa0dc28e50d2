"""Invalid requests: the status, the field and the words of each refusal."""

import asyncio
import gzip
import time as clock
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.api.message_codec import decompress
from dragoman_server.messages.api_error import ApiError, abort, invalid
from dragoman_server.messages.served_model import ServedModel
from dragoman_server.messages.token_ids import SourceEncoder
from tests.support.fake_engines import FakeServer, serve_fake
from tests.support.refusals import assert_refused, detail, refused

INVALID = grpc.StatusCode.INVALID_ARGUMENT
REQUESTS: dict[str, Any] = {
    "Generate": pb.GenerateRequest,
    "GenerateStream": pb.GenerateRequest,
    "GenerateBatch": pb.GenerateBatchRequest,
    "Score": pb.ScoreRequest,
    "GetModel": pb.GetModelRequest,
    "Tokenize": pb.TokenizeRequest,
    "Detokenize": pb.DetokenizeRequest,
}


def text(content: str) -> pb.Input:
    return pb.Input(text=content)


def ids(*numbers: int) -> pb.Input:
    return pb.Input(token_ids=pb.TokenIds(ids=numbers))


def limit(number: int) -> pb.GenerationOptions:
    return pb.GenerationOptions(max_new_tokens=number)


def time(seconds: int, nanos: int = 0) -> pb.GenerationOptions:
    return pb.GenerationOptions(time_limit=duration_pb2.Duration(seconds=seconds, nanos=nanos))


# Input, its invalid field, and words of the problem.
INPUTS = {
    "neither text nor ids": (pb.Input(), "", "has neither text nor token_ids"),
    "both text and ids": (pb.Input(text="a", token_ids=pb.TokenIds(ids=[4])), "", "has both text and token_ids"),
    "empty text": (text(""), ".text", "is empty"),
    "blank text": (text("  "), ".text", "is blank: it contains only U+0020 SPACE"),
    "invisible text": (
        text("\u200b\u00a0\n"),
        ".text",
        "is blank: it contains only U+200B ZERO WIDTH SPACE, U+00A0 NO-BREAK SPACE and U+000A LINE FEED",
    ),
    "one token too many": (text("a" * 16), ".text", "has 17 tokens, the end token included, but the model reads"),
    "far too long": (text("a" * 5000), ".text", "has 5000 characters, far more than fit in the model's 16 tokens"),
    "unknown character": (text("straße"), ".text", "the character 'ß' (U+00DF) at position 4"),
    "unknown after normalization": (text("e\u0301Ä"), ".text", "the character 'Ä' (U+00C4) at position 2"),
    "several code points": (
        text("haA\u0308b"),
        ".text",
        "has 'A\u0308' at position 2 (counted from 0), which is not in the model's vocabulary",
    ),
    "NUL": (text("a\0b"), ".text", "the character '\\x00' (U+0000) at position 1"),
    "emoji": (text("hi 😀"), ".text", "the character '😀' (U+1F600) at position 3"),
    "right-to-left text": (text("שלום"), ".text", "the character 'ש' (U+05E9) at position 0"),
    "text like a special token": (text("a</s>"), ".text", "the character '<' (U+003C) at position 1"),
    "no ids": (ids(), ".token_ids.ids", "is empty"),
    "only the end token": (ids(3), ".token_ids.ids", "contains only the end token"),
    "negative id": (ids(4, -1), ".token_ids.ids[1]", "is -1, but the source vocabulary has ids 0 to 32"),
    "id beyond the vocabulary": (ids(33), ".token_ids.ids[0]", "is 33, but the source vocabulary has ids 0 to 32"),
    "padding inside": (ids(4, 0, 4), ".token_ids.ids[1]", "is 0, the special token <pad>"),
    "unknown inside": (ids(1), ".token_ids.ids[0]", "is 1, the special token <unk>"),
    "begin inside": (ids(2, 4), ".token_ids.ids[0]", "is 2, the special token <s>"),
    "end inside": (ids(4, 3, 4, 3), ".token_ids.ids[1]", "is 3, the special token </s>"),
    "too many ids": (ids(*[4] * 17), ".token_ids.ids", "has 17 tokens"),
    "no room for the end token": (ids(*[4] * 16), ".token_ids.ids", "has 17 tokens"),
    "useless language": (
        pb.Input(text="a", target_language="de"),
        ".target_language",
        "is set, but the model has no choice of target languages",
    ),
}
# test_api_options.py has all other options.
OPTIONS: dict[str, tuple[pb.GenerationOptions | pb.Details, str, str]] = {
    "no tokens": (limit(0), "options.max_new_tokens", "is 0, but must be from 1 to 12"),
    "negative tokens": (limit(-1), "options.max_new_tokens", "is -1, but must be from 1 to 12"),
    "too many tokens": (limit(13), "options.max_new_tokens", "is 13, but must be from 1 to 12"),
    "no time": (time(0), "options.time_limit", "must be more than zero"),
    "negative time": (time(-1, -500_000_000), "options.time_limit", "must be more than zero"),
    "nanoseconds out of range": (time(1, 1_000_000_000), "options.time_limit", "is not a valid duration"),
    "mixed signs": (time(1, -1), "options.time_limit", "is not a valid duration"),
    "more than 10,000 years": (time(315_576_000_001), "options.time_limit", "is not a valid duration"),
    "beams and samples": (pb.GenerationOptions(beam_size=2, sample=True), "options.beam_size", "combined with sample"),
    "too much detail": (pb.Details(top_tokens=21), "details.top_tokens", "is 21, but must be from 0 to 20"),
}


@pytest.mark.parametrize("case", INPUTS)
async def test_an_invalid_input_is_refused_by_every_method(server: FakeServer, case: str) -> None:
    source, field, words = INPUTS[case]
    request = pb.GenerateRequest(input=source)
    for call in (server.stub.Generate(request), server.stub.GenerateStream(request)):
        assert_refused(await refused(call), f"input{field}", words)
    batch = pb.GenerateBatchRequest(inputs=[text("drawer"), source])
    good, bad = (await server.stub.GenerateBatch(batch)).items
    assert good.response.hypotheses[0].text == "reward"
    assert bad.error.code == INVALID.value[0]
    violations = error_details_pb2.BadRequest()
    assert bad.error.details[0].Unpack(violations)
    assert violations.field_violations[0].field == f"inputs[1]{field}"
    assert words in violations.field_violations[0].description
    assert server.metric("dragoman_rejections_total", reason="invalid") == 3
    assert len(server.engines.accepted) == 1


@pytest.mark.parametrize("case", OPTIONS)
async def test_invalid_options_are_refused_by_every_method(server: FakeServer, case: str) -> None:
    message, field, words = OPTIONS[case]
    options, details = (message, None) if isinstance(message, pb.GenerationOptions) else (None, message)
    single = pb.GenerateRequest(input=text("a"), options=options, details=details)
    batch = pb.GenerateBatchRequest(inputs=[text("a")], options=options, details=details)
    stub = server.stub
    for call in (stub.Generate(single), stub.GenerateStream(single), stub.GenerateBatch(batch)):
        assert_refused(await refused(call), field, words)
    assert not server.engines.accepted


async def test_values_at_the_limits_are_accepted(server: FakeServer) -> None:
    response = await server.stub.Generate(pb.GenerateRequest(input=text("a" * 15), options=limit(12)))
    assert response.source_tokens == 16
    assert response.hypotheses[0].text == "a" * 12
    assert (await server.stub.Generate(pb.GenerateRequest(input=ids(*[4] * 15, 3)))).source_tokens == 16


async def test_other_invalid_requests_are_refused(server: FakeServer) -> None:
    stub = server.stub
    for call, field, words in (
        (stub.Generate(pb.GenerateRequest()), "input", "has neither text nor token_ids"),
        (stub.GenerateBatch(pb.GenerateBatchRequest()), "inputs", "is empty"),
        (stub.GenerateBatch(pb.GenerateBatchRequest(inputs=[text("a")] * 10_001)), "inputs", "has 10001 items, but a"),
        (stub.Tokenize(pb.TokenizeRequest(text="a" * 5000)), "text", "has 5000 characters"),
        (stub.Tokenize(pb.TokenizeRequest(text="a", side=7)), "side", "is 7, but must be"),  # type: ignore[arg-type]
        (stub.Detokenize(pb.DetokenizeRequest(token_ids=pb.TokenIds(ids=[4, 99]))), "token_ids.ids[1]", "is 99"),
        (stub.Detokenize(pb.DetokenizeRequest(token_ids=pb.TokenIds(ids=[-4]))), "token_ids.ids[0]", "is -4"),
        (stub.Detokenize(pb.DetokenizeRequest(token_ids=pb.TokenIds(ids=[4] * 70_000))), "token_ids.ids", "has 70000"),
    ):
        assert_refused(await refused(call), field, words)


@pytest.mark.parametrize("method", REQUESTS)
async def test_an_unknown_model_is_not_found(server: FakeServer, method: str) -> None:
    error = await refused(getattr(server.stub, method)(REQUESTS[method](model="forwards")))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.details() == "model 'forwards' is not served here; available: backwards"
    found = detail(error, error_details_pb2.ResourceInfo)
    assert (found.resource_type, found.resource_name) == ("dragoman.v1.Model", "forwards")
    assert server.metric("dragoman_rejections_total", reason="unknown_model") == 1


@pytest.mark.parametrize(
    "data",
    [b"\x12\x05\x0a\x03\xed\xa0\x80", b"\x12\x03\x0a\x01\xff", b"\xff\xff"],
    ids=["a lone surrogate", "not UTF-8", "not a message"],
)
async def test_malformed_messages_are_refused(server: FakeServer, data: bytes) -> None:
    for method in ("Generate", "GenerateBatch"):
        error = await refused(server.send_bytes(method, data))
        assert error.code() is INVALID
        assert "can't be parsed" in (error.details() or "")


async def test_a_message_of_five_megabytes_is_refused(server: FakeServer) -> None:
    error = await refused(server.stub.Generate(pb.GenerateRequest(input=text("a" * 5_000_000))))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in (error.details() or "")
    assert not server.engines.accepted


async def test_a_client_that_leaves_while_it_is_refused_is_no_error() -> None:
    class Context:
        async def abort(self, *_: Any) -> None:
            raise grpc.aio.InternalError("the batch failed")

    with pytest.raises(asyncio.CancelledError):
        await abort(cast("grpc.aio.ServicerContext[object, object]", Context()), invalid("input", "is wrong"), "id")


class SlowCall:
    """A call with a deadline, on a clock that only `slow` moves."""

    def __init__(self, seconds: float) -> None:
        self.now = clock.monotonic()
        self.end = self.now + seconds

    def time_remaining(self) -> float:
        return self.end - self.now

    def slow(self, step: Callable[..., Any]) -> Callable[..., Any]:
        async def slowed(*args: Any) -> Any:
            self.now += 5
            return await step(*args)

        return slowed


@pytest.mark.parametrize("method", ["Generate", "GenerateStream", "GenerateBatch"])
async def test_the_deadline_does_not_move_while_a_request_is_read(
    method: str, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    call: Any = SlowCall(seconds=1000)
    monkeypatch.setattr("dragoman_server.api.generation_service.time", SimpleNamespace(monotonic=lambda: call.now))
    for kind, step in ((ServedModel, "read_options"), (SourceEncoder, "encode")):
        monkeypatch.setattr(kind, step, call.slow(getattr(kind, step)))
    source = {"inputs": [text("drawer")]} if method == "GenerateBatch" else {"input": text("drawer")}
    response = getattr(server.service, method)(REQUESTS[method](**source), call)
    if method == "GenerateStream":
        assert [message async for message in response]
    else:
        await response
    assert call.now > call.end - 1000
    assert server.engines.accepted[0].request.deadline == pytest.approx(call.end, abs=0.001)


MAX_BYTES = 1000


@pytest.mark.parametrize("size", [0, 1, MAX_BYTES - 1, MAX_BYTES])
def test_a_compressed_request_within_the_limit_is_decompressed(size: int) -> None:
    assert decompress(gzip.compress(b"a" * size), MAX_BYTES) == b"a" * size


def test_an_uncompressed_request_is_left_as_it_is() -> None:
    message = pb.GenerateRequest(input=text("\x1f\x8b" * MAX_BYTES)).SerializeToString()
    assert decompress(message, MAX_BYTES) is message


COMPRESSED = gzip.compress(b"a" * 100)


@pytest.mark.parametrize(
    ("data", "max_bytes", "code", "words"),
    [
        (gzip.compress(b"a" * 1001), MAX_BYTES, "RESOURCE_EXHAUSTED", "unpacks to more than 1000 bytes"),
        (gzip.compress(b"a" * 1_000_000), MAX_BYTES, "RESOURCE_EXHAUSTED", "unpacks to more than 1000 bytes"),
        (gzip.compress(b"a" * 2**22), 2**22, "RESOURCE_EXHAUSTED", "more than 64 times its size; send it uncompressed"),
        (COMPRESSED[:-1], MAX_BYTES, "INVALID_ARGUMENT", "can't be parsed"),
        (COMPRESSED[:4], MAX_BYTES, "INVALID_ARGUMENT", "can't be parsed"),
        (COMPRESSED + b"a", MAX_BYTES, "INVALID_ARGUMENT", "can't be parsed"),
    ],
    ids=["large", "much too large", "too dense", "truncated", "only a header", "trailing bytes"],
)
def test_a_compressed_request_that_is_too_large_or_damaged_is_refused(
    data: bytes, max_bytes: int, code: str, words: str
) -> None:
    with pytest.raises(ApiError, match=words) as error:
        decompress(data, max_bytes)
    assert error.value.code.name == code


def test_ordinary_text_and_small_messages_may_be_compressed_well() -> None:
    ordinary = b"".join(b"input %d of a batch " % number for number in range(100_000))[: 2**22]
    assert decompress(gzip.compress(ordinary), 2**22) == ordinary
    assert len(decompress(gzip.compress(b"a" * 60_000), 2**22)) == 60_000


async def test_a_request_before_and_after_serving_is_unavailable() -> None:
    async with serve_fake(ready=False) as server:
        for reason in ("the model is loading", "the server is shutting down"):
            if reason != "the model is loading":  # which is the initial state
                server.registry.refuse(reason)
            for method, request in {**REQUESTS, "ListModels": pb.ListModelsRequest}.items():
                error = await refused(getattr(server.stub, method)(request()))
                assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, reason)
                assert detail(error, error_details_pb2.RetryInfo).retry_delay.seconds == 1
        assert server.metric("dragoman_rejections_total", reason="unavailable") == 16
