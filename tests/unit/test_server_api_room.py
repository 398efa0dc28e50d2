"""How batches share what one model has for them, and how a client says who waits."""

import asyncio
import time
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.core.errors import QueueFullError
from dragoman_server.core.requests import Priority
from dragoman_server.messages.api_error import from_engine
from dragoman_server.messages.batch_room import BatchRoom, BatchShare
from tests.support.fake_engines import FakeEngines, FakeServer, serve_fake
from tests.support.waiting import until_async

SOURCE, OTHER = pb.Input(text="ab"), pb.Input(text="ba")


def batch(count: int, **more: Any) -> pb.GenerateBatchRequest:
    return pb.GenerateBatchRequest(inputs=[SOURCE] * count, **more)


def room_of(server: FakeServer) -> BatchRoom:
    return server.registry.find("").model.batch_room


async def take(share: BatchShare) -> None:
    await asyncio.wait_for(share.take(), 10)


async def test_a_place_goes_to_the_call_that_has_the_fewest() -> None:
    room = BatchRoom(3)
    with BatchShare(room) as large, BatchShare(room) as small:
        for _ in range(3):
            await take(large)
        waiting = [asyncio.ensure_future(share.take()) for share in (large, large, large, small, small)]
        await asyncio.sleep(0)
        held = []
        for _ in range(4):
            large.give()
            await asyncio.sleep(0)
            held.append((large.held, small.held))
        assert held == [(2, 1), (2, 1), (1, 2), (1, 2)], "as many for each as can be, and none lies idle"
        small.give()
        small.give()
        await asyncio.gather(*waiting)
        while large.held:
            large.give()
    assert (room.free, room.shares) == (3, set())


async def test_a_call_that_ends_while_it_waits_leaves_its_place_to_others() -> None:
    room = BatchRoom(1)
    with BatchShare(room) as one, BatchShare(room) as other, BatchShare(room) as third:
        await take(one)
        gone, granted, stays = (asyncio.ensure_future(share.take()) for share in (other, other, third))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        one.give()  # to `granted`, which is cancelled before it hears of it
        granted.cancel()
        await asyncio.wait_for(stays, 10)
        assert (other.held, third.held, room.free) == (0, 1, 0)
        assert not other.waiting


async def test_nobody_waits_for_a_place_longer_than_he_has_time() -> None:
    room = BatchRoom(1)
    with BatchShare(room) as one, BatchShare(room) as other:
        assert await one.take()
        assert not await asyncio.wait_for(other.take(time.monotonic() + 0.02), 10)
        assert not await asyncio.wait_for(other.take(time.monotonic() - 1), 10)
        assert not other.waiting
        one.give()
        assert await other.take(time.monotonic() - 1), "there is one"


async def test_a_small_batch_is_answered_while_a_large_one_runs() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines, window=4) as server:
        large = server.stub.GenerateBatch(batch(1000))
        await engines.until(4)
        small = server.stub.GenerateBatch(pb.GenerateBatchRequest(inputs=[OTHER] * 2))
        await until_async(lambda: len(room_of(server).shares) == 2)
        assert len(engines.accepted) == 4, "together no more than one alone"

        def of_small() -> int:
            return sum(each.request.source_ids != engines.accepted[0].request.source_ids for each in engines.accepted)

        answered = 0
        while of_small() < 2:
            assert answered < 12
            engines.running[0].finish()
            answered += 1
            await engines.until(4)
        for generation in engines.running[:4]:
            generation.finish()
        await small
        assert not large.done()
        large.cancel()
        await engines.until(0)


async def test_a_batch_that_has_waited_for_a_place_is_not_refused_for_want_of_room() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines, window=1) as server:
        first = server.stub.GenerateBatch(batch(1))
        await engines.until(1)
        second = server.stub.GenerateBatch(batch(1))
        await until_async(lambda: any(share.waiting for share in room_of(server).shares))
        engines.room = 0
        engines.running[0].finish()
        await first
        await asyncio.sleep(0.05)
        assert not second.done()
        engines.room = 1
        await engines.until(1)
        engines.running[0].finish()
        assert (await second).items[0].HasField("response")


async def test_more_batches_than_there_can_be_places_for_are_refused() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines, window=2) as server:
        calls = [server.stub.GenerateBatch(batch(2)) for _ in range(16)]
        await until_async(lambda: len(room_of(server).shares) == 16)
        await engines.until(2)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await server.stub.GenerateBatch(batch(1))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert server.metric("dragoman_rejections_total", reason="queue_full") == 1
        for call in calls:
            call.cancel()
        await engines.until(0)


async def test_batches_have_time_and_all_else_has_not_unless_the_client_says_so() -> None:
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
        ("requests", "QUEUE_REQUESTS", "the queue is full: as many requests wait as may; retry in 0.2 s"),
        (
            "tokens",
            "QUEUE_TOKENS",
            "the queue is full: requests with as many source tokens wait as may; retry in 0.2 s",
        ),
    ],
)
def test_a_refusal_names_the_bound_for_people_and_for_programs(bound: Any, reason: str, words: str) -> None:
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
