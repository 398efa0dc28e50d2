"""What the second server answers, over engines that turn words around."""

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
from dragoman.v1 import admin_pb2
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.api.inference.stream import MAX_REQUESTS
from dragoman_server.core.errors import EngineUnavailableError
from dragoman_server.core.requests import FinishReason, Priority
from dragoman_server.messages.api_error import ApiError
from tests.support.fake_engines import MODEL, FakeEngines, FakeServer, backwards, serve_fake

SERVICE = "inference.GRPCInferenceService"


def parameter(value: Any) -> oip.InferParameter:
    kind = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}[type(value)]
    return oip.InferParameter(**{kind: value})


def ask(*texts: str, outputs: tuple[str, ...] = (), raw: bool = False, **parameters: Any) -> oip.ModelInferRequest:
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
    """Of typed contents, as rows."""
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


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value


async def test_texts_are_answered_with_texts(server: FakeServer) -> None:
    response = await server.inference_stub.ModelInfer(ask("drawer", "stop"))
    assert (response.model_name, response.model_version, response.id) == (MODEL, "1", "7")
    assert names(response) == ["text", "finish_reason"]
    assert output(response, "text") == [[b"reward"], [b"pots"]]
    assert output(response, "finish_reason") == [[b"EOS"], [b"EOS"]]
    assert not response.raw_output_contents


async def test_raw_contents_are_answered_with_raw_contents(server: FakeServer) -> None:
    response = await server.inference_stub.ModelInfer(ask("drawer", "stop", raw=True))
    assert response.raw_output_contents[0] == b"\6\0\0\0reward\4\0\0\0pots"
    assert not any(tensor.HasField("contents") for tensor in response.outputs)


async def test_options_do_what_they_do_elsewhere(server: FakeServer) -> None:
    options: dict[str, Any] = {"beam_size": 4, "num_hypotheses": 2, "length_penalty": 0.5, "max_new_tokens": 3}
    response = await server.inference_stub.ModelInfer(ask("drawer", **options, log_probabilities=True))
    own = pb.GenerateRequest(
        input=pb.Input(text="drawer"),
        options=pb.GenerationOptions(**options),
        details=pb.Details(log_probabilities=True),
    )
    expected = (await server.stub.Generate(own)).hypotheses
    assert server.engines.accepted[0].request == server.engines.accepted[1].request
    assert output(response, "text") == [[hypothesis.text.encode() for hypothesis in expected]]
    assert output(response, "score") == [[hypothesis.score for hypothesis in expected]]
    assert output(response, "log_probability") == [[hypothesis.log_probability for hypothesis in expected]]
    assert output(response, "finish_reason") == [[b"LENGTH", b"LENGTH"]]
    [told] = output(response, "tokens")
    for tokens, hypothesis in zip(map(json.loads, told), expected, strict=True):
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
    ],
)
async def test_outputs_follow_the_details(server: FakeServer, parameters: dict[str, Any], expected: list[str]) -> None:
    response = await server.inference_stub.ModelInfer(ask("ab", **parameters))
    assert names(response) == expected


async def test_outputs_that_are_named_are_given_and_no_others(server: FakeServer) -> None:
    response = await server.inference_stub.ModelInfer(ask("ab", outputs=("score", "tokens", "score")))
    assert names(response) == ["score", "tokens"]
    assert server.engines.accepted[0].request.search.log_probabilities
    assert [token["text"] for token in json.loads(output(response, "tokens")[0][0])] == ["b", "a"]


async def test_alternatives_and_seeds_are_told(server: FakeServer) -> None:
    response = await server.inference_stub.ModelInfer(ask("ab", top_tokens=2, sample=True, seed=2**62))
    tokens = json.loads(output(response, "tokens")[0][0])
    assert [other["text"] for other in tokens[0]["alternatives"]] == ["b", "c"]
    assert output(response, "seed") == [[2**62]]


