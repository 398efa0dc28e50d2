"""Single calls, batches and streams of both clients against a scripted gRPC server."""

import asyncio
import contextlib
import gc
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from dragoman import (
    AsyncClient,
    BeamProgress,
    CallCancelledError,
    Client,
    DeadlineExceededError,
    FinishReason,
    HealthStatus,
    Hypothesis,
    InvalidArgumentError,
    ItemError,
    NotFoundError,
    Piece,
    ResourceExhaustedError,
    Result,
    ServerError,
    Token,
    UnavailableError,
)
from tests.support.blocking_client import QUICK
from tests.support.scripted_server import UNAVAILABLE, Fail, ScriptedServer, Slow
from tests.support.waiting import PATIENCE, until_async

ENDLESS = "x" * 100_000
FULL = Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", retry_after=0.1)


def test_single_calls(client: Any, scripted: ScriptedServer) -> None:
    best = Hypothesis("ABC", FinishReason.EOS, target_tokens=3)
    assert client.generate("abc") == Result((best,), source_tokens=4, model="capitals")
    detailed = client.generate([97], log_probabilities=True)
    assert (detailed.tokens, detailed.log_probability) == ((Token(65, "A", -0.5),), -0.5)
    cut = client.generate("abc", max_new_tokens=1, model="m")
    assert (cut.text, cut.finish_reason) == ("A", FinishReason.LENGTH)
    assert scripted.calls[-1][1].model == "m"
    assert client.tokenize("ab") == [Token(97, "a"), Token(98, "b")]
    assert client.detokenize([97, 98]) == "ab"
    (model,) = client.models()
    assert model == client.model() == client.model("capitals")
    assert (model.name, model.examples) == ("capitals", ("dragoman",))
    assert model.quality == {"test sequence error rate (%)": 20.5}
    with pytest.raises(NotFoundError, match="there is no model 'other'"):
        client.model("other")
    assert (client.health(), client.health("no.such")) == (HealthStatus.SERVING, HealthStatus.SERVICE_UNKNOWN)
    scripted.serving(False)
    assert client.health() is HealthStatus.NOT_SERVING


def test_several_answers_with_all_details(client: Any) -> None:
    answer = client.generate("ab", num_hypotheses=3, beam_size=3, prefix="x", top_tokens=2, alignment=True)
    assert [each.text for each in answer.hypotheses] == ["xAB", "xAB!", "xAB!!"]
    assert (answer.text, answer.score, answer.log_probability) == ("xAB", -0.5, -1.0)
    assert answer.tokens[0] == Token(ord("x"), "x")
    assert answer.tokens[1].alternatives == (Token(65, "A", -0.5), Token(66, "B", -1.5))
    assert answer.alignment == (0, 1, 2)
    assert [each.text for each in answer.source] == ["a", "b", "$"]
    assert (answer.attention, answer.seed) == (None, None)
    assert client.generate("ab", sample=True).seed == 2**64 - 1
    assert client.generate("ab", sample=True, seed=5).seed == 5


def test_streams_of_greedy_search_samples_and_beams(client: Any) -> None:
    stream = client.generate_stream("abc")
    assert [piece.text for piece in stream] == ["A", "B", "C", ""]
    assert stream.result() == client.generate("abc")
    assert client.generate_stream("xyz").result().text == "XYZ"
    stream = client.generate_stream("ab", num_hypotheses=2, sample=True)
    texts = ["", ""]
    for piece in stream:
        texts[piece.hypothesis] += piece.text
    assert texts == [each.text for each in stream.result().hypotheses] == ["AB", "AB!"]
    *progress, last = client.generate_stream("ab", beam_size=2)
    assert progress == [Piece("", progress=BeamProgress(1, 2, 0)), Piece("", progress=BeamProgress(2, 2, 1))]
    assert last == Piece("AB")


def test_given_targets_are_scored(client: Any, scripted: ScriptedServer) -> None:
    found = client.score("ab", ["abc", [65], ""], alignment=True, attention=True, model="m")
    first, second, third = found.scores
    assert (first.log_probability, first.alignment) == (-1.5, (0, 1, 2, 2))
    assert second.tokens == (Token(65, "A", 0.0), Token(ord("$"), "$", -0.25))
    assert third.attention.shape == (2, 3, 1, 3)
    assert third.attention.matrix(1, 2) == [[0.0, 0.0, 1.0]]
    assert ([each.text for each in found.source], found.model) == (["a", "b", "$"], "capitals")
    assert scripted.calls[-1][1].model == "m"
    assert client.score("ab", ["abc"]).scores[0].attention is None
    with pytest.raises(TypeError, match="targets: expected several texts"):
        client.score("ab", "abc")


