"""What the service refuses: status, field and words, one row for each kind of bad request."""

from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

from dragoman.v1 import generation_pb2 as pb
from tests.support.fake_engines import FakeServer
from tests.support.refusals import assert_refused, detail

Text = pb.Input
INVALID = grpc.StatusCode.INVALID_ARGUMENT


def ids(*numbers: int) -> pb.Input:
    return pb.Input(token_ids=pb.TokenIds(ids=numbers))


def limit(number: int) -> pb.GenerationOptions:
    return pb.GenerationOptions(max_new_tokens=number)


def time(seconds: int, nanos: int = 0) -> pb.GenerationOptions:
    return pb.GenerationOptions(time_limit=duration_pb2.Duration(seconds=seconds, nanos=nanos))


BAD_INPUTS = {
    "neither text nor ids": (pb.Input(), "", "has neither text nor token_ids"),
    "both text and ids": (pb.Input(text="a", token_ids=pb.TokenIds(ids=[4])), "", "has both text and token_ids"),
    "empty text": (Text(text=""), ".text", "is empty"),
    "blanks": (Text(text="  "), ".text", "is blank: it contains only U+0020 SPACE"),
    "what nobody sees": (
        Text(text="\u200b\u00a0\n"),
        ".text",
        "is blank: it contains only U+200B ZERO WIDTH SPACE, U+00A0 NO-BREAK SPACE and U+000A LINE FEED",
    ),
    "text one token too long": (
        Text(text="a" * 16),
        ".text",
        "has 17 tokens, the end token included, but the model reads",
    ),
    "text far too long": (
        Text(text="a" * 5000),
        ".text",
        "has 5000 characters, far more than fit in the model's 16 tokens",
    ),
    "unknown character": (Text(text="straße"), ".text", "the character 'ß' (U+00DF) at position 4"),
    "unknown after normalisation": (Text(text="e\u0301Ä"), ".text", "the character 'Ä' (U+00C4) at position 2"),
    "NUL": (Text(text="a\0b"), ".text", "the character '\\x00' (U+0000) at position 1"),
    "emoji": (Text(text="hi 😀"), ".text", "the character '😀' (U+1F600) at position 3"),
    "right-to-left text": (Text(text="שלום"), ".text", "the character 'ש' (U+05E9) at position 0"),
    "text that looks like a special token": (Text(text="a</s>"), ".text", "the character '<' (U+003C) at position 1"),
    "no ids": (ids(), ".token_ids.ids", "is empty"),
    "nothing but the end": (ids(3), ".token_ids.ids", "contains only the end token"),
    "negative id": (ids(4, -1), ".token_ids.ids[1]", "is -1, but the source vocabulary has ids 0 to 32"),
    "id beyond the vocabulary": (ids(33), ".token_ids.ids[0]", "is 33, but the source vocabulary has ids 0 to 32"),
    "padding inside": (ids(4, 0, 4), ".token_ids.ids[1]", "is 0, the special token <pad>"),
    "unknown inside": (ids(1), ".token_ids.ids[0]", "is 1, the special token <unk>"),
    "begin inside": (ids(2, 4), ".token_ids.ids[0]", "is 2, the special token <s>"),
    "end inside": (ids(4, 3, 4, 3), ".token_ids.ids[1]", "is 3, the special token </s>"),
    "too many ids": (ids(*[4] * 17), ".token_ids.ids", "has 17 tokens"),
    "no room for the end": (ids(*[4] * 16), ".token_ids.ids", "has 17 tokens"),
}

