"""GenerateMany: every item has its own answer."""

import asyncio
from typing import Any, cast

import grpc
import pytest
from google.rpc import code_pb2

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.api.many import ID_CHARACTERS, MESSAGE_BYTES, ManyCall
from dragoman_server.api.many_versions import KNOWN_OPTIONS
from dragoman_server.core.errors import EngineUnavailableError
from dragoman_server.core.requests import Priority
from dragoman_server.messages.served_model import ServedModel
from tests.support.fake_engines import MODEL, FakeEngines, FakeServer, serve_fake
from tests.support.many_calls import METHOD, answered, ask, field_of, item, items
from tests.support.refusals import refused, violation
from tests.support.waiting import until_async


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


async def test_a_version_is_kept_open_while_it_has_items_and_no_longer() -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        before = server.registry.find("")
        call = server.stub.GenerateMany()
        await call.write(items(item("a")))
        await engines.until(running=1)
        assert before.calls == 1
        server.registry.serve(before.model)
        engines.running[0].finish()
        await call.read()
        assert before.calls == 0
        await call.write(items(item("b")))
        await engines.until(running=1)
        [many] = cast(set[ManyCall], server.service.streams._streams)
        assert list(many._versions) == [server.registry.find("")]
        call.cancel()


async def test_only_some_options_are_remembered(server: FakeServer) -> None:
    call = server.stub.GenerateMany()
    count = 2 * KNOWN_OPTIONS
    options = [pb.GenerationOptions(sample=True, seed=seed) for seed in range(count)]
    await call.write(items(*(item(str(option.seed), options=option) for option in options)))
    found = 0
    while found < count:
        found += len((await call.read()).answers)
    [many] = cast(set[ManyCall], server.service.streams._streams)
    [version] = many._versions.values()
    assert 0 < len(version._known) <= KNOWN_OPTIONS
    call.cancel()


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (b"\xff\xff", None),
        (
            items(defaults=pb.GenerateRequest(input=pb.Input(text="a"))),
            ("defaults.input", "must not be set: each item has its own"),
        ),
        (items(*[pb.ManyItem()] * 10_001), ("items", "has 10001 elements, but a message may have at most 10000")),
        (items(cancel=["a"] * 10_001), ("cancel", "has 10001 elements, but a message may have at most 10000")),
    ],
    ids=["no message", "input of all", "items", "cancellations"],
)
async def test_a_message_that_is_wrong_as_a_whole_ends_the_call_after_the_answers(
    wrong: bytes | pb.GenerateManyRequest, problem: tuple[str, str] | None
) -> None:
    engines = FakeEngines(automatic=False)
    async with serve_fake(engines) as server:
        raw: Any = server.channel.stream_stream(f"/{METHOD}")
        call = raw()
        await call.write(items(item("a")).SerializeToString())
        await engines.until(running=1)
        await call.write(wrong if isinstance(wrong, bytes) else wrong.SerializeToString())
        await asyncio.sleep(0.05)
        engines.running[0].finish()
        message = pb.GenerateManyResponse.FromString(await call.read())
        assert message.answers[0].response.hypotheses[0].text == "ba"
        error = await refused(call)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert problem is None or violation(error) == problem


async def test_the_items_of_an_empty_call_are_none(server: FakeServer) -> None:
    assert await ask(server) == {}
    assert await ask(server, items()) == {}
    await until_async(lambda: server.metric("dragoman_requests_total", method=METHOD, code="OK") == 2)
