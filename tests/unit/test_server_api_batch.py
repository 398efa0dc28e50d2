"""Batches: how they share the engines with other calls, and leave the event loop to them."""

import asyncio
import gc
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.api.time_slice import TimeSlice
from dragoman_server.core.errors import QueueFullError
from dragoman_server.core.requests import Priority
from dragoman_server.messages.api_error import ApiError, from_engine
from dragoman_server.messages.protobuf_encoding import length_delimited
from tests.support.fake_engines import MODEL, FakeEngines, FakeServer, serve_fake
from tests.support.held_pool import serve_pool, waiting
from tests.support.waiting import until_async

SOURCE = pb.Input(text="ab")
COUNT = 10_000
TEXTS = pb.GenerateBatchRequest(inputs=[pb.Input(text="7")] * COUNT)  # a character that the model does not know
IDS = pb.GenerateBatchRequest(inputs=[pb.Input(token_ids=pb.TokenIds(ids=[5] * 400))] * COUNT)  # too many: 4 MB in all
WORDS = pb.GenerateBatchRequest(inputs=[pb.Input(text="reward")] * COUNT)


class Unhurried:
    """A call without a deadline."""

    def time_remaining(self) -> None:
        return None


def batch(count: int, **more: Any) -> pb.GenerateBatchRequest:
    return pb.GenerateBatchRequest(inputs=[SOURCE] * count, **more)


async def test_a_small_batch_is_answered_while_a_large_one_runs() -> None:
    async with serve_pool(2) as (server, pool, runtime):
        large = server.stub.GenerateBatch(batch(5000))
        await until_async(lambda: waiting(pool) == 2)
        assert pool.batch_window == 4, "the others are not queued yet"
        small = server.stub.GenerateBatch(batch(3))
        await until_async(lambda: waiting(pool) == 5)
        runtime.gate.set()
        assert [item.response.hypotheses[0].text for item in (await small).items] == ["ba"] * 3
        assert not large.done()
        large.cancel()


async def test_a_batch_takes_no_room_from_others_and_is_refused_only_if_its_first_item_finds_none() -> None:
    async with serve_pool(1, queue_size=4) as (server, pool, runtime):
        call = server.stub.GenerateBatch(batch(20))
        await until_async(lambda: waiting(pool) == 1)
        single = pb.GenerateRequest(input=SOURCE, priority=pb.PRIORITY_BATCH)
        singles = [server.stub.Generate(single) for _ in range(4)]
        await until_async(lambda: waiting(pool) == 5)
        for count in (1, 3):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await server.stub.GenerateBatch(batch(count))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        other_priority = server.stub.GenerateBatch(batch(3, priority=pb.PRIORITY_INTERACTIVE))
        runtime.gate.set()
        assert len((await other_priority).items) == 3
        assert all(item.HasField("response") for item in (await call).items)
        assert [(await each).hypotheses[0].text for each in singles] == ["ba"] * 4


@pytest.mark.parametrize("ends", ["time limit", "deadline", "cancel"])
async def test_items_end_on_time_while_the_only_engine_is_in_an_endless_step(ends: str) -> None:
    async with serve_pool(1) as (server, pool, runtime):
        busy = server.stub.Generate(pb.GenerateRequest(input=SOURCE))
        await until_async(lambda: runtime.encoded)
        request = batch(7)
        if ends == "time limit":
            request.options.time_limit.FromMilliseconds(50)
            reasons = [
                item.response.hypotheses[0].finish_reason for item in (await server.stub.GenerateBatch(request)).items
            ]
            assert reasons == [pb.FINISH_REASON_TIME_LIMIT] * 7
        else:
            call = server.stub.GenerateBatch(request, timeout=0.2 if ends == "deadline" else None)
            if ends == "cancel":
                await until_async(lambda: waiting(pool) == 2)
                call.cancel()
            with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
                await call
        await until_async(lambda: waiting(pool) == 0)
        assert not busy.done()
        assert not runtime.gate.is_set()