# All others: test_server_api_options.py.
BAD_OPTIONS: dict[str, tuple[pb.GenerationOptions | pb.Details, str, str]] = {
    "no tokens": (limit(0), "options.max_new_tokens", "is 0, but must be from 1 to 12"),
    "negative tokens": (limit(-1), "options.max_new_tokens", "is -1, but must be from 1 to 12"),
    "more tokens than the model has": (limit(13), "options.max_new_tokens", "is 13, but must be from 1 to 12"),
    "no time": (time(0), "options.time_limit", "must be more than zero"),
    "negative time": (time(-1, -500_000_000), "options.time_limit", "must be more than zero"),
    "nanoseconds out of range": (time(1, 1_000_000_000), "options.time_limit", "is not a valid duration"),
    "mixed signs": (time(1, -1), "options.time_limit", "is not a valid duration"),
    "more than 10,000 years": (time(315_576_000_001), "options.time_limit", "is not a valid duration"),
    "beams and samples": (pb.GenerationOptions(beam_size=2, sample=True), "options.beam_size", "combined with sample"),
    "too much detail": (pb.Details(top_tokens=21), "details.top_tokens", "is 21, but must be from 0 to 20"),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
async def test_a_bad_input_is_refused_alone_streamed_and_in_a_batch(server: FakeServer, case: str) -> None:
    source, field, words = BAD_INPUTS[case]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await server.stub.Generate(pb.GenerateRequest(input=source))
    assert_refused(refused.value, f"input{field}", words)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await server.stub.GenerateStream(pb.GenerateRequest(input=source)).read()
    assert_refused(refused.value, f"input{field}", words)
    inputs = [pb.Input(text="drawer"), source]
    good, bad = (await server.stub.GenerateBatch(pb.GenerateBatchRequest(inputs=inputs))).items
    assert good.response.hypotheses[0].text == "reward"
    assert bad.error.code == INVALID.value[0]
    violations = error_details_pb2.BadRequest()
    assert bad.error.details[0].Unpack(violations)
    assert violations.field_violations[0].field == f"inputs[1]{field}"
    assert words in violations.field_violations[0].description
    assert server.metric("dragoman_rejections_total", reason="invalid") == 3
    assert len(server.engines.accepted) == 1


@pytest.mark.parametrize("case", BAD_OPTIONS)
async def test_bad_options_are_refused(server: FakeServer, case: str) -> None:
    given, field, words = BAD_OPTIONS[case]
    options, details = (given, None) if isinstance(given, pb.GenerationOptions) else (None, given)
    one = pb.GenerateRequest(input=pb.Input(text="a"), options=options, details=details)
    several = pb.GenerateBatchRequest(inputs=[pb.Input(text="a")], options=options, details=details)
    for call in (server.stub.Generate(one), server.stub.GenerateStream(one).read(), server.stub.GenerateBatch(several)):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert_refused(refused.value, field, words)
    assert not server.engines.accepted


async def test_an_input_that_is_left_out_is_refused(server: FakeServer) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await server.stub.Generate(pb.GenerateRequest())
    assert_refused(refused.value, "input", "has neither text nor token_ids")


async def test_the_limits_themselves_are_allowed(server: FakeServer) -> None:
    request = pb.GenerateRequest(input=pb.Input(text="a" * 15), options=limit(12))
    answer = await server.stub.Generate(request)
    assert answer.source_tokens == 16
    assert answer.hypotheses[0].text == "a" * 12
    assert (await server.stub.Generate(pb.GenerateRequest(input=ids(*[4] * 15, 3)))).source_tokens == 16


@pytest.mark.parametrize("count", [0, 10_001])
async def test_a_batch_of_none_or_of_too_many_is_refused(server: FakeServer, count: int) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await server.stub.GenerateBatch(pb.GenerateBatchRequest(inputs=[pb.Input(text="a")] * count))
    assert_refused(
        refused.value, "inputs", "is empty" if count == 0 else "has 10001 items, but a batch may have at most"
    )


@pytest.mark.parametrize(
    "method", ["Generate", "GenerateStream", "GenerateBatch", "Score", "GetModel", "Tokenize", "Detokenize"]
)
async def test_a_model_that_is_not_there_is_not_found(server: FakeServer, method: str) -> None:
    requests: dict[str, Any] = {
        "Generate": pb.GenerateRequest,
        "GenerateStream": pb.GenerateRequest,
        "GenerateBatch": pb.GenerateBatchRequest,
        "Score": pb.ScoreRequest,
        "GetModel": pb.GetModelRequest,
        "Tokenize": pb.TokenizeRequest,
        "Detokenize": pb.DetokenizeRequest,
    }
    call = getattr(server.stub, method)(requests[method](model="forwards"))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await (call.read() if method == "GenerateStream" else call)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert refused.value.details() == "model 'forwards' is not served here; available: backwards"
    found = detail(refused.value, error_details_pb2.ResourceInfo)
    assert (found.resource_type, found.resource_name) == ("dragoman.v1.Model", "forwards")
    assert server.metric("dragoman_rejections_total", reason="unknown_model") == 1


@pytest.mark.parametrize(
    "data",
    [b"\x12\x05\x0a\x03\xed\xa0\x80", b"\x12\x03\x0a\x01\xff", b"\xff\xff"],
    ids=["a lone surrogate", "not UTF-8", "not a message"],
)
async def test_bytes_that_are_no_request_are_refused(server: FakeServer, data: bytes) -> None:
    for method in ("Generate", "GenerateBatch"):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await server.send_bytes(method, data)
        assert refused.value.code() is INVALID
        assert "can't be parsed" in (refused.value.details() or "")


async def test_a_message_of_five_megabytes_is_refused(server: FakeServer) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await server.stub.Generate(pb.GenerateRequest(input=pb.Input(text="a" * 5_000_000)))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in (refused.value.details() or "")
    assert not server.engines.accepted


async def test_wrong_requests_to_tokenize_and_detokenize_are_refused(server: FakeServer) -> None:
    for call, field, words in (
        (server.stub.Tokenize(pb.TokenizeRequest(text="a" * 5000)), "text", "has 5000 characters"),
        (server.stub.Tokenize(pb.TokenizeRequest(text="a", side=7)), "side", "is 7, but must be"),  # type: ignore[arg-type]
        (server.stub.Detokenize(pb.DetokenizeRequest(token_ids=pb.TokenIds(ids=[4, 99]))), "token_ids.ids[1]", "is 99"),
        (server.stub.Detokenize(pb.DetokenizeRequest(token_ids=pb.TokenIds(ids=[-4]))), "token_ids.ids[0]", "is -4"),
        (
            server.stub.Detokenize(pb.DetokenizeRequest(token_ids=pb.TokenIds(ids=[4] * 70_000))),
            "token_ids.ids",
            "has 70000 ids",
        ),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert_refused(refused.value, field, words)