def test_attention_of_54_megabytes_arrives(client: Any) -> None:
    attention = client.generate("x" * 1500, attention=True).attention
    assert attention.shape == (2, 3, 1501, 1501)
    assert attention.weights[-1501:].tolist() == [0.0, 0.0, 1.0] + [0.0] * 1498


def texts(outcomes: list[Result | ItemError]) -> list[str]:
    return [each.text if isinstance(each, Result) else str(each) for each in outcomes]


def test_lost_items_of_a_batch_are_sent_again_with_the_same_options(client: Any, scripted: ScriptedServer) -> None:
    scripted.losses = 2
    outcomes = client.generate_batch(["lost a", "b", "bad", "\ud800", "lost c"], sample=True, seed=7)
    assert texts(outcomes)[:3] == ["LOST A", "B", "input 2: inputs[2].text is bad"]
    assert (outcomes[3].index, outcomes[4].text) == (3, "LOST C")
    sent = [request for _, request in scripted.calls]
    expected = [["lost a", "b", "bad", "lost c"], ["lost a", "lost c"], ["lost a", "lost c"]]
    assert [[each.text for each in request.inputs] for request in sent] == expected
    assert all(request.options == sent[0].options for request in sent)
    assert client.generate_batch([]) == []
    assert len(scripted.calls) == len(sent)


def test_items_lost_at_every_attempt_fail_and_the_rest_is_kept(client: Any, scripted: ScriptedServer) -> None:
    scripted.losses = 1000
    outcomes = client.generate_batch(["a", "lost b"])
    assert texts(outcomes) == ["A", "input 1: a worker died"]
    assert isinstance(outcomes[1], ItemError)
    assert outcomes[1].code == "UNAVAILABLE"
    assert len(scripted.calls) == QUICK.attempts
    scripted.losses = 1
    scripted.script.extend([Slow(0), Fail(grpc.StatusCode.INTERNAL, "went wrong")])
    assert texts(client.generate_batch(["a", "lost b"])) == ["A", "input 1: went wrong"]


def test_requests_that_would_fail_again_are_not_retried(client: Any, scripted: ScriptedServer) -> None:
    for call in (client.generate, client.generate_stream, client.tokenize):
        with pytest.raises(ValueError, match=r"lone surrogate U\+D800 at position 1"):
            call("a\ud800")
    with pytest.raises(ResourceExhaustedError, match="larger than max"):  # gRPC refuses it on the server's side
        client.generate("x" * 5_000_000)
    assert scripted.calls == []
    with pytest.raises(InvalidArgumentError, match=r"^input\.text is bad$") as caught:
        client.generate("bad")
    assert caught.value.violations[0].field == "input.text"
    assert len(scripted.calls) == 1


def test_unavailable_is_retried_a_bounded_number_of_times(client: Any, scripted: ScriptedServer) -> None:
    for call in (client.generate, lambda text: client.generate_stream(text).result()):
        scripted.script.extend([UNAVAILABLE, UNAVAILABLE])
        assert call("a").text == "A"
    scripted.script.extend([UNAVAILABLE, UNAVAILABLE])
    assert client.generate_batch(["a"])[0].text == "A"
    assert len(scripted.calls) == 9
    scripted.script.extend([UNAVAILABLE] * 10)
    with pytest.raises(UnavailableError, match="the server is draining"):
        client.generate("a")
    assert len(scripted.calls) == 9 + 4