async def test_large_responses_are_written_in_a_thread(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    async def to_thread(write: Any) -> Any:
        sent.append(write)
        return write()

    request = ask(*["drawer"] * 20, top_tokens=9)
    small = await server.inference_stub.ModelInfer(ask("drawer", top_tokens=9))
    monkeypatch.setattr("dragoman_server.api.inference.outputs.asyncio.to_thread", to_thread)
    large = await server.inference_stub.ModelInfer(request)
    assert output(large, "tokens") == output(small, "tokens") * 20
    assert sent


async def test_a_text_with_fewer_hypotheses_than_asked_for_leaves_places_empty() -> None:
    engines = FakeEngines(results=lambda request: backwards(request)[: len(request.source_ids) - 1])
    async with serve_fake(engines) as server:
        request = ask("ab", "drawer", beam_size=4, num_hypotheses=3, log_probabilities=True)
        response = await server.inference_stub.ModelInfer(request)
    assert output(response, "text") == [[b"ba", b"a", b""], [b"reward", b"eward", b"ward"]]
    assert output(response, "finish_reason")[0] == [b"EOS", b"EOS", b""]
    assert output(response, "tokens")[0][2] == b"[]"
    assert math.isnan(output(response, "score")[0][2])


async def test_the_texts_of_a_request_run_side_by_side() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        call = server.inference_stub.ModelInfer(ask("ab", "cd", "ef"))
        await engines.until(3)
        for generation in reversed(list(engines.running)):
            generation.finish()
        assert output(await call, "text") == [[b"ba"], [b"dc"], [b"fe"]]


REFUSED = {
    "no text": (ask("ab", ""), "text[1] is empty"),
    "an unknown character": (
        ask("a", "b", "💥"),
        "text[2] has the character '💥' (U+1F4A5) at position 0 (counted from 0), which the model has never seen",
    ),
    "an option out of range": (ask("ab", beam_size=7), "parameters.beam_size is 7, but must be from 1 to 6"),
    "a detail out of range": (ask("ab", top_tokens=99), "parameters.top_tokens is 99, but must be from 0 to 20"),
    "a prefix": (ask("ab", prefix="💥"), "parameters.prefix has the character"),
    "a token": (ask("ab", suppressed_tokens="[5, 999]"), "parameters.suppressed_tokens[1] is 999"),
    "an unknown output": (
        ask("ab", outputs=("text", "attention")),
        "outputs[1].name must be one of text, finish_reason, score, log_probability, tokens, seed",
    ),
    "an unknown parameter": (ask("ab", colour="red"), "parameters.colour is not a parameter of this server"),
    "no texts": (ask(), "text is empty"),
}


@pytest.mark.parametrize(("request_", "message"), REFUSED.values(), ids=REFUSED.keys())
async def test_errors_say_what_is_wrong(server: FakeServer, request_: oip.ModelInferRequest, message: str) -> None:
    error = await refusal(server.inference_stub.ModelInfer(request_))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(error.details()).startswith(message)
    assert not server.engines.running
    [response] = await stream(server, request_) if len(request_.inputs[0].contents.bytes_contents) == 1 else [None]
    if response is not None:
        assert response.error_message.startswith(f"INVALID_ARGUMENT: {message}")
    assert server.metric("dragoman_rejections_total", reason="invalid") == (1 if response is None else 2)


async def test_one_text_that_fails_ends_the_others() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        call = server.inference_stub.ModelInfer(ask("ab", "cd"))
        await engines.until(2)
        first, second = engines.running
        second.finish(EngineUnavailableError("the model is stopping"))
        error = await refusal(call)
        assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "the model is stopping")
        assert first.cancelled


async def test_an_unknown_model_or_version_is_not_found(server: FakeServer) -> None:
    for changed in (oip.ModelInferRequest(model_name="forwards"), oip.ModelInferRequest(model_version="9")):
        request = ask("ab")
        request.MergeFrom(changed)
        assert (await refusal(server.inference_stub.ModelInfer(request))).code() is grpc.StatusCode.NOT_FOUND
        asked = oip.ModelMetadataRequest(name=request.model_name, version=request.model_version)
        assert (await refusal(server.inference_stub.ModelMetadata(asked))).code() is grpc.StatusCode.NOT_FOUND


