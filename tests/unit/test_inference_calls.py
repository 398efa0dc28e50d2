"""Calls of the Open Inference Protocol, over engines that answer with the source backwards."""

import asyncio
import json
import math
import random
import struct
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.api.inference.stream import MAX_REQUESTS
from dragoman_server.core.errors import EngineUnavailableError
from dragoman_server.core.requests import Priority
from tests.support.fake_engines import MODEL, FakeEngines, FakeServer, backwards, serve_fake
from tests.support.refusals import refused

SERVICE = "inference.GRPCInferenceService"
FINAL = "triton_final_response"


def parameter(value: Any) -> oip.InferParameter:
    kind = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}[type(value)]
    return oip.InferParameter(**{kind: value})


def infer(*texts: str, outputs: tuple[str, ...] = (), raw: bool = False, **parameters: Any) -> oip.ModelInferRequest:
    tensor = oip.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[len(texts), 1])
    encoded = [text.encode() for text in texts]
    if not raw:
        tensor.contents.bytes_contents.extend(encoded)
    return oip.ModelInferRequest(
        model_name=MODEL,
        id="7",
        inputs=[tensor],
        outputs=[oip.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in outputs],
        parameters={name: parameter(value) for name, value in parameters.items()},
        raw_input_contents=[b"".join(struct.pack("<I", len(text)) + text for text in encoded)] if raw else [],
    )


def output(response: oip.ModelInferResponse, name: str) -> list[list[Any]]:
    """Returns the rows of an output with typed contents."""
    [tensor] = [tensor for tensor in response.outputs if tensor.name == name]
    kind = {"BYTES": "bytes_contents", "FP32": "fp32_contents", "UINT64": "uint64_contents"}[tensor.datatype]
    values = list(getattr(tensor.contents, kind))
    rows, columns = tensor.shape
    assert len(values) == rows * columns
    return [values[row * columns : (row + 1) * columns] for row in range(rows)]


def names(response: oip.ModelInferResponse) -> list[str]:
    return [tensor.name for tensor in response.outputs]


async def stream(server: FakeServer, *requests: oip.ModelInferRequest) -> list[oip.ModelStreamInferResponse]:
    async with asyncio.timeout(10):
        return [response async for response in server.inference_stub.ModelStreamInfer(iter(requests))]


async def test_texts_are_answered_in_the_form_of_their_contents(server: FakeServer) -> None:
    response = await server.inference_stub.ModelInfer(infer("drawer", "stop"))
    assert (response.model_name, response.model_version, response.id) == (MODEL, "1", "7")
    assert names(response) == ["text", "finish_reason"]
    assert output(response, "text") == [[b"reward"], [b"pots"]]
    assert output(response, "finish_reason") == [[b"EOS"], [b"EOS"]]
    assert not response.raw_output_contents
    response = await server.inference_stub.ModelInfer(infer("drawer", "stop", raw=True))
    assert response.raw_output_contents[0] == b"\6\0\0\0reward\4\0\0\0pots"
    assert not any(tensor.HasField("contents") for tensor in response.outputs)
    responses = await stream(server, infer("ab", raw=True))
    raw = [response.infer_response.raw_output_contents[0] for response in responses]
    assert raw == [b"\1\0\0\0b", b"\1\0\0\0a", b"\0\0\0\0"]


async def test_options_mean_the_same_as_in_generate(server: FakeServer) -> None:
    options: dict[str, Any] = {"beam_size": 4, "num_hypotheses": 2, "length_penalty": 0.5, "max_new_tokens": 3}
    response = await server.inference_stub.ModelInfer(infer("drawer", **options, log_probabilities=True))
    request = pb.GenerateRequest(
        input=pb.Input(text="drawer"),
        options=pb.GenerationOptions(**options),
        details=pb.Details(log_probabilities=True),
    )
    expected = (await server.stub.Generate(request)).hypotheses
    assert server.engines.accepted[0].request == server.engines.accepted[1].request
    assert output(response, "text") == [[hypothesis.text.encode() for hypothesis in expected]]
    assert output(response, "score") == [[hypothesis.score for hypothesis in expected]]
    assert output(response, "log_probability") == [[hypothesis.log_probability for hypothesis in expected]]
    assert output(response, "finish_reason") == [[b"LENGTH", b"LENGTH"]]
    [encoded] = output(response, "tokens")
    for tokens, hypothesis in zip(map(json.loads, encoded), expected, strict=True):
        assert tokens == [
            {"id": token.id, "text": token.text, "log_probability": token.log_probability}
            for token in hypothesis.tokens
        ]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, ["text", "finish_reason"]),
        ({"tokens": True}, ["text", "finish_reason", "tokens"]),
        ({"log_probabilities": True}, ["text", "finish_reason", "score", "log_probability", "tokens"]),
        ({"top_tokens": 2}, ["text", "finish_reason", "score", "log_probability", "tokens"]),
        ({"sample": True, "seed": 5}, ["text", "finish_reason", "seed"]),
        ({"outputs": ("score", "tokens", "score")}, ["score", "tokens"]),
    ],
)
async def test_outputs_are_those_requested_or_implied(
    server: FakeServer, parameters: dict[str, Any], expected: list[str]
) -> None:
    response = await server.inference_stub.ModelInfer(infer("ab", **parameters))
    assert names(response) == expected
    assert server.engines.accepted[0].request.search.log_probabilities == ("score" in expected)
    if "tokens" in expected:
        assert [token["text"] for token in json.loads(output(response, "tokens")[0][0])] == ["b", "a"]


