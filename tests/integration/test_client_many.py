"""generate_many of both clients against a scripted gRPC server."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from dragoman import (
    AsyncClient,
    Client,
    GenerateOptions,
    InvalidArgumentError,
    Result,
    UnauthenticatedError,
    calls,
)
from tests.support.scripted_server import UNAVAILABLE, Fail, ScriptedServer, Slow
from tests.support.waiting import until


@pytest.fixture(params=[True, False], ids=["now", "older server"])
def capitals(request: pytest.FixtureRequest, scripted: ScriptedServer) -> ScriptedServer:
    """The scripted server, once with GenerateMany and once without."""
    scripted.many = request.param
    return scripted


def test_many_have_outcomes_in_order(client: Any, capitals: ScriptedServer) -> None:
    texts = [f"slow{index}" if index % 7 == 0 else f"text{index}" for index in range(200)]
    answers = list(client.generate_many(iter(texts)))
    assert [each.text for each in answers] == [text.upper() for text in texts]
    capitals.script.extend([UNAVAILABLE, UNAVAILABLE])
    a, bad, odd, b = client.generate_many(["a", "bad", "\ud800", "b"])
    assert (a.text, b.text) == ("A", "B")
    assert (bad.index, str(bad.error), odd.index) == (1, "input.text is bad", 2)
    assert list(client.generate_many([])) == []


def test_many_sources_share_a_call(client: Any, scripted: ScriptedServer) -> None:
    options: GenerateOptions = {"model": "m", "max_new_tokens": 2, "tokens": True}
    answers = list(client.generate_many([f"text{index}" for index in range(60)], **options))
    assert {answer.text for answer in answers} == {"TE"}
    assert scripted.many_calls == 1
    assert {method for method, _ in scripted.calls} == {"Generate"}
    asked = calls.generate("text7", priority="batch", **options).request
    assert asked in [request for _, request in scripted.calls]
    scripted.many_calls, scripted.capacity = 0, 1000
    assert len(list(client.generate_many(["slow"] * 600, max_in_flight=300))) == 600
    assert 2 <= scripted.many_calls <= 5, "64 sources share one"


@pytest.mark.parametrize("code", ["UNAVAILABLE", "INTERNAL", "UNKNOWN"])
def test_sources_without_an_answer_are_sent_again_if_their_call_breaks(
    client: Any, scripted: ScriptedServer, code: str
) -> None:
    for after in (0, 1, 7):
        scripted.breaks.append(Fail(grpc.StatusCode[code], "broken", after=after))
    texts = [f"text{index}" for index in range(100)]
    assert [answer.text for answer in client.generate_many(texts)] == [text.upper() for text in texts]
    assert not scripted.breaks or code != "UNAVAILABLE"


def test_a_call_that_is_refused_is_tried_again_after_the_delay(client: Any, scripted: ScriptedServer) -> None:
    full = Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "this API key is limited to 1 call at once", retry_after=0.05)
    scripted.breaks.extend([full, full])
    assert [answer.text for answer in client.generate_many(["a", "b"])] == ["A", "B"]
    # grpc.aio loses the status if the call ends while its first message is sent; then sources are sent alone.
    assert scripted.many_calls == 3 or not isinstance(client, Client)
    unknown = Fail(grpc.StatusCode.UNAUTHENTICATED, "unknown API key")
    scripted.breaks.clear()
    scripted.breaks.append(unknown)
    scripted.script.extend([unknown, unknown])
    with pytest.raises(UnauthenticatedError, match="unknown API key"):
        list(client.generate_many(["a", "b"]))


def test_each_of_many_sources_has_the_timeout(client: Any, scripted: ScriptedServer) -> None:
    scripted.script.append(Slow(3))
    late, *others = client.generate_many(["a", "b", "c"], timeout=0.5)
    assert (late.index, late.error.code, str(late.error)) == (
        *(0, "DEADLINE_EXCEEDED"),
        "the timeout passed before the answer arrived",
    )
    assert [answer.text for answer in others] == ["B", "C"]
    assert len(scripted.cancelled) <= 1, "the call may have ended before"


def test_a_source_over_the_message_limit_fails_alone(client: Any, scripted: ScriptedServer) -> None:
    large = "x" * 5 * 2**20
    before, refused, after = client.generate_many(["a", large, "b"])
    assert (before.text, refused.error.code, after.text) == ("A", "RESOURCE_EXHAUSTED", "B")
    assert scripted.many_calls == 1


def test_many_adapt_to_the_capacity_of_the_server(client: Any, capitals: ScriptedServer) -> None:
    scripted = capitals
    scripted.capacity = 3
    texts = [f"slow{index}" for index in range(60)]
    answers = list(client.generate_many(texts))
    assert [each.text for each in answers] == [text.upper() for text in texts]
    assert scripted.busiest == 3
    assert scripted.refused > 0
    scripted.busiest = 0
    list(client.generate_many(texts[:20], max_in_flight=2))
    assert scripted.busiest <= 2


def test_many_end_at_an_error_that_concerns_them_all(client: Any, capitals: ScriptedServer) -> None:
    scripted = capitals
    wrong = Fail(grpc.StatusCode.INVALID_ARGUMENT, "must be 1 to 47, got 0", field="options.max_new_tokens")
    scripted.script.extend([wrong] * 200)
    with pytest.raises(InvalidArgumentError, match=r"options\.max_new_tokens"):
        list(client.generate_many(["a"] * 100))
    with pytest.raises(TypeError):
        list(client.generate_many(["a", None]))


def test_closing_the_iterator_of_many_cancels_the_rest(capitals: ScriptedServer) -> None:
    read = []

    def words() -> Iterator[str]:
        for index in range(10_000):
            read.append(index)
            yield f"slow{index}"

    with Client(capitals.address) as client:
        answers = client.generate_many(words())
        assert isinstance(next(answers), Result)
        answers.close()  # type: ignore[attr-defined]
    assert len(read) < 300
    until(lambda: all(thread.name != "generate-many" for thread in threading.enumerate()))


async def test_an_answer_arrives_before_the_next_source(capitals: ScriptedServer) -> None:
    sources: asyncio.Queue[str | None] = asyncio.Queue()

    async def read() -> Any:
        while (text := await sources.get()) is not None:
            yield text

    async with AsyncClient(capitals.address) as client:
        answers = client.generate_many(read())
        for text in ("a", "b"):
            sources.put_nowait(text)
            answer = await asyncio.wait_for(anext(answers), 5)
            assert isinstance(answer, Result)
            assert answer.text == text.upper()
        sources.put_nowait(None)
        with pytest.raises(StopAsyncIteration):
            await anext(answers)