async def test_a_full_queue_is_told() -> None:
    async with serve_fake(FakeEngines(automatic=False, room=0)) as server:
        error = await refusal(server.inference_stub.ModelInfer(ask("ab")))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        [response] = await stream(server, ask("ab"))
        assert response.error_message.startswith("RESOURCE_EXHAUSTED: ")


async def test_a_timeout_ends_the_request_and_gives_its_rows_back() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        error = await refusal(server.inference_stub.ModelInfer(ask("ab", "cd", timeout=300_000)))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        [response] = await stream(server, ask("ab", timeout=300_000))
        assert response.error_message.startswith("DEADLINE_EXCEEDED: ")
        assert len(engines.accepted) == 3
        assert all(generation.cancelled for generation in engines.accepted)


@pytest.mark.parametrize("timeout", [0, 2**62])
async def test_a_timeout_that_is_none_or_far_away_changes_nothing(server: FakeServer, timeout: int) -> None:
    assert output(await server.inference_stub.ModelInfer(ask("ab", timeout=timeout)), "text") == [[b"ba"]]
    assert len(await stream(server, ask("ab", timeout=timeout))) == 3


@pytest.mark.parametrize(
    ("texts", "parameters", "expected"),
    [
        (["ab"], {}, Priority.INTERACTIVE),
        (["ab", "cd"], {}, Priority.BATCH),
        (["ab"], {"priority": "batch"}, Priority.BATCH),
        (["ab", "cd"], {"priority": 1}, Priority.INTERACTIVE),
    ],
)
async def test_who_waits_for_one_text_is_first(
    server: FakeServer, texts: list[str], parameters: dict[str, Any], expected: Priority
) -> None:
    await server.inference_stub.ModelInfer(ask(*texts, **parameters))
    if len(texts) == 1:
        await stream(server, ask(*texts, **parameters))
    assert [generation.request.priority for generation in server.engines.accepted] == [expected] * 2


async def test_pieces_of_a_stream_join_to_the_whole(server: FakeServer) -> None:
    request = ask("a drawer", log_probabilities=True, triton_enable_empty_final_response=True)
    whole = await server.inference_stub.ModelInfer(request)
    responses = [response.infer_response for response in await stream(server, request)]
    assert len(responses) > 5
    assert {response.id for response in responses} == {"7"}
    assert {response.model_name for response in responses} == {MODEL}
    assert [response.parameters["triton_final_response"].bool_param for response in responses] == [False] * (
        len(responses) - 1
    ) + [True]
    assert b"".join(output(response, "text")[0][0] for response in responses) == output(whole, "text")[0][0]
    tokens = [token for response in responses for token in json.loads(output(response, "tokens")[0][0])]
    assert tokens == json.loads(output(whole, "tokens")[0][0])
    assert [names(response) for response in responses[:-1]] == [["text", "tokens"]] * (len(responses) - 1)
    last = responses[-1]
    for name in ("finish_reason", "score", "log_probability"):
        assert output(last, name) == output(whole, name)


async def test_pieces_of_several_hypotheses_stand_in_their_places(server: FakeServer) -> None:
    request = ask("drawer", sample=True, seed=5, num_hypotheses=3)
    whole = await server.inference_stub.ModelInfer(request)
    texts = [b"", b"", b""]
    for response in await stream(server, request):
        texts = [text + piece for text, piece in zip(texts, output(response.infer_response, "text")[0], strict=True)]
    assert texts == output(whole, "text")[0] == [b"reward", b"eward", b"ward"]


async def test_a_beam_search_is_told_in_one_response(server: FakeServer) -> None:
    [response] = await stream(server, ask("drawer", beam_size=4))
    assert output(response.infer_response, "text") == [[b"reward"]]
    assert response.infer_response.parameters["triton_final_response"].bool_param


async def test_outputs_that_do_not_come_in_pieces_come_at_the_end(server: FakeServer) -> None:
    [response] = await stream(server, ask("drawer", outputs=("finish_reason",)))
    assert names(response.infer_response) == ["finish_reason"]
    assert response.infer_response.parameters["triton_final_response"].bool_param


async def test_streamed_raw_contents_are_answered_with_raw_contents(server: FakeServer) -> None:
    responses = await stream(server, ask("ab", raw=True))
    assert [response.infer_response.raw_output_contents[0] for response in responses] == [
        b"\1\0\0\0b",
        b"\1\0\0\0a",
        b"\0\0\0\0",
    ]