async def test_more_batches_than_start_items_in_time_are_refused() -> None:
    async with serve_pool(1) as (server, pool, _):
        calls = [server.stub.GenerateBatch(batch(2)) for _ in range(16)]
        await until_async(lambda: waiting(pool) == 31)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await server.stub.GenerateBatch(batch(2))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert server.metric("dragoman_rejections_total", reason="queue_full") == 1
        for call in calls:
            call.cancel()
        await until_async(lambda: waiting(pool) == 0)
        with pool.open_call():
            pass


async def test_items_are_counted_by_their_codes(server: FakeServer) -> None:
    await server.stub.GenerateBatch(pb.GenerateBatchRequest(inputs=[SOURCE, pb.Input(text=""), SOURCE]))
    method = "dragoman.v1.GenerationService/GenerateBatch"
    for code, count in (("OK", 2), ("INVALID_ARGUMENT", 1), ("UNAVAILABLE", 0)):
        assert server.metric("dragoman_items_total", method=method, code=code) == count


async def test_batches_have_batch_priority_and_other_calls_interactive_by_default() -> None:
    engines = FakeEngines()
    async with serve_fake(engines) as server:
        for priority in (pb.PRIORITY_UNSPECIFIED, pb.PRIORITY_BATCH, pb.PRIORITY_INTERACTIVE):
            await server.stub.Generate(pb.GenerateRequest(input=SOURCE, priority=priority))
            await server.stub.GenerateBatch(batch(1, priority=priority))
            async for _ in server.stub.GenerateStream(pb.GenerateRequest(input=SOURCE, priority=priority)):
                pass
    interactive, later = Priority.INTERACTIVE, Priority.BATCH
    told = [generation.request.priority for generation in engines.accepted]
    assert told == [interactive, later, interactive, later, later, later, interactive, interactive, interactive]


@pytest.mark.parametrize("method", ["Generate", "GenerateBatch"])
async def test_a_priority_that_does_not_exist_is_refused(method: str) -> None:
    async with serve_fake() as server:
        request = batch(1) if method == "GenerateBatch" else pb.GenerateRequest(input=SOURCE)
        request.priority = 7  # type: ignore[assignment]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await getattr(server.stub, method)(request)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details() == "priority is 7, which is not a known value"


@pytest.mark.parametrize(
    ("bound", "reason", "words"),
    [
        ("requests", "QUEUE_REQUESTS", "the queue is full: too many requests are waiting; retry in 0.2 s"),
        (
            "tokens",
            "QUEUE_TOKENS",
            "the queue is full: too many source tokens are waiting; retry in 0.2 s",
        ),
    ],
)
def test_a_refusal_names_the_bound_in_message_and_details(bound: Any, reason: str, words: str) -> None:
    error = from_engine(QueueFullError(0.25, bound))
    assert (error.code, error.message) == (grpc.StatusCode.RESOURCE_EXHAUSTED, words)
    status = status_pb2.Status.FromString(error.status().SerializeToString())
    retry, info = error_details_pb2.RetryInfo(), error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(retry)
    assert status.details[1].Unpack(info)
    assert retry.retry_delay.ToNanoseconds() == 250_000_000
    assert (info.reason, info.domain) == (reason, "dragoman")
    assert error.rejection is not None
    assert error.rejection.value == {"requests": "queue_full", "tokens": "queue_tokens"}[bound]


@pytest.fixture
def _no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def turns_of_others(work: Any) -> tuple[Any, float, float]:
    """Returns the work's result, its processor seconds in all, and the most between two turns of another task."""
    turns = [0.0]

    async def take_turns() -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            turns.append(time.thread_time() - before)
            before = time.thread_time()

    other = asyncio.create_task(take_turns())
    await asyncio.sleep(0)
    started = time.thread_time()
    result = await work
    spent = time.thread_time() - started
    other.cancel()
    return result, spent, max(turns)