async def test_alternatives_and_seeds_are_returned(server: FakeServer) -> None:
    response = await server.inference_stub.ModelInfer(infer("ab", top_tokens=2, sample=True, seed=2**62))
    tokens = json.loads(output(response, "tokens")[0][0])
    assert [other["text"] for other in tokens[0]["alternatives"]] == ["b", "c"]
    assert output(response, "seed") == [[2**62]]


async def test_large_responses_are_written_in_a_thread(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    threaded = []

    async def to_thread(write: Any) -> Any:
        threaded.append(write)
        return write()

    request = infer(*["drawer"] * 20, top_tokens=9)
    small = await server.inference_stub.ModelInfer(infer("drawer", top_tokens=9))
    monkeypatch.setattr("dragoman_server.api.inference.outputs.asyncio.to_thread", to_thread)
    large = await server.inference_stub.ModelInfer(request)
    assert output(large, "tokens") == output(small, "tokens") * 20
    assert threaded


async def test_missing_hypotheses_are_filled_up() -> None:
    engines = FakeEngines(results=lambda request: backwards(request)[: len(request.source_ids) - 1])
    async with serve_fake(engines) as server:
        request = infer("ab", "drawer", beam_size=4, num_hypotheses=3, log_probabilities=True)
        response = await server.inference_stub.ModelInfer(request)
    assert output(response, "text") == [[b"ba", b"a", b""], [b"reward", b"eward", b"ward"]]
    assert output(response, "finish_reason")[0] == [b"EOS", b"EOS", b""]
    assert output(response, "tokens")[0][2] == b"[]"
    assert math.isnan(output(response, "score")[0][2])


async def test_the_texts_of_a_request_run_concurrently_and_fail_together() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        call = server.inference_stub.ModelInfer(infer("ab", "cd", "ef"))
        await engines.until(3)
        for generation in reversed(list(engines.running)):
            generation.finish()
        assert output(await call, "text") == [[b"ba"], [b"dc"], [b"fe"]]
        call = server.inference_stub.ModelInfer(infer("ab", "cd"))
        await engines.until(2)
        first, second = engines.running
        second.finish(EngineUnavailableError("the model is stopping"))
        error = await refused(call)
        assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "the model is stopping")
        assert first.cancelled


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (infer("ab", ""), "text[1] is empty"),
        (infer("a", "b", "💥"), "text[2] has the character '💥' (U+1F4A5) at position 0 (counted from 0), which"),
        (infer("ab", beam_size=7), "parameters.beam_size is 7, but must be from 1 to 6"),
        (infer("ab", top_tokens=99), "parameters.top_tokens is 99, but must be from 0 to 20"),
        (infer("ab", prefix="💥"), "parameters.prefix has the character"),
        (infer("ab", suppressed_tokens="[5, 999]"), "parameters.suppressed_tokens[1] is 999"),
        (
            infer("ab", outputs=("text", "attention")),
            "outputs[1].name must be one of text, finish_reason, score, log_probability, tokens, seed",
        ),
        (infer("ab", colour="red"), "parameters.colour is not a parameter of this server"),
        (infer(), "text is empty"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_invalid_request_is_refused(server: FakeServer, request_: oip.ModelInferRequest, message: str) -> None:
    error = await refused(server.inference_stub.ModelInfer(request_))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(error.details()).startswith(message)
    assert not server.engines.running
    refusals = 1
    if len(request_.inputs[0].contents.bytes_contents) == 1:
        [response] = await stream(server, request_)
        assert response.error_message.startswith(f"INVALID_ARGUMENT: {message}")
        refusals = 2
    assert server.metric("dragoman_rejections_total", reason="invalid") == refusals


async def test_an_unknown_model_or_version_is_not_found(server: FakeServer) -> None:
    for changed in (oip.ModelInferRequest(model_name="forwards"), oip.ModelInferRequest(model_version="9")):
        request = infer("ab")
        request.MergeFrom(changed)
        assert (await refused(server.inference_stub.ModelInfer(request))).code() is grpc.StatusCode.NOT_FOUND
        metadata = oip.ModelMetadataRequest(name=request.model_name, version=request.model_version)
        assert (await refused(server.inference_stub.ModelMetadata(metadata))).code() is grpc.StatusCode.NOT_FOUND


async def test_a_full_queue_and_a_timeout_end_requests() -> None:
    engines = FakeEngines(automatic=False, room=0)
    async with serve_fake(engines) as server:
        error = await refused(server.inference_stub.ModelInfer(infer("ab")))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        [response] = await stream(server, infer("ab"))
        assert response.error_message.startswith("RESOURCE_EXHAUSTED: ")
        engines.room = 10
        error = await refused(server.inference_stub.ModelInfer(infer("ab", "cd", timeout=300_000)))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        [response] = await stream(server, infer("ab", timeout=300_000))
        assert response.error_message.startswith("DEADLINE_EXCEEDED: ")
        assert len(engines.accepted) == 3
        assert all(generation.cancelled for generation in engines.accepted)


@pytest.mark.parametrize("timeout", [0, 2**62])
async def test_a_timeout_of_zero_or_far_away_changes_nothing(server: FakeServer, timeout: int) -> None:
    assert output(await server.inference_stub.ModelInfer(infer("ab", timeout=timeout)), "text") == [[b"ba"]]
    assert len(await stream(server, infer("ab", timeout=timeout))) == 3


@pytest.mark.parametrize(
    ("texts", "parameters", "expected"),
    [
        (["ab"], {}, Priority.INTERACTIVE),
        (["ab", "cd"], {}, Priority.BATCH),
        (["ab"], {"priority": "batch"}, Priority.BATCH),
        (["ab", "cd"], {"priority": 1}, Priority.INTERACTIVE),
    ],
)
async def test_a_single_text_is_interactive_by_default(
    server: FakeServer, texts: list[str], parameters: dict[str, Any], expected: Priority
) -> None:
    await server.inference_stub.ModelInfer(infer(*texts, **parameters))
    if len(texts) == 1:
        await stream(server, infer(*texts, **parameters))
    assert [generation.request.priority for generation in server.engines.accepted] == [expected] * 2


async def test_a_stream_adds_up_to_the_unary_response(server: FakeServer) -> None:
    request = infer("a drawer", log_probabilities=True, triton_enable_empty_final_response=True)
    unary = await server.inference_stub.ModelInfer(request)
    responses = [response.infer_response for response in await stream(server, request)]
    assert len(responses) > 5
    assert {(response.id, response.model_name) for response in responses} == {("7", MODEL)}
    finals = [response.parameters[FINAL].bool_param for response in responses]
    assert finals == [False] * (len(responses) - 1) + [True]
    assert b"".join(output(response, "text")[0][0] for response in responses) == output(unary, "text")[0][0]
    tokens = [token for response in responses for token in json.loads(output(response, "tokens")[0][0])]
    assert tokens == json.loads(output(unary, "tokens")[0][0])
    assert [names(response) for response in responses[:-1]] == [["text", "tokens"]] * (len(responses) - 1)
    for name in ("finish_reason", "score", "log_probability"):
        assert output(responses[-1], name) == output(unary, name)


async def test_pieces_of_several_hypotheses_are_in_their_columns(server: FakeServer) -> None:
    request = infer("drawer", sample=True, seed=5, num_hypotheses=3)
    unary = await server.inference_stub.ModelInfer(request)
    texts = [b"", b"", b""]
    for response in await stream(server, request):
        texts = [text + piece for text, piece in zip(texts, output(response.infer_response, "text")[0], strict=True)]
    assert texts == output(unary, "text")[0] == [b"reward", b"eward", b"ward"]


@pytest.mark.parametrize("parameters", [{"beam_size": 4}, {"outputs": ("finish_reason",)}], ids=str)
async def test_a_beam_search_or_an_output_without_pieces_has_one_response(
    server: FakeServer, parameters: dict[str, Any]
) -> None:
    [response] = await stream(server, infer("drawer", **parameters))
    if "outputs" in parameters:
        assert names(response.infer_response) == ["finish_reason"]
    else:
        assert output(response.infer_response, "text") == [[b"reward"]]
    assert response.infer_response.parameters[FINAL].bool_param


async def test_a_failed_request_does_not_end_its_stream(server: FakeServer) -> None:
    invalid, valid = infer(""), infer("ab")
    invalid.id, valid.id = "invalid", "valid"
    responses = await stream(server, invalid, valid)
    [failed] = [response for response in responses if response.error_message]
    assert failed.error_message == "INVALID_ARGUMENT: text[0] is empty"
    assert failed.infer_response.id == "invalid"
    assert failed.infer_response.parameters[FINAL].bool_param
    assert len([response for response in responses if response.infer_response.id == "valid"]) == 3
    assert server.metric("dragoman_rejections_total", reason="invalid") == 1
    [response] = await stream(server, infer("ab", "cd"))
    problem = "text has 2 elements, but each request of a stream must have one"
    assert response.error_message == f"INVALID_ARGUMENT: {problem}"
    assert await stream(server) == []


async def test_requests_of_a_stream_run_concurrently_up_to_a_limit() -> None:
    engines = FakeEngines(automatic=False, room=10_000)
    async with serve_fake(engines) as server:
        call = server.inference_stub.ModelStreamInfer()
        for _ in range(MAX_REQUESTS + 10):
            await call.write(infer("ab"))
        await call.done_writing()
        await engines.until(MAX_REQUESTS)
        await asyncio.sleep(0.05)
        assert len(engines.running) == MAX_REQUESTS
        engines.automatic = True
        for generation in list(engines.running):
            generation.finish()
        assert len([response async for response in call]) == 3 * (MAX_REQUESTS + 10)


async def test_a_client_that_leaves_a_stream_frees_its_rows() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        call = server.inference_stub.ModelStreamInfer()
        for _ in range(5):
            await call.write(infer("ab"))
        await engines.until(5)
        call.cancel()
        await engines.until(0)
        assert all(generation.cancelled for generation in engines.accepted)


async def test_draining_ends_idle_streams_and_finishes_busy_ones() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        busy, idle = server.inference_stub.ModelStreamInfer(), server.inference_stub.ModelStreamInfer()
        await busy.write(infer("ab"))
        await idle.write(infer(""))
        assert (await idle.read()).error_message
        await engines.until(1)
        server.service.streams.drain()
        error = await refused(idle.read())
        assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
        engines.running[0].finish()
        for _ in range(3):
            assert (await busy.read()).infer_response.id == "7"
        assert (await refused(busy.read())).code() is grpc.StatusCode.UNAVAILABLE
        late = server.inference_stub.ModelStreamInfer()
        assert (await refused(late.read())).code() is grpc.StatusCode.UNAVAILABLE


async def test_damaged_messages_are_errors_of_the_client(server: FakeServer) -> None:
    """A request of damaged bytes is never an internal error."""
    streaming: Any = server.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        async for _ in streaming(iter([infer("ab").SerializeToString(), b"\xff\xff"])):
            pass
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    draw = random.Random(3)
    requests: list[tuple[str, Message]] = [
        ("ModelInfer", infer("ab", "cd", raw=True, beam_size=2, stop_sequences='["a"]', outputs=("text", "score"))),
        ("ModelInfer", infer("ab", temperature=0.5, sample=True, seed=3, prefix="a", top_tokens=2)),
        ("ModelMetadata", oip.ModelMetadataRequest(name=MODEL, version="1")),
        ("RepositoryModelLoad", oip.RepositoryModelLoadRequest(repository_name="a", model_name=MODEL)),
    ]
    codes = set()
    for _ in range(400):
        method, request = draw.choice(requests)
        data = bytearray(request.SerializeToString())
        for _ in range(draw.randint(1, 4)):
            position = draw.randrange(len(data))
            data[position : position + draw.randint(0, 2)] = draw.randbytes(draw.randint(0, 2))
        call: Any = server.channel.unary_unary(f"/{SERVICE}/{method}")
        try:
            await call(bytes(data))
        except grpc.aio.AioRpcError as damaged:
            codes.add(damaged.code().name)
    assert "INVALID_ARGUMENT" in codes
    assert codes <= {"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "DEADLINE_EXCEEDED"}
