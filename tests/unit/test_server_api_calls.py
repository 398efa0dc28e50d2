"""What the service answers, over engines that turn words around."""

import asyncio
import gc
import time
from typing import Any, cast

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import code_pb2, error_details_pb2
from grpc_status import rpc_status
from structlog.testing import capture_logs

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.core.errors import DeadlineExpiredError, EngineUnavailableError
from dragoman_server.core.requests import GenerationRequest
from dragoman_server.core.search_options import SearchOptions
from tests.support.fake_engines import MAX_TARGET, MODEL, FakeEngines, FakeServer, serve_fake
from tests.support.waiting import until_async


def ask(text: str, **options: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(input=pb.Input(text=text), options=pb.GenerationOptions(**options))


def batch(*texts: str) -> pb.GenerateBatchRequest:
    return pb.GenerateBatchRequest(inputs=[pb.Input(text=text) for text in texts])


def retry_seconds(error: grpc.aio.AioRpcError) -> float:
    status = rpc_status.from_call(cast("grpc.Call", error))
    assert status is not None
    info = error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info)
    seconds: float = info.retry_delay.ToNanoseconds() / 1e9
    return seconds


async def test_text_is_answered_with_text(server: FakeServer) -> None:
    answer = await server.stub.Generate(ask("Drawer"))
    expected = pb.Hypothesis(text="reward", finish_reason=pb.FINISH_REASON_EOS, target_tokens=6)
    assert answer == pb.GenerateResponse(hypotheses=[expected], source_tokens=7, model=MODEL, model_version="1")
    request: GenerationRequest = server.engines.accepted[0].request
    assert request.source_ids == [7, 21, 4, 26, 8, 21, 3]
    assert request.search == SearchOptions(max_new_tokens=MAX_TARGET)
    assert (request.deadline, request.time_limit, request.streaming) == (None, None, False)


async def test_ids_are_answered_as_the_text_they_stand_for(server: FakeServer) -> None:
    tokens = (await server.stub.Tokenize(pb.TokenizeRequest(text="drawer"))).tokens
    ids = [token.id for token in tokens]
    assert [token.text for token in tokens] == [*"drawer", "</s>"]
    for given in (ids, ids[:-1]):
        answer = await server.stub.Generate(pb.GenerateRequest(input=pb.Input(token_ids=pb.TokenIds(ids=given))))
        assert answer == await server.stub.Generate(ask("drawer"))


async def test_a_limit_that_is_reached_is_told(server: FakeServer) -> None:
    answer = await server.stub.Generate(ask("drawer", max_new_tokens=2))
    assert answer.hypotheses[0].text == "re"
    assert answer.hypotheses[0].finish_reason == pb.FINISH_REASON_LENGTH


async def test_details_are_given_on_request(server: FakeServer) -> None:
    request = ask("ab")
    request.details.tokens = True
    [hypothesis] = (await server.stub.Generate(request)).hypotheses
    assert [(token.id, token.text) for token in hypothesis.tokens] == [(5, "b"), (4, "a")]
    assert not hypothesis.tokens[0].HasField("log_probability")
    assert not hypothesis.HasField("log_probability")
    request.details.log_probabilities = True
    [hypothesis] = (await server.stub.Generate(request)).hypotheses
    assert [token.log_probability for token in hypothesis.tokens] == [-0.5, -0.5]
    assert hypothesis.log_probability == -1.25  # the end token's is in it


async def test_time_limits_and_deadlines_become_moments(server: FakeServer) -> None:
    before = time.monotonic()
    await server.stub.Generate(ask("a", time_limit=duration_pb2.Duration(seconds=2, nanos=500_000_000)), timeout=30)
    request = server.engines.accepted[0].request
    assert request.time_limit is not None
    assert before + 2.5 <= request.time_limit <= time.monotonic() + 2.5
    assert request.deadline is not None
    assert before + 29 <= request.deadline <= time.monotonic() + 31  # gRPC rounds up


@pytest.mark.parametrize("log_probabilities", [False, True])
async def test_a_stream_ends_with_the_unary_answer(server: FakeServer, log_probabilities: bool) -> None:
    request = ask("a drawer")
    request.details.log_probabilities = log_probabilities
    messages = [message async for message in server.stub.GenerateStream(request)]
    assert messages[-1].final == await server.stub.Generate(request)
    assert not any(message.HasField("final") for message in messages[:-1])
    assert "".join(message.text for message in messages) == messages[-1].final.hypotheses[0].text == "reward a"
    tokens = [token for message in messages for token in message.tokens]
    assert tokens == list(messages[-1].final.hypotheses[0].tokens)
    assert server.engines.accepted[0].request.streaming


