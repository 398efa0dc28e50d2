"""Calls from beginning to end: single, streamed and in batches; deadlines, cancellation, full queues and failures."""

import asyncio
import gc
import time
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import code_pb2, error_details_pb2
from structlog.testing import capture_logs

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.core.errors import DeadlineExpiredError, EngineUnavailableError
from dragoman_server.core.requests import GenerationRequest
from dragoman_server.core.search_options import SearchOptions
from tests.support.fake_engines import MAX_TARGET, MODEL, FakeEngines, FakeServer, serve_fake
from tests.support.refusals import refused, retry_seconds
from tests.support.waiting import until_async

METHODS = ["Generate", "GenerateStream", "GenerateBatch"]


def single(text: str, **options: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(input=pb.Input(text=text), options=pb.GenerationOptions(**options))


def batch(*texts: str) -> pb.GenerateBatchRequest:
    return pb.GenerateBatchRequest(inputs=[pb.Input(text=text) for text in texts])


async def test_a_text_is_answered_with_a_text(server: FakeServer) -> None:
    response = await server.stub.Generate(single("Drawer"))
    expected = pb.Hypothesis(text="reward", finish_reason=pb.FINISH_REASON_EOS, target_tokens=6)
    assert response == pb.GenerateResponse(hypotheses=[expected], source_tokens=7, model=MODEL, model_version="1")
    request: GenerationRequest = server.engines.accepted[0].request
    assert request.source_ids == [7, 21, 4, 26, 8, 21, 3]
    assert request.search == SearchOptions(max_new_tokens=MAX_TARGET)
    assert (request.deadline, request.time_limit, request.streaming) == (None, None, False)


async def test_ids_are_answered_like_their_text(server: FakeServer) -> None:
    tokens = (await server.stub.Tokenize(pb.TokenizeRequest(text="drawer"))).tokens
    assert [token.text for token in tokens] == [*"drawer", "</s>"]
    ids = [token.id for token in tokens]
    for source in (ids, ids[:-1]):
        response = await server.stub.Generate(pb.GenerateRequest(input=pb.Input(token_ids=pb.TokenIds(ids=source))))
        assert response == await server.stub.Generate(single("drawer"))


async def test_time_limits_and_deadlines_become_absolute(server: FakeServer) -> None:
    before = time.monotonic()
    request = single("a", time_limit=duration_pb2.Duration(seconds=2, nanos=500_000_000))
    await server.stub.Generate(request, timeout=30)
    submitted = server.engines.accepted[0].request
    assert submitted.time_limit is not None
    assert before + 2.5 <= submitted.time_limit <= time.monotonic() + 2.5
    assert submitted.deadline is not None
    assert before + 29 <= submitted.deadline <= time.monotonic() + 31  # gRPC rounds up


async def test_a_batch_of_a_thousand_with_three_invalid_items(server: FakeServer) -> None:
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
    method = "dragoman.v1.GenerationService/GenerateBatch"
    await until_async(lambda: server.metric("dragoman_requests_total", method=method, code="OK") == 1)


async def test_a_batch_is_answered_in_order_whatever_finishes_first() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        call = server.stub.GenerateBatch(batch("ab", "cd", "ef"))
        await engines.until(3)
        for generation in reversed(list(engines.running)):
            generation.finish()
        texts = [item.response.hypotheses[0].text for item in (await call).items]
        assert texts == ["ba", "dc", "fe"]


async def test_a_full_queue_refuses_at_once_and_suggests_a_delay() -> None:
    async with serve_fake(FakeEngines(room=0)) as server:
        for method in METHODS:
            request = batch("a", "b", "c") if method == "GenerateBatch" else single("a")
            error = await refused(getattr(server.stub, method)(request))
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert retry_seconds(error) == 0.25
        assert server.metric("dragoman_rejections_total", reason="queue_full") == 3


async def test_a_failing_engine_makes_its_items_unavailable() -> None:
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
        error = await refused(server.stub.Generate(single("a")))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert retry_seconds(error) > 0


@pytest.mark.parametrize("method", METHODS)
async def test_a_deadline_that_expires_in_an_engine_ends_the_call(method: str) -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        call = getattr(server.stub, method)(batch("a", "b") if method == "GenerateBatch" else single("a"))
        await engines.until(2 if method == "GenerateBatch" else 1)
        engines.running[0].finish(DeadlineExpiredError())
        error = await refused(call)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert error.details() == "the deadline passed before the answer was complete"
        await engines.until(0)  # the other item of the batch is cancelled


@pytest.mark.parametrize("leave", ["cancel", "deadline"])
@pytest.mark.parametrize("method", METHODS)
async def test_a_client_that_leaves_frees_its_rows(method: str, leave: str) -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        request = batch("a", "b", "c") if method == "GenerateBatch" else single("a")
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


async def test_a_model_is_described_with_its_limits(server: FakeServer) -> None:
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
        many_window=8,
    )
    assert (await server.stub.ListModels(pb.ListModelsRequest())).models == [model]
    assert (await server.stub.GetModel(pb.GetModelRequest())).model == model
    assert (await server.stub.GetModel(pb.GetModelRequest(model=MODEL))).model == model
    assert (await server.stub.Generate(pb.GenerateRequest(model=MODEL, input=pb.Input(text="a")))).model == MODEL