def test_the_server_s_delay_and_the_timeout_hold(client: Any, scripted: ScriptedServer) -> None:
    scripted.script.extend([FULL, FULL])
    started = time.monotonic()
    assert client.generate("a").text == "A"
    assert time.monotonic() - started >= 0.2
    scripted.script.append(Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", retry_after=300))
    started = time.monotonic()
    with pytest.raises(ResourceExhaustedError, match="the queue is full") as caught:
        client.generate("a", timeout=100)
    assert caught.value.retry_after == 300
    assert time.monotonic() - started < 50
    scripted.script.append(Slow(2.0))
    with pytest.raises(DeadlineExceededError, match="the timeout passed"):
        client.generate("a", timeout=1)
    assert scripted.timeouts[-1] is not None
    assert scripted.timeouts[-1] < 1.5


@pytest.mark.parametrize(
    ("broken", "error", "message"),
    [(True, UnavailableError, "the server went away"), (False, ServerError, "ended without its last message")],
)
def test_an_incomplete_stream_is_an_error_and_not_started_over(
    client: Any, scripted: ScriptedServer, broken: bool, error: type[Exception], message: str
) -> None:
    scripted.finals = False
    if broken:
        scripted.script.append(Fail(grpc.StatusCode.UNAVAILABLE, message, after=2))
    stream = client.generate_stream("ab" if not broken else "abcd")
    assert [next(stream).text, next(stream).text] == ["A", "B"]
    with pytest.raises(error, match=message):
        next(stream)
    assert len(scripted.calls) == 1


def test_a_cancelled_or_abandoned_stream_ends_on_the_server(client: Any, scripted: ScriptedServer) -> None:
    stream = client.generate_stream(ENDLESS)
    next(stream)
    assert not scripted.stream_ended.is_set()
    stream.cancel()
    assert scripted.stream_ended.wait(PATIENCE)
    with pytest.raises(CallCancelledError):
        for _ in stream:
            pass
    scripted.stream_ended.clear()
    if isinstance(client, Client):
        for _ in client.generate_stream(ENDLESS):
            break
        assert scripted.stream_ended.wait(PATIENCE)
        assert scripted.streamed < 2 * len(ENDLESS)


def test_a_closed_port_refuses_the_connection(connect: Callable[..., Any]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(UnavailableError) as caught:
            connect(address).generate("a")
        with pytest.raises(UnavailableError):
            connect(address).health()
    assert str(caught.value) == f"no server can be reached at {address} (connection refused)"


def test_calls_take_turns_among_all_addresses(connect: Callable[..., Any]) -> None:
    with ScriptedServer() as one, ScriptedServer() as other:
        client = connect(f"{one.address},{other.address}")
        for _ in range(50):
            client.generate("a")
        assert min(len(one.calls), len(other.calls)) >= 10


async def test_a_cancelled_task_is_cancelled(scripted: ScriptedServer) -> None:
    scripted.script.append(Slow(0.5))
    async with AsyncClient(scripted.address) as client:
        task = asyncio.ensure_future(client.generate_stream("a").result())
        await until_async(lambda: scripted.calls)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.generate("b")).text == "B"


async def leave_by_break(client: AsyncClient) -> None:
    async for _ in client.generate_stream(ENDLESS):
        break


async def leave_by_error(client: AsyncClient) -> None:
    with contextlib.suppress(KeyError):
        async for piece in client.generate_stream(ENDLESS):
            raise KeyError(piece.text)


async def leave_by_closing(client: AsyncClient) -> None:
    stream = client.generate_stream(ENDLESS)
    async with contextlib.aclosing(stream):
        await anext(stream)


async def leave_to_the_collector(client: AsyncClient) -> None:
    """In a cycle that another thread collects."""
    holder: list[Any] = [client.generate_stream(ENDLESS)]
    await anext(holder[0])
    holder.append(holder)
    del holder
    await asyncio.to_thread(gc.collect)


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_error, leave_by_closing, leave_to_the_collector])
async def test_an_abandoned_stream_ends_on_the_server(scripted: ScriptedServer, leave: Any) -> None:
    async with AsyncClient(scripted.address) as client:
        await leave(client)
        await until_async(scripted.stream_ended.is_set)
        assert scripted.streamed < len(ENDLESS)
        assert (await client.generate("a")).text == "A", "others go on"


def test_a_stream_may_outlive_its_event_loop(scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)

    async def start() -> Any:
        stream = AsyncClient(scripted.address).generate_stream(ENDLESS)
        await anext(stream)
        return stream

    asyncio.run(start())
    gc.collect()
    assert unraisable == []


async def test_a_dropped_failure_keeps_no_connection_open(scripted: ScriptedServer) -> None:
    """A reference cycle would keep it open until the next garbage collection."""

    def failures() -> list[InvalidArgumentError]:
        return [each for each in gc.get_objects() if isinstance(each, InvalidArgumentError)]

    gc.collect()
    gc.disable()
    others = failures()  # of other tests
    try:
        async with AsyncClient(scripted.address) as client:
            for call in (client.generate("bad"), client.generate_stream("bad").result()):
                with contextlib.suppress(InvalidArgumentError):
                    await call
        await until_async(lambda: all(any(each is other for other in others) for each in failures()))
    finally:
        gc.enable()
