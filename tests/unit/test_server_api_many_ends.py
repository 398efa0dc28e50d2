"""GenerateMany: how items and calls end before they are answered."""

import asyncio
import time
from typing import Any, cast

import grpc
import pytest
from google.rpc import code_pb2

from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from dragoman_server.api.many import ManyCall
from tests.support.fake_engines import FakeEngines, serve_fake
from tests.support.held_pool import serve_pool, waiting
from tests.support.many_calls import METHOD, WINDOW, answered, item, items
from tests.support.refusals import refused, retry_seconds
from tests.support.waiting import until_async


async def test_cancelled_items_leave_the_engine_and_are_answered() -> None:
    async with serve_pool(2) as (server, pool, runtime):
        call = server.stub.GenerateMany()
        await call.write(items(*(item(str(number), "abc") for number in range(4))))
        await until_async(lambda: runtime.encoded and waiting(pool) + len(runtime.encoded) == 4)
        before = waiting(pool)
        await call.write(items(cancel=["0", "3", "unknown"]))
        answers: list[pb.ManyAnswer] = []
        while len(answers) < 2:
            answers += (await call.read()).answers
        assert {answer.id: answer.error.code for answer in answers} == {
            "0": code_pb2.CANCELLED,
            "3": code_pb2.CANCELLED,
        }
        assert waiting(pool) == before - 1, "the other one was running"
        await call.write(items(item("0", "ab"), cancel=["0"]))
        await call.done_writing()
        runtime.gate.set()
        later = {answer.id: answer.response.hypotheses[0].text for answer in await answered(call)}
        assert later == {"0": "ba", "1": "cba", "2": "cba"}
        assert server.metric("dragoman_items_total", method=METHOD, code="CANCELLED") == 2


async def test_an_item_is_cancelled_while_its_attention_is_computed() -> None:
    engines = FakeEngines()
    async with serve_fake(engines) as server:
        server.scoring.gate.clear()
        call = server.stub.GenerateMany()
        await call.write(items(item("a", "abc", details=pb.Details(attention=True))))
        await until_async(server.scoring.started.is_set)
        await call.write(items(cancel=["a"]))
        assert (await call.read()).answers[0].error.code == code_pb2.CANCELLED
        engines.automatic = False
        await call.write(items(item("a", "ab")))
        await engines.until(running=1)
        server.scoring.gate.set()
        await until_async(lambda: server.scoring.runs)
        await asyncio.sleep(0.05)
        engines.running[0].finish()
        await call.done_writing()
        assert [answer.response.hypotheses[0].text for answer in await answered(call)] == ["ba"]


@pytest.mark.parametrize("ends", ["deadline", "cancel", "lost"])
async def test_the_end_of_the_call_frees_everything_while_the_only_engine_is_in_an_endless_step(ends: str) -> None:
    async with serve_pool(1) as (server, pool, runtime):
        busy = server.stub.Generate(pb.GenerateRequest(input=pb.Input(text="ab")))
        await until_async(lambda: runtime.encoded)
        channel = grpc.aio.insecure_channel(server.address)
        stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
        call = stub.GenerateMany(timeout=0.3 if ends == "deadline" else None)
        await call.write(items(*map(item, "abcdefgh")))
        await until_async(lambda: waiting(pool) == pool.batch_window == 2)
        if ends == "cancel":
            call.cancel()
        elif ends == "lost":
            await channel.close()
        if ends == "deadline":
            assert (await refused(call)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until_async(lambda: waiting(pool) == 0)
        assert not busy.done()
        assert not runtime.gate.is_set()
        code = "DEADLINE_EXCEEDED" if ends == "deadline" else "CANCELLED"
        await until_async(lambda: server.metric("dragoman_requests_total", method=METHOD, code=code) == 1)
        await channel.close()
        with pool.open_call():
            assert pool._batch_calls == 1


async def test_time_limits_belong_to_items() -> None:
    async with serve_pool(1) as (server, _, runtime):
        busy = server.stub.Generate(pb.GenerateRequest(input=pb.Input(text="ab")))
        await until_async(lambda: runtime.encoded)
        call = server.stub.GenerateMany()
        brief = pb.GenerationOptions(time_limit={"nanos": 50_000_000})
        await call.write(items(item("slow"), item("brief", options=brief)))
        [answer] = (await call.read()).answers
        assert (answer.id, answer.response.hypotheses[0].finish_reason) == ("brief", pb.FINISH_REASON_TIME_LIMIT)
        assert not busy.done()
        await call.done_writing()
        runtime.gate.set()
        assert [each.id for each in await answered(call)] == ["slow"]


async def test_an_item_that_waits_for_room_does_not_use_up_its_time_limit() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        brief = pb.GenerateRequest(options=pb.GenerationOptions(time_limit={"nanos": 100_000_000}))
        many = [item(str(number)) for number in range(WINDOW + 1)]
        call = server.stub.GenerateMany(iter([items(*many, defaults=brief)]))
        await engines.until(running=WINDOW)
        await asyncio.sleep(0.2)
        engines.running[0].finish()
        await until_async(lambda: len(engines.accepted) == WINDOW + 1)
        limit = engines.accepted[-1].request.time_limit
        assert limit is not None
        assert limit > time.monotonic()
        for generation in engines.running.copy():
            generation.finish()
        assert len(await answered(call)) == WINDOW + 1


async def test_a_draining_server_answers_what_it_has_taken() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        done, open_ = server.stub.GenerateMany(), server.stub.GenerateMany()
        await done.write(items(item("a")))
        await done.done_writing()
        await open_.write(items(*(item(str(number)) for number in range(20))))
        await engines.until(running=1 + WINDOW)
        # The end of the first call's requests is read.
        calls = cast(set[ManyCall], server.service.streams._streams)
        await until_async(lambda: any(call._reading is not None and call._reading.done() for call in calls))
        server.registry.refuse("the server is shutting down")
        server.service.streams.drain()
        late = server.stub.GenerateMany()
        await late.write(items(item("late")))
        for generation in engines.running.copy():
            generation.finish()
        assert [answer.id for answer in await answered(done)] == ["a"]
        assert await done.code() is grpc.StatusCode.OK
        ids: list[str] = []
        while len(ids) < WINDOW:
            ids += [answer.id for answer in (await open_.read()).answers]
        assert sorted(ids) == sorted(map(str, range(WINDOW)))
        ended = await refused(open_)
        assert ended.code() is grpc.StatusCode.UNAVAILABLE
        assert retry_seconds(ended) == 1
        assert (await refused(late)).code() is grpc.StatusCode.UNAVAILABLE
        assert not server.service.streams._streams