async def test_a_request_that_fails_leaves_the_stream_to_others(server: FakeServer) -> None:
    bad, good = ask(""), ask("ab")
    bad.id, good.id = "bad", "good"
    responses = await stream(server, bad, good)
    [failed] = [response for response in responses if response.error_message]
    assert failed.error_message == "INVALID_ARGUMENT: text[0] is empty"
    assert failed.infer_response.id == "bad"
    assert failed.infer_response.parameters["triton_final_response"].bool_param
    assert len([response for response in responses if response.infer_response.id == "good"]) == 3
    assert server.metric("dragoman_rejections_total", reason="invalid") == 1


async def test_several_texts_in_a_request_of_a_stream_are_refused(server: FakeServer) -> None:
    [response] = await stream(server, ask("ab", "cd"))
    assert response.error_message == (
        "INVALID_ARGUMENT: text has 2 elements, but each request of a stream must have one"
    )


async def test_requests_of_a_stream_run_side_by_side_and_not_without_bound() -> None:
    engines = FakeEngines(automatic=False, room=10_000)
    async with serve_fake(engines) as server:
        call = server.inference_stub.ModelStreamInfer()
        for _ in range(MAX_REQUESTS + 10):
            await call.write(ask("ab"))
        await call.done_writing()
        await engines.until(MAX_REQUESTS)
        await asyncio.sleep(0.05)
        assert len(engines.running) == MAX_REQUESTS
        engines.automatic = True
        for generation in list(engines.running):
            generation.finish()
        responses = [response async for response in call]
        assert len(responses) == 3 * (MAX_REQUESTS + 10)


async def test_a_client_that_leaves_a_stream_gives_its_rows_back() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        call = server.inference_stub.ModelStreamInfer()
        for _ in range(5):
            await call.write(ask("ab"))
        await engines.until(5)
        call.cancel()
        await engines.until(0)
        assert all(generation.cancelled for generation in engines.accepted)


async def test_bytes_that_are_no_message_end_a_stream(server: FakeServer) -> None:
    call: Any = server.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
    made = call(iter([ask("ab").SerializeToString(), b"\xff\xff"]))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        async for _ in made:
            pass
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stream_without_requests_ends(server: FakeServer) -> None:
    assert await stream(server) == []


async def test_draining_ends_streams_that_wait_and_lets_those_finish_that_run() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        busy, idle = server.inference_stub.ModelStreamInfer(), server.inference_stub.ModelStreamInfer()
        await busy.write(ask("ab"))
        await idle.write(ask(""))
        assert (await idle.read()).error_message
        await engines.until(1)
        server.inference.drain()
        error = await refusal(idle.read())
        assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
        engines.running[0].finish()
        for _ in range(3):
            assert (await busy.read()).infer_response.id == "7"
        assert (await refusal(busy.read())).code() is grpc.StatusCode.UNAVAILABLE
        late = server.inference_stub.ModelStreamInfer()
        assert (await refusal(late.read())).code() is grpc.StatusCode.UNAVAILABLE


async def test_bytes_that_were_damaged_are_answered_with_an_error_of_the_client(server: FakeServer) -> None:
    """Whatever a request has become, none of it is an error of the server's."""
    draw = random.Random(3)
    requests: list[tuple[str, Message]] = [
        ("ModelInfer", ask("ab", "cd", raw=True, beam_size=2, stop_sequences='["a"]', outputs=("text", "score"))),
        ("ModelInfer", ask("ab", temperature=0.5, sample=True, seed=3, prefix="a", top_tokens=2)),
        ("ModelMetadata", oip.ModelMetadataRequest(name=MODEL, version="1")),
        ("RepositoryModelLoad", oip.RepositoryModelLoadRequest(repository_name="a", model_name=MODEL)),
    ]
    codes = set()
    for _ in range(400):
        method, request = draw.choice(requests)
        data = bytearray(request.SerializeToString())
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(len(data))
            data[place : place + draw.randint(0, 2)] = draw.randbytes(draw.randint(0, 2))
        call: Any = server.channel.unary_unary(f"/{SERVICE}/{method}")
        try:
            await call(bytes(data))
        except grpc.aio.AioRpcError as error:
            codes.add(error.code())
    assert grpc.StatusCode.INVALID_ARGUMENT in codes
    assert codes <= {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    }