async def test_a_batch_of_a_thousand_with_three_bad_items(server: FakeServer) -> None:
    texts = ["drawer"] * 1000
    texts[7], texts[500], texts[999] = "", "x" * 50, "💥"
    items = (await server.stub.GenerateBatch(batch(*texts))).items
    assert len(items) == 1000
    for index, item in enumerate(items):
        if index in (7, 500, 999):
            assert item.error.code == code_pb2.INVALID_ARGUMENT
            violations = error_details_pb2.BadRequest()
            assert item.error.details[0].Unpack(violations)
            assert violations.field_violations[0].field == f"inputs[{index}].text"
        else:
            assert item.response.hypotheses[0].text == "reward"
    assert server.engines.most <= 8
    assert server.metric("dragoman_rejections_total", reason="invalid") == 3
    assert (
        server.metric("dragoman_requests_total", method="dragoman.v1.GenerationService/GenerateBatch", code="OK") == 1
    )


async def test_a_batch_answers_in_order_whatever_finishes_first() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        call = server.stub.GenerateBatch(batch("ab", "cd", "ef"))
        await engines.until(3)
        for generation in reversed(list(engines.running)):
            generation.finish()
        texts = [item.response.hypotheses[0].text for item in (await call).items]
        assert texts == ["ba", "dc", "fe"]