async def test_tokenize_and_detokenize_convert_as_the_model_does(server: FakeServer) -> None:
    tokens = (await server.stub.Tokenize(pb.TokenizeRequest(text="É1 ", side=pb.SIDE_TARGET))).tokens
    assert [(token.id, token.text) for token in tokens] == [(32, "é"), (1, "<unk>"), (3, "</s>")]
    assert [token.text for token in (await server.stub.Tokenize(pb.TokenizeRequest())).tokens] == ["</s>"]
    for ids, text in (([32, 3], "é"), ([], ""), ([4] * 5000, "a" * 5000)):
        response = await server.stub.Detokenize(pb.DetokenizeRequest(token_ids=pb.TokenIds(ids=ids)))
        assert response.text == text


async def test_an_internal_error_is_logged_without_the_request(server: FakeServer) -> None:
    def fail(request: GenerationRequest) -> None:
        raise RuntimeError("a bug")

    server.registry.find("").model.submit = fail  # type: ignore[assignment]
    with capture_logs() as entries:
        for method in ("Generate", "GenerateStream"):
            error = await refused(getattr(server.stub, method)(single("secret")))
            assert error.code() is grpc.StatusCode.INTERNAL
            assert error.details() == "internal error of the server; its log has the details"
    assert [(entry["event"], str(entry["exc_info"])) for entry in entries] == [("call failed", "a bug")] * 2
    assert "secret" not in str(entries)


async def largest_share_of_a_turn(call: Any) -> float:
    """Returns the largest share of the event loop's work, until the call is answered, that ran without a break."""
    gc.collect()
    gc.freeze()  # as the server does: what other tests left behind does not count
    try:
        turns = []
        while not call.done():
            before = time.thread_time()  # CPU time, because other processes may run
            await asyncio.sleep(0)
            turns.append(time.thread_time() - before)
    finally:
        gc.unfreeze()
    assert len((await call).items) == 3000
    assert len(turns) > 100
    return max(turns) / sum(turns)


async def test_a_large_batch_lets_the_event_loop_do_other_work(server: FakeServer) -> None:
    large = batch(*["abcdefghijklmno"] * 3000)
    # Disturbances make a turn longer, never shorter.
    shares: list[float] = []
    while not shares or (shares[-1] >= 1 / 4 and len(shares) < 5):
        shares.append(await largest_share_of_a_turn(server.stub.GenerateBatch(large)))
    assert min(shares) < 1 / 4, shares