async def test_liveness_and_readiness_are_told_apart() -> None:
    async with serve_fake(ready=False) as server:
        stub = server.inference_stub
        assert (await stub.ServerLive(oip.ServerLiveRequest())).live
        assert not (await stub.ServerReady(oip.ServerReadyRequest())).ready
        assert not (await stub.ModelReady(oip.ModelReadyRequest(name=MODEL))).ready
        for call in (stub.ModelInfer(ask("ab")), stub.RepositoryIndex(oip.RepositoryIndexRequest())):
            assert (await refusal(call)).code() is grpc.StatusCode.UNAVAILABLE
    async with serve_fake() as server:
        stub = server.inference_stub
        assert (await stub.ServerReady(oip.ServerReadyRequest())).ready
        for name, version, ready in [
            (MODEL, "", True),
            (MODEL, "1", True),
            ("", "", True),
            (MODEL, "2", False),
            ("no", "", False),
        ]:
            assert (await stub.ModelReady(oip.ModelReadyRequest(name=name, version=version))).ready is ready


async def test_the_model_is_described(server: FakeServer) -> None:
    metadata = await server.inference_stub.ModelMetadata(oip.ModelMetadataRequest(name=MODEL))
    assert (metadata.name, list(metadata.versions)) == (MODEL, ["1"])
    assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in metadata.inputs] == [
        ("text", "BYTES", [-1, 1])
    ]
    assert [tensor.name for tensor in metadata.outputs] == ["text", "finish_reason"]
    config = (await server.inference_stub.ModelConfig(oip.ModelConfigRequest(name=MODEL))).config
    assert config.max_batch_size == 10_000
    assert not config.model_transaction_policy.decoupled
    assert config.parameters["max_beam_size"].string_value == "6"
    [entry] = (await server.inference_stub.RepositoryIndex(oip.RepositoryIndexRequest())).models
    assert (entry.name, entry.version, entry.state, entry.reason) == (MODEL, "1", "READY", "")


async def test_statistics_are_those_of_the_engines(server: FakeServer) -> None:
    metrics = server.metrics.model(MODEL)
    metrics.encoded(0.01, 2, 12, 0)
    for _ in range(3):
        metrics.admitted(0.25)
        metrics.finished(FinishReason.EOS, 4, 5, 1.0)
    metrics.dropped("cancelled", "running")
    metrics.cache(0, 1000)
    metrics.cache(1, 1000)
    for name in (MODEL, ""):
        [stats] = (await server.inference_stub.ModelStatistics(oip.ModelStatisticsRequest(name=name))).model_stats
        assert (stats.name, stats.version, stats.inference_count, stats.execution_count) == (MODEL, "1", 3, 1)
        inference = stats.inference_stats
        assert (inference.success.count, inference.success.ns) == (3, 3_000_000_000)
        assert (inference.queue.count, inference.queue.ns) == (3, 750_000_000)
        assert (inference.compute_infer.count, inference.compute_infer.ns) == (3, 2_250_000_000)
        assert inference.fail.count == 1
        [memory] = stats.memory_usage
        assert (memory.type, memory.byte_size) == ("CPU", 2000)


class Administration:
    """Notes what it is asked for.

    Attributes:
        error: what it raises.
    """

    def __init__(self) -> None:
        self.asked: list[Message] = []
        self.error: ApiError | None = None

    async def LoadModel(self, request: admin_pb2.LoadModelRequest, context: Any) -> None:
        self.asked.append(request)
        if self.error:
            raise self.error

    async def UnloadModel(self, request: admin_pb2.UnloadModelRequest, context: Any) -> None:
        self.asked.append(request)

    async def GetStatus(self, request: admin_pb2.GetStatusRequest, context: Any) -> admin_pb2.GetStatusResponse:
        states = [
            admin_pb2.VersionStatus(model="a", version="1", state=pb.MODEL_STATE_UNLOADED, held=True),
            admin_pb2.VersionStatus(model="a", version="2", state=pb.MODEL_STATE_READY),
            admin_pb2.VersionStatus(model="b", version="1", state=pb.MODEL_STATE_FAILED, problem="it is broken"),
            admin_pb2.VersionStatus(model="b", version="2", state=pb.MODEL_STATE_LOADING),
            admin_pb2.VersionStatus(model="b", version="3", state=pb.MODEL_STATE_RETIRING),
        ]
        return admin_pb2.GetStatusResponse(status=admin_pb2.RepositoryStatus(versions=states))


