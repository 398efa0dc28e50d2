"""GenerateMany: how many items a call may have in the server."""

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
from google.rpc import code_pb2, error_details_pb2

from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from dragoman_server.api.many import UNKNOWN_WINDOW
from dragoman_server.messages.served_model import ServedModel
from tests.support.fake_engines import FakeEngines, serve_fake
from tests.support.held_pool import serve_pool, waiting
from tests.support.many_calls import WINDOW, answered, item, items
from tests.support.waiting import until_async


async def test_no_more_items_are_taken_than_the_window_has_room_for() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        assert (await server.stub.GetModel(pb.GetModelRequest())).model.many_window == WINDOW
        call = server.stub.GenerateMany(iter([items(*(item(str(number)) for number in range(100)))]))
        await engines.until(running=WINDOW)
        await asyncio.sleep(0.05)
        assert len(engines.accepted) == WINDOW
        for found in range(1, 101):
            engines.running[-1].finish()
            assert len((await call.read()).answers) == 1
            assert engines.most == WINDOW
            expected = min(100, found + WINDOW)
            await until_async(lambda expected=expected: len(engines.accepted) == expected)  # type: ignore[misc]


async def test_items_of_unknown_models_make_no_room_for_others() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        call = server.stub.GenerateMany()
        count = 2 * UNKNOWN_WINDOW
        await call.write(items(*(item(str(number), model="other") for number in range(count))))
        found = 0
        while found < count:
            found += len((await call.read()).answers)
        await call.write(items(*(item(str(number)) for number in range(2 * WINDOW))))
        await engines.until(running=WINDOW)
        await asyncio.sleep(0.05)
        assert len(engines.accepted) == WINDOW
        call.cancel()


async def test_a_client_that_does_not_read_its_answers_is_not_read_from() -> None:
    engines = FakeEngines()
    details = pb.GenerateRequest(details=pb.Details(top_tokens=20))
    count = 1500  # with answers of several kilobytes

    def messages() -> Iterable[pb.GenerateManyRequest]:
        yield items(defaults=details)
        yield from (items(item(str(number), "abcdefghij")) for number in range(count))

    async with serve_fake(engines) as server:
        channel = grpc.aio.insecure_channel(server.address, [("grpc.http2.bdp_probe", 0)])  # keeps to a small window
        stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
        call = stub.GenerateMany(messages())
        taken = -1
        while taken < len(engines.accepted):  # until it stands still
            taken = len(engines.accepted)
            await asyncio.sleep(0.2)
        assert 0 < taken < count / 2
        assert len(await answered(call)) == count
        assert engines.most <= WINDOW
        await channel.close()


async def test_large_answers_share_the_bytes_that_one_answer_may_have() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        model: ServedModel = server.registry.find("").model
        wide: dict[str, Any] = {
            "options": pb.GenerationOptions(beam_size=6, num_hypotheses=6),
            "details": pb.Details(top_tokens=20),
        }
        model.limits.answer_bytes = 2**31 - 1
        search, details = await model.read_options(wide["options"], wide["details"])
        size = model.sizes.check(details, search, 3)
        model.limits.answer_bytes = int(2.5 * size)
        call = server.stub.GenerateMany(iter([items(*(item(str(number), **wide) for number in range(6)))]))
        await engines.until(running=2)
        await asyncio.sleep(0.05)
        assert len(engines.accepted) == 2, "a third may need more bytes than are left"
        for number in range(6):
            engines.running[0].finish()
            await until_async(lambda done=number + 1: len(engines.accepted) == min(6, done + 2))  # type: ignore[misc]
        assert len(await answered(call)) == 6


async def test_calls_share_the_rows_and_take_no_room_from_single_calls() -> None:
    async with serve_pool(2, queue_size=4) as (server, pool, runtime):
        large = server.stub.GenerateMany(iter([items(*(item(str(number)) for number in range(500)))]))
        assert pool.batch_window == 2
        await until_async(lambda: waiting(pool) + len(runtime.encoded) == 2)
        singles = [server.stub.Generate(pb.GenerateRequest(input=pb.Input(text="ab"))) for _ in range(4)]
        await until_async(lambda: waiting(pool) + len(runtime.encoded) == 6)
        small = server.stub.GenerateMany(iter([items(*map(item, "abc"))]))
        await until_async(lambda: waiting(pool) + len(runtime.encoded) == 8)
        runtime.gate.set()
        assert len(await answered(small)) == 3
        assert not large.done()
        assert [(await single).hypotheses[0].text for single in singles] == ["ba"] * 4
        large.cancel()


async def test_a_full_queue_refuses_an_item_with_a_delay_and_not_the_call() -> None:
    engines = FakeEngines(automatic=False, room=1)
    async with serve_fake(engines) as server:
        single = server.stub.Generate(pb.GenerateRequest(input=pb.Input(text="ab")))
        await engines.until(running=1)
        call = server.stub.GenerateMany()
        await call.write(items(item("a")))
        [answer] = (await call.read()).answers
        assert answer.error.code == code_pb2.RESOURCE_EXHAUSTED
        delay = error_details_pb2.RetryInfo()
        assert answer.error.details[0].Unpack(delay)
        assert delay.retry_delay.ToMilliseconds() == 250
        assert server.metric("dragoman_rejections_total", reason="queue_full") == 1
        engines.running[0].finish()
        await single
        engines.automatic = True
        await call.write(items(item("a")))
        assert (await call.read()).answers[0].response.hypotheses[0].text == "ba"
        call.cancel()


async def test_more_calls_than_start_items_in_time_have_their_items_refused() -> None:
    async with serve_pool(1) as (server, pool, runtime):
        calls = []
        for _ in range(16):
            calls.append(server.stub.GenerateMany())
            await calls[-1].write(items(item("a"), item("b")))
        await until_async(lambda: waiting(pool) == 31)
        late = server.stub.GenerateMany()
        await late.write(items(item("a")))
        assert (await late.read()).answers[0].error.code == code_pb2.RESOURCE_EXHAUSTED
        idle = server.stub.GenerateMany()  # takes nobody's place
        await idle.write(items())
        calls[0].cancel()
        await until_async(lambda: waiting(pool) <= 30)
        await late.write(items(item("a")))
        runtime.gate.set()
        assert (await late.read()).answers[0].response.hypotheses[0].text == "ba"
        for call in (*calls, late, idle):
            call.cancel()