async def test_a_full_queue_refuses_at_once_and_tells_when_to_come_back() -> None:
    async with serve_fake(FakeEngines(room=0)) as server:
        for call in (
            server.stub.Generate(ask("a")),
            server.stub.GenerateStream(ask("a")).read(),
            server.stub.GenerateBatch(batch("a", "b", "c")),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert retry_seconds(refused.value) == 0.25
        assert server.metric("dragoman_rejections_total", reason="queue_full") == 3


async def test_a_failing_engine_is_unavailable_for_the_items_it_had() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        call = server.stub.GenerateBatch(batch("ab", "cd"))
        await engines.until(2)
        engines.running[0].finish(EngineUnavailableError("the engine failed"))
        engines.running[0].finish()
        first, second = (await call).items
        assert (first.error.code, first.error.message) == (code_pb2.UNAVAILABLE, "the engine failed")
        assert second.response.hypotheses[0].text == "dc"
        engines.stopped = True
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await server.stub.Generate(ask("a"))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert retry_seconds(refused.value) > 0


@pytest.mark.parametrize("method", ["Generate", "GenerateStream", "GenerateBatch"])
async def test_a_deadline_that_passes_in_an_engine_is_told(method: str) -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        call = getattr(server.stub, method)(batch("a", "b") if method == "GenerateBatch" else ask("a"))
        await engines.until(2 if method == "GenerateBatch" else 1)
        engines.running[0].finish(DeadlineExpiredError())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await (call.read() if method == "GenerateStream" else call)
        assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert refused.value.details() == "the deadline passed before the answer was complete"
        await engines.until(0)  # the batch's other item is cancelled


@pytest.mark.parametrize("leave", ["cancel", "deadline"])
@pytest.mark.parametrize("method", ["Generate", "GenerateStream", "GenerateBatch"])
async def test_a_client_that_leaves_gives_its_rows_back(method: str, leave: str) -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        request = batch("a", "b", "c") if method == "GenerateBatch" else ask("a")
        call = getattr(server.stub, method)(request, timeout=0.5 if leave == "deadline" else 30)
        await until_async(lambda: len(engines.accepted) == (3 if method == "GenerateBatch" else 1))
        if leave == "cancel":
            call.cancel()
        await engines.until(0)
        assert all(generation.cancelled for generation in engines.accepted)
        code = "CANCELLED" if leave == "cancel" else "DEADLINE_EXCEEDED"
        name = f"dragoman.v1.GenerationService/{method}"
        await until_async(lambda: server.metric("dragoman_requests_in_flight", method=name) == 0)
        assert server.metric("dragoman_requests_total", method=name, code=code) == 1


async def test_calls_are_unavailable_before_and_after_serving() -> None:
    async with serve_fake(ready=False) as server:
        for reason in ("the model is loading", "the server is shutting down"):
            if reason != "the model is loading":
                server.registry.refuse(reason)
            for call in (
                server.stub.Generate(ask("a")),
                server.stub.GenerateStream(ask("a")).read(),
                server.stub.GenerateBatch(batch("a")),
                server.stub.Score(pb.ScoreRequest()),
                server.stub.Tokenize(pb.TokenizeRequest(text="a")),
                server.stub.Detokenize(pb.DetokenizeRequest()),
                server.stub.ListModels(pb.ListModelsRequest()),
                server.stub.GetModel(pb.GetModelRequest()),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
                assert refused.value.details() == reason
                assert retry_seconds(refused.value) == 1
        assert server.metric("dragoman_rejections_total", reason="unavailable") == 16


async def test_models_tell_their_limits_and_where_they_come_from(server: FakeServer) -> None:
    model = pb.Model(
        name=MODEL,
        version="1",
        description="turns words around",
        license="Apache-2.0",
        precision="fp32",
        device="cpu",
        max_source_tokens=16,
        max_target_tokens=12,
        source_vocabulary_size=33,
        target_vocabulary_size=33,
        parameters=123,
        quality={"test accuracy (%)": 99.5},
        examples=["drawer"],
        decoder_layers=2,
        heads=2,
        limits=pb.Limits(
            beam_size=6,
            hypotheses=8,
            top_tokens=20,
            stop_sequences=16,
            stop_sequence_characters=256,
            suppressed_sequences=256,
            suppressed_tokens=1024,
            batch_items=10_000,
            score_targets=64,
            attention_weights=2**22,
            answer_bytes=2**26,
        ),
        state=pb.MODEL_STATE_READY,
        current=True,
        default=True,
    )
    assert (await server.stub.ListModels(pb.ListModelsRequest())).models == [model]
    assert (await server.stub.GetModel(pb.GetModelRequest())).model == model
    assert (await server.stub.GetModel(pb.GetModelRequest(model=MODEL))).model == model
    assert (await server.stub.Generate(pb.GenerateRequest(model=MODEL, input=pb.Input(text="a")))).model == MODEL


async def test_tokenize_and_detokenize_show_what_the_model_sees(server: FakeServer) -> None:
    tokens = (await server.stub.Tokenize(pb.TokenizeRequest(text="É1 ", side=pb.SIDE_TARGET))).tokens
    assert [(token.id, token.text) for token in tokens] == [(32, "é"), (1, "<unk>"), (3, "</s>")]
    assert [token.text for token in (await server.stub.Tokenize(pb.TokenizeRequest())).tokens] == ["</s>"]
    for ids, text in (([32, 3], "é"), ([], ""), ([4] * 5000, "a" * 5000)):
        answer = await server.stub.Detokenize(pb.DetokenizeRequest(token_ids=pb.TokenIds(ids=ids)))
        assert answer.text == text


async def test_a_fault_of_the_server_is_logged_without_what_the_client_sent(server: FakeServer) -> None:
    def fail(request: GenerationRequest) -> None:
        raise RuntimeError("a bug")

    server.registry.find("").model.submit = fail  # type: ignore[assignment]
    with capture_logs() as entries:
        for call in (server.stub.Generate(ask("secret")), server.stub.GenerateStream(ask("secret")).read()):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert refused.value.code() is grpc.StatusCode.INTERNAL
            assert refused.value.details() == "internal error of the server; its log has the details"
    assert [(entry["event"], str(entry["exc_info"])) for entry in entries] == [("call failed", "a bug")] * 2
    assert "secret" not in str(entries)


async def largest_share_of_a_turn(call: Any) -> float:
    """Of the time that the event loop is at work until the call is answered."""
    gc.collect()
    gc.freeze()  # as the server does: what the other tests left behind is none of its business
    try:
        turns = []
        while not call.done():
            before = time.thread_time()  # not the clock's time: other processes may have the CPU
            await asyncio.sleep(0)
            turns.append(time.thread_time() - before)
    finally:
        gc.unfreeze()
    assert len((await call).items) == 3000
    assert len(turns) > 100
    return max(turns) / sum(turns)


async def test_the_event_loop_gets_its_turn_while_a_large_batch_is_answered(server: FakeServer) -> None:
    large = batch(*["abcdefghijklmno"] * 3000)
    # What disturbs a measurement makes a turn longer, never shorter.
    assert min([await largest_share_of_a_turn(server.stub.GenerateBatch(large)) for _ in range(5)]) < 1 / 4