async def test_the_index_has_what_is_not_served() -> None:
    async with serve_fake(administration=Administration()) as server:
        index = (await server.inference_stub.RepositoryIndex(oip.RepositoryIndexRequest())).models
        assert [(entry.name, entry.version, entry.state, entry.reason) for entry in index] == [
            ("a", "1", "UNAVAILABLE", "unloaded"),
            ("a", "2", "READY", ""),
            ("b", "1", "UNAVAILABLE", "it is broken"),
            ("b", "2", "LOADING", ""),
            ("b", "3", "UNLOADING", ""),
        ]
        index = (await server.inference_stub.RepositoryIndex(oip.RepositoryIndexRequest(ready=True))).models
        assert [(entry.name, entry.version) for entry in index] == [("a", "2")]


async def test_models_are_loaded_and_unloaded_by_the_administration() -> None:
    administration = Administration()
    async with serve_fake(administration=administration) as server:
        stub = server.inference_stub
        await stub.RepositoryModelLoad(oip.RepositoryModelLoadRequest(model_name="some"))
        unload = oip.RepositoryModelUnloadRequest(model_name="some")
        unload.parameters["unload_dependents"].bool_param = True
        await stub.RepositoryModelUnload(unload)
        expected = [admin_pb2.LoadModelRequest(model="some"), admin_pb2.UnloadModelRequest(model="some")]
        assert administration.asked == expected
        administration.error = ApiError(grpc.StatusCode.FAILED_PRECONDITION, "it is broken")
        error = await refusal(stub.RepositoryModelLoad(oip.RepositoryModelLoadRequest(model_name="some")))
        assert (error.code(), error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "it is broken")
        load = oip.RepositoryModelLoadRequest(model_name="some")
        load.parameters["config"].string_param = "{}"
        for call in (
            stub.RepositoryModelLoad(load),
            stub.RepositoryModelLoad(oip.RepositoryModelLoadRequest()),
            stub.RepositoryModelUnload(oip.RepositoryModelUnloadRequest()),
        ):
            assert (await refusal(call)).code() is grpc.StatusCode.INVALID_ARGUMENT
        assert len(administration.asked) == 3


async def test_without_administration_models_are_neither_loaded_nor_unloaded(server: FakeServer) -> None:
    for call in (
        server.inference_stub.RepositoryModelLoad(oip.RepositoryModelLoadRequest(model_name=MODEL)),
        server.inference_stub.RepositoryModelUnload(oip.RepositoryModelUnloadRequest(model_name=MODEL)),
    ):
        error = await refusal(call)
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "can't be loaded or unloaded" in str(error.details())


async def test_what_there_is_not_is_said(server: FakeServer) -> None:
    stub = server.inference_stub
    for call in (
        stub.TraceSetting(oip.TraceSettingRequest()),
        stub.LogSettings(oip.LogSettingsRequest()),
        stub.SystemSharedMemoryRegister(oip.SystemSharedMemoryRegisterRequest(name="a")),
        stub.CudaSharedMemoryRegister(oip.CudaSharedMemoryRegisterRequest(name="a")),
    ):
        error = await refusal(call)
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert str(error.details()).startswith("this server does not support ")
    for name in ("System", "Cuda"):
        status = getattr(stub, f"{name}SharedMemoryStatus")
        assert not (await status(getattr(oip, f"{name}SharedMemoryStatusRequest")())).regions
        await getattr(stub, f"{name}SharedMemoryUnregister")(getattr(oip, f"{name}SharedMemoryUnregisterRequest")())
