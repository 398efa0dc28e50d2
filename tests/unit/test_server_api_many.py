"""GenerateMany: items of one call, each with its own answer, in a bounded window."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2

from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from dragoman_server.api.many import ID_CHARACTERS, MESSAGE_BYTES
from dragoman_server.core.errors import EngineUnavailableError
from dragoman_server.core.requests import Priority
from dragoman_server.engine.pool import EnginePool
from dragoman_server.messages.served_model import ServedModel
from tests.support.counting_engines import CountingRuntime, at_rest, pool_of
from tests.support.fake_engines import MODEL, FakeEngines, FakeServer, serve_fake
from tests.support.refusals import refused, retry_seconds, violation
from tests.support.waiting import until_async

METHOD = "dragoman.v1.GenerationService/GenerateMany"
WINDOW = 8  # of the fake engines


def item(id_: str, text: str = "ab", **request: Any) -> pb.ManyItem:
    return pb.ManyItem(id=id_, request=pb.GenerateRequest(input=pb.Input(text=text), **request))


def items(*of: pb.ManyItem, **more: Any) -> pb.GenerateManyRequest:
    return pb.GenerateManyRequest(items=of, **more)


async def answered(call: Any) -> list[pb.ManyAnswer]:
    """Reads all answers that are left."""
    answers: list[pb.ManyAnswer] = []
    while (message := await call.read()) is not grpc.aio.EOF:
        answers += message.answers
    return answers


async def ask(server: FakeServer, *messages: pb.GenerateManyRequest, **more: Any) -> dict[str, pb.ManyAnswer]:
    """Sends messages and the end of the requests; returns the answers by id, of which no two may be equal."""
    answers = await answered(server.stub.GenerateMany(iter(messages), **more))
    assert len({answer.id for answer in answers}) == len(answers)
    return {answer.id: answer for answer in answers}


def field_of(answer: pb.ManyAnswer) -> str:
    """Returns the invalid field that an answer names."""
    assert answer.error.code == code_pb2.INVALID_ARGUMENT
    details = error_details_pb2.BadRequest()
    assert answer.error.details[0].Unpack(details)
    return str(details.field_violations[0].field)


@asynccontextmanager
async def serve_pool(
    rows: int, queue_size: int = 1000
) -> AsyncIterator[tuple[FakeServer, EnginePool, CountingRuntime]]:
    """A server over one real engine, which is in an endless step until its gate opens."""
    runtime = CountingRuntime(rows)
    runtime.gate.clear()
    async with pool_of(runtime, queue_size=queue_size, max_rows=rows) as pool, serve_fake(pool=pool) as server:
        yield server, pool, runtime
        runtime.gate.set()
        await until_async(lambda: at_rest(pool))


def waiting(pool: EnginePool) -> int:
    assert pool._queue is not None
    return pool._queue.scheduler.waiting


async def test_every_item_has_the_response_that_generate_gives(server: FakeServer) -> None:
    requests = {
        "plain": pb.GenerateRequest(input=pb.Input(text="drawer")),
        "ids": pb.GenerateRequest(input=pb.Input(token_ids=pb.TokenIds(ids=[4, 5, 3]))),
        "beam": pb.GenerateRequest(
            input=pb.Input(text="stop"), options=pb.GenerationOptions(beam_size=4, num_hypotheses=3)
        ),
        "details": pb.GenerateRequest(input=pb.Input(text="abc"), details=pb.Details(log_probabilities=True)),
        "attention": pb.GenerateRequest(input=pb.Input(text="abc"), details=pb.Details(attention=True, alignment=True)),
        "named": pb.GenerateRequest(input=pb.Input(text="ab"), model=f"{MODEL}@1"),
        "seeded": pb.GenerateRequest(input=pb.Input(text="ab"), options=pb.GenerationOptions(sample=True, seed=7)),
    }
    answers = await ask(server, items(*(pb.ManyItem(id=id_, request=request) for id_, request in requests.items())))
    assert answers.keys() == requests.keys()
    for id_, request in requests.items():
        assert answers[id_].response == await server.stub.Generate(request), id_


async def test_items_use_the_defaults_unless_they_set_something_themselves(server: FakeServer) -> None:
    defaults = pb.GenerateRequest(
        options=pb.GenerationOptions(max_new_tokens=2),
        details=pb.Details(tokens=True),
        priority=pb.PRIORITY_INTERACTIVE,
    )
    own = pb.GenerationOptions(min_new_tokens=1)
    answers = await ask(
        server,
        items(item("before", "abcd")),
        items(item("shared", "abcd"), item("own", "abcd", options=own), defaults=defaults),
        items(item("later", "abcd", details=pb.Details(), priority=pb.PRIORITY_BATCH)),
        items(item("replaced", "abcd"), defaults=pb.GenerateRequest(options=pb.GenerationOptions(max_new_tokens=1))),
    )
    found = {id_: answer.response.hypotheses[0] for id_, answer in answers.items()}
    assert {id_: (found[id_].text, len(found[id_].tokens)) for id_ in found} == {
        "before": ("dcba", 0),
        "shared": ("dc", 2),
        "own": ("dcba", 4),
        "later": ("dc", 0),
        "replaced": ("d", 0),
    }
    told = [generation.request.priority for generation in server.engines.accepted]
    batch, interactive = Priority.BATCH, Priority.INTERACTIVE
    assert told == [batch, interactive, interactive, batch, batch]


async def test_samples_have_seeds_of_their_own_unless_the_options_have_one(server: FakeServer) -> None:
    for options, seeds in ((pb.GenerationOptions(sample=True), 4), (pb.GenerationOptions(sample=True, seed=5), 1)):
        answers = await ask(server, items(*map(item, "abcd"), defaults=pb.GenerateRequest(options=options)))
        assert len({answer.response.seed for answer in answers.values()}) == seeds


@pytest.mark.parametrize("together", [True, False], ids=["one message", "a message each"])
async def test_bad_items_are_answered_and_the_others_too(server: FakeServer, together: bool) -> None:
    bad = {
        "empty": (item("empty", ""), "input.text"),
        "long": (item("long", "x" * 50), "input.text"),
        "none": (pb.ManyItem(id="none"), "input"),
        "option": (item("option", options=pb.GenerationOptions(max_new_tokens=0)), "options.max_new_tokens"),
        "limit": (item("limit", options=pb.GenerationOptions(time_limit={"nanos": -1})), "options.time_limit"),
        "detail": (item("detail", details=pb.Details(top_tokens=99)), "details.top_tokens"),
        "priority": (item("priority", priority=9), "priority"),
        "language": (
            pb.ManyItem(id="language", request=pb.GenerateRequest(input=pb.Input(text="a", source_language="de"))),
            "input.source_language",
        ),
        "": (item(""), "id"),
        "x" * ID_CHARACTERS: (item("x" * (ID_CHARACTERS + 1)), "id"),
    }
    good = [item(f"good{number}") for number in range(20)]
    sent = [*good[:10], *(each for each, _ in bad.values()), item("model", model="other"), *good[10:]]
    answers = await ask(server, *([items(*sent)] if together else map(items, sent)))
    for id_, (_, field) in bad.items():
        assert field_of(answers.pop(id_)) == field
    assert answers.pop("model").error.code == code_pb2.NOT_FOUND
    assert {id_: answer.response.hypotheses[0].text for id_, answer in answers.items()} == {g.id: "ba" for g in good}
    assert server.metric("dragoman_rejections_total", reason="invalid") == len(bad)
    assert server.metric("dragoman_items_total", method=METHOD, code="OK") == 20
    assert server.metric("dragoman_items_total", method=METHOD, code="INVALID_ARGUMENT") == len(bad)
    assert server.metric("dragoman_items_total", method=METHOD, code="NOT_FOUND") == 1
    await until_async(lambda: server.metric("dragoman_requests_total", method=METHOD, code="OK") == 1)


async def test_an_id_is_refused_only_while_an_item_with_it_is_not_answered() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        call = server.stub.GenerateMany()
        await call.write(items(item("a", "abc"), item("a", "ab")))
        [duplicate] = (await call.read()).answers
        assert (duplicate.id, field_of(duplicate)) == ("a", "id")
        assert [generation.request.source_ids[0] for generation in engines.running] == [4]
        engines.running[0].finish()
        [first] = (await call.read()).answers
        assert first.response.hypotheses[0].text == "cba"
        await call.write(items(item("a", "ab")))
        await engines.until(running=1)
        engines.running[0].finish()
        assert (await call.read()).answers[0].response.hypotheses[0].text == "ba"
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_answers_come_as_they_are_ready_and_together_if_they_are_at_once() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        call = server.stub.GenerateMany()
        await call.write(items(item("a"), item("b"), item("c")))
        await engines.until(running=3)
        engines.running[1].finish()
        assert [answer.id for answer in (await call.read()).answers] == ["b"]
        for generation in reversed(engines.running.copy()):
            generation.finish()
        assert [answer.id for answer in (await call.read()).answers] == ["c", "a"]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


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


async def test_a_large_answer_has_a_message_of_its_own() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        model: ServedModel = server.registry.find("").model
        write = model.write_small

        def padded(request: Any, finished: Any, details: Any) -> Any:
            response = write(request, finished, details)
            assert response is not None
            response.hypotheses[0].text *= MESSAGE_BYTES
            return response

        model.write_small = padded  # type: ignore[method-assign]
        call = server.stub.GenerateMany(iter([items(item("a"), item("b"), item("c", ""))]))
        await engines.until(running=2)
        for generation in engines.running.copy():
            generation.finish()
        assert sorted([[answer.id for answer in message.answers] async for message in call]) == [["a"], ["b"], ["c"]]


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


async def test_a_failed_engine_fails_items_and_not_the_call() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        call = server.stub.GenerateMany()
        await call.write(items(item("a"), item("b")))
        await engines.until(running=2)
        engines.running[0].finish(EngineUnavailableError("the worker process that computed this has ended"))
        [lost] = (await call.read()).answers
        assert (lost.id, lost.error.code) == ("a", code_pb2.UNAVAILABLE)
        model: ServedModel = server.registry.find("").model
        write, model.write_small = model.write_small, lambda *_: 1 / 0  # type: ignore[assignment,method-assign]
        engines.running[0].finish()
        [broken] = (await call.read()).answers
        assert (broken.id, broken.error.code) == ("b", code_pb2.INTERNAL)
        model.write_small = write  # type: ignore[method-assign]
        engines.stopped = True
        await call.write(items(item("c")))
        assert (await call.read()).answers[0].error.code == code_pb2.UNAVAILABLE
        engines.stopped, engines.automatic = False, True
        await call.write(items(item("d")))
        await call.done_writing()
        assert [answer.id for answer in await answered(call)] == ["d"]


async def test_a_draining_server_answers_what_it_has_taken() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        done, open_ = server.stub.GenerateMany(), server.stub.GenerateMany()
        await done.write(items(item("a")))
        await done.done_writing()
        await open_.write(items(*(item(str(number)) for number in range(20))))
        await engines.until(running=1 + WINDOW)
        await until_async(lambda: server.service._many and all(call._items for call in server.service._many))
        await asyncio.sleep(0.05)  # the end of the first call's requests is read
        server.registry.refuse("the server is shutting down")
        server.service.drain()
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
        assert not server.service._many


async def test_items_after_a_change_of_the_version_use_the_new_one(server: FakeServer) -> None:
    call = server.stub.GenerateMany()
    await call.write(items(item("a")))
    assert (await call.read()).answers[0].response.model_version == "1"
    before = server.registry.find("")
    server.registry.refuse("no model is loaded")
    await call.write(items(item("b")))
    assert (await call.read()).answers[0].error.code == code_pb2.UNAVAILABLE
    server.registry.serve(before.model)
    assert server.registry.find("") is not before
    await call.write(items(item("c")))
    assert (await call.read()).answers[0].response.hypotheses[0].text == "ba"
    assert before.calls == 0
    await asyncio.wait_for(before.idle(), 10)
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_a_message_that_is_wrong_as_a_whole_ends_the_call_after_the_answers() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        raw: Any = server.channel.stream_stream(f"/{METHOD}")
        for wrong in (b"\xff\xff", items(defaults=pb.GenerateRequest(input=pb.Input(text="a"))).SerializeToString()):
            call = raw()
            await call.write(items(item("a")).SerializeToString())
            await engines.until(running=1)
            await call.write(wrong)
            await asyncio.sleep(0.05)
            engines.running[0].finish()
            message = pb.GenerateManyResponse.FromString(await call.read())
            assert message.answers[0].response.hypotheses[0].text == "ba"
            error = await refused(call)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert violation(error) == ("defaults.input", "must not be set: each item has its own")


async def test_the_items_of_an_empty_call_are_none(server: FakeServer) -> None:
    assert await ask(server) == {}
    assert await ask(server, items()) == {}
    await until_async(lambda: server.metric("dragoman_requests_total", method=METHOD, code="OK") == 2)