@pytest.mark.usefixtures("_no_garbage_collection")
@pytest.mark.parametrize("request_", [TEXTS, IDS, WORDS], ids=["texts", "ids", "words"])
async def test_a_large_batch_does_not_block_the_event_loop(request_: pb.GenerateBatchRequest) -> None:
    async with serve_fake() as server:
        context: Any = Unhurried()
        encoded, spent, longest = await turns_of_others(server.service.GenerateBatch(request_, context))
    items = pb.GenerateBatchResponse.FromString(encoded.content).items
    assert len(items) == COUNT
    assert {item.WhichOneof("result") for item in items} == {"response" if request_ is WORDS else "error"}
    assert longest < spent / 5


@pytest.mark.usefixtures("_no_garbage_collection")
async def test_a_batch_of_the_open_inference_protocol_does_not_block_the_event_loop() -> None:
    request = oip.ModelInferRequest(model_name=MODEL)
    request.inputs.add(name="text", datatype="BYTES", shape=[COUNT]).contents.bytes_contents.extend([b"a"] * COUNT)
    async with serve_fake() as server:
        context: Any = Unhurried()
        answer, spent, longest = await turns_of_others(server.inference.ModelInfer(request, context))
    assert list(answer.outputs[0].shape) == [COUNT, 1]
    assert longest < spent / 5


@pytest.mark.usefixtures("_no_garbage_collection")
@pytest.mark.parametrize("request_", [TEXTS, IDS], ids=["texts", "ids"])
async def test_errors_of_items_are_freed_without_garbage_collection(request_: pb.GenerateBatchRequest) -> None:
    async with serve_fake() as server:
        await server.stub.GenerateBatch(pb.GenerateBatchRequest(inputs=request_.inputs[:10]))
        await asyncio.sleep(0)
        assert not [each for each in gc.get_objects() if isinstance(each, ApiError)]


@pytest.mark.usefixtures("_no_garbage_collection")
@pytest.mark.parametrize("inputs", [0, COUNT + 1])
async def test_refused_requests_are_freed_without_garbage_collection(inputs: int) -> None:
    data = pb.GenerateBatchRequest(inputs=[pb.Input()] * inputs).SerializeToString()

    def batches() -> list[pb.GenerateBatchRequest]:
        return [each for each in gc.get_objects() if isinstance(each, pb.GenerateBatchRequest)]

    others = batches()  # of tests before this one
    gc.disable()
    try:
        async with serve_fake() as server:
            with pytest.raises(grpc.aio.AioRpcError):
                await server.send_bytes("GenerateBatch", data)
            # The answer is there a moment before gRPC's own frames are gone.
            await until_async(lambda: all(any(each is other for other in others) for each in batches()))
    finally:
        gc.enable()


async def test_tasks_that_share_a_time_slice_share_the_time_between_yields() -> None:
    time_slice, order = TimeSlice(), []

    async def work() -> None:
        for _ in range(3):
            await time_slice.yield_if_over()
            time.sleep(0.006)  # noqa: ASYNC251  # more than one may have at a time
            order.append("work")

    tasks = [asyncio.create_task(work()) for _ in range(3)]
    while not all(task.done() for task in tasks):
        order.append("other")
        await asyncio.sleep(0)
    between = " ".join(order).split("other")
    assert max(works.count("work") for works in between) == 1, order


@pytest.mark.parametrize("size", [0, 1, 127, 128, 70_000])
def test_parts_joined_are_the_message(size: int) -> None:
    items = [pb.BatchItem(response=pb.GenerateResponse(model="a" * size)), pb.BatchItem()]
    number = pb.GenerateBatchResponse.DESCRIPTOR.fields_by_name["items"].number
    joined = b"".join(length_delimited(number, item.SerializeToString()) for item in items)
    assert joined == pb.GenerateBatchResponse(items=items).SerializeToString()
