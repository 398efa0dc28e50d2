"""A large batch leaves the event loop to others all the time, and nothing behind."""

import asyncio
import gc
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.api.yielding import Pauses
from dragoman_server.messages.api_error import ApiError
from dragoman_server.messages.protobuf_encoding import length_delimited
from tests.support.fake_engines import MODEL, serve_fake
from tests.support.waiting import until_async

COUNT = 10_000
TEXTS = pb.GenerateBatchRequest(inputs=[pb.Input(text="7")] * COUNT)  # a character that the model does not know
IDS = pb.GenerateBatchRequest(inputs=[pb.Input(token_ids=pb.TokenIds(ids=[5] * 400))] * COUNT)  # too many: 4 MB in all
WORDS = pb.GenerateBatchRequest(inputs=[pb.Input(text="reward")] * COUNT)


class Unhurried:
    """A call without a deadline."""

    def time_remaining(self) -> None:
        return None


@pytest.fixture(autouse=True)
def _no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def turns_of_others(work: Any) -> tuple[Any, float, float]:
    """The work's result, its processor seconds in all, and the most of them between two turns of another task."""
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


@pytest.mark.parametrize("request_", [TEXTS, IDS, WORDS], ids=["texts", "ids", "words"])
async def test_a_large_batch_never_has_the_event_loop_for_long(request_: pb.GenerateBatchRequest) -> None:
    async with serve_fake() as server:
        context: Any = Unhurried()
        encoded, spent, longest = await turns_of_others(server.service.GenerateBatch(request_, context))
    items = pb.GenerateBatchResponse.FromString(encoded.content).items
    assert len(items) == COUNT
    assert {item.WhichOneof("result") for item in items} == {"response" if request_ is WORDS else "error"}
    assert longest < spent / 5


async def test_a_batch_of_the_other_face_neither() -> None:
    request = oip.ModelInferRequest(model_name=MODEL)
    request.inputs.add(name="text", datatype="BYTES", shape=[COUNT]).contents.bytes_contents.extend([b"a"] * COUNT)
    async with serve_fake() as server:
        context: Any = Unhurried()
        answer, spent, longest = await turns_of_others(server.inference.ModelInfer(request, context))
    assert list(answer.outputs[0].shape) == [COUNT, 1]
    assert longest < spent / 5


@pytest.mark.parametrize("request_", [TEXTS, IDS], ids=["texts", "ids"])
async def test_what_was_refused_is_not_held_until_garbage_is_collected(request_: pb.GenerateBatchRequest) -> None:
    async with serve_fake() as server:
        await server.stub.GenerateBatch(pb.GenerateBatchRequest(inputs=request_.inputs[:10]))
        await asyncio.sleep(0)
        assert not [each for each in gc.get_objects() if isinstance(each, ApiError)]


@pytest.mark.parametrize("inputs", [0, COUNT + 1])
async def test_a_refused_request_is_not_held_either(inputs: int) -> None:
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


async def test_tasks_that_share_pauses_share_the_time_between_them() -> None:
    pauses, order = Pauses(), []

    async def work() -> None:
        for _ in range(3):
            await pauses.take()
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
