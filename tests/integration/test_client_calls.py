"""Both clients against a real gRPC server that does what the test tells it to."""

import asyncio
import contextlib
import gc
import socket
import sys
import time
from collections.abc import Callable, Iterator
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
    RetryPolicy,
    ServerError,
    Token,
    UnavailableError,
)
from tests.support.scripted_server import UNAVAILABLE, Fail, ScriptedServer, Slow
from tests.support.waiting import PATIENCE, until_async

QUICK = RetryPolicy(attempts=4, initial_delay=0.01, max_delay=0.02)
ENDLESS = "x" * 100_000
FULL = Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", retry_after=0.1)


class BlockingStream:
    """An AsyncGenerationStream for blocking tests."""

    def __init__(self, stream: Any, wait: Callable[[Any], Any]) -> None:
        self._stream = stream
        self._wait = wait

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self._wait(anext(self._stream))
        except StopAsyncIteration:
            raise StopIteration from None

    def result(self) -> Any:
        return self._wait(self._stream.result())

    def cancel(self) -> None:
        self._stream.cancel()


class BlockingAsyncClient:
    """An AsyncClient on a loop of its own, so that one test serves both clients."""

    def __init__(self, address: str, **arguments: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient(address, **arguments)

    def _wait(self, awaitable: Any) -> Any:
        return self._loop.run_until_complete(awaitable)

    def generate_stream(self, *arguments: Any, **options: Any) -> BlockingStream:
        async def start() -> Any:
            return self._client.generate_stream(*arguments, **options)

        return BlockingStream(self._wait(start()), self._wait)

    def generate_many(self, *arguments: Any, **options: Any) -> list[Any]:
        async def collect() -> list[Any]:
            return [each async for each in self._client.generate_many(*arguments, **options)]

        return list(self._wait(collect()))

    def close(self) -> None:
        self._wait(self._client.close())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return lambda *arguments, **options: self._wait(method(*arguments, **options))


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture(params=[Client, BlockingAsyncClient], ids=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    clients = []

    def make(address: str, **arguments: Any) -> Any:
        clients.append(request.param(address, **{"retry": QUICK, "timeout": 20.0} | arguments))
        return clients[-1]

    yield make
    for each in clients:
        each.close()


@pytest.fixture
def client(connect: Callable[..., Any], scripted: ScriptedServer) -> Any:
    return connect(scripted.address)


def test_generate(client: Any, scripted: ScriptedServer) -> None:
    best = Hypothesis("ABC", FinishReason.EOS, target_tokens=3)
    assert client.generate("abc") == Result((best,), source_tokens=4, model="capitals")
    detailed = client.generate([97], log_probabilities=True)
    assert detailed.tokens == (Token(65, "A", -0.5),)
    assert detailed.log_probability == -0.5
    cut = client.generate("abc", max_new_tokens=1, model="m")
    assert (cut.text, cut.finish_reason) == ("A", FinishReason.LENGTH)
    assert scripted.calls[-1][1].model == "m"


def test_the_other_calls(client: Any) -> None:
    assert client.tokenize("ab") == [Token(97, "a"), Token(98, "b")]
    assert client.detokenize([97, 98]) == "ab"
    (model,) = client.models()
    assert model == client.model() == client.model("capitals")
    assert (model.name, model.quality, model.examples) == (
        "capitals",
        {"test sequence error rate (%)": 20.5},
        ("dragoman",),
    )
    with pytest.raises(NotFoundError, match="there is no model 'other'"):
        client.model("other")


def test_a_stream_is_its_pieces_and_a_result(client: Any) -> None:
    stream = client.generate_stream("abc")
    assert [piece.text for piece in stream] == ["A", "B", "C", ""]
    assert stream.result() == client.generate("abc")
    assert client.generate_stream("xyz").result().text == "XYZ"


def test_several_answers_and_all_that_can_be_known_of_them(client: Any) -> None:
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


def test_samples_come_mixed_and_a_beam_search_tells_its_progress(client: Any) -> None:
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


def test_all_attention_of_long_texts_comes_through(client: Any) -> None:
    attention = client.generate("x" * 1500, attention=True).attention
    assert attention.shape == (2, 3, 1501, 1501)  # 54 MB
    assert attention.weights[-1501:].tolist() == [0.0, 0.0, 1.0] + [0.0] * 1498


def test_a_batch_has_an_outcome_for_each_input(client: Any, scripted: ScriptedServer) -> None:
    outcomes = client.generate_batch(["a", "bad", "\ud800", "b"])
    assert [each.text if isinstance(each, Result) else each.index for each in outcomes] == ["A", 1, 2, "B"]
    assert isinstance(outcomes[1], ItemError)
    assert str(outcomes[1].error) == "inputs[1].text is bad"
    calls = len(scripted.calls)
    assert client.generate_batch([]) == []
    assert len(scripted.calls) == calls


def said(outcomes: list[Result | ItemError]) -> list[str]:
    return [each.text if isinstance(each, Result) else str(each) for each in outcomes]


def test_what_a_batch_lost_is_sent_again_with_the_same_options(client: Any, scripted: ScriptedServer) -> None:
    scripted.losses = 2
    outcomes = client.generate_batch(["lost a", "b", "bad", "\ud800", "lost c"], sample=True, seed=7)
    assert said(outcomes)[:3] == ["LOST A", "B", "input 2: inputs[2].text is bad"]
    assert (outcomes[3].index, outcomes[4].text) == (3, "LOST C")
    sent = [request for _, request in scripted.calls]
    expected = [["lost a", "b", "bad", "lost c"], ["lost a", "lost c"], ["lost a", "lost c"]]
    assert [[each.text for each in request.inputs] for request in sent] == expected
    assert all(request.options == sent[0].options for request in sent)


def test_what_a_batch_loses_at_every_attempt_is_told_and_the_rest_kept(client: Any, scripted: ScriptedServer) -> None:
    scripted.losses = 1000
    outcomes = client.generate_batch(["a", "lost b"])
    assert said(outcomes) == ["A", "input 1: a worker died"]
    assert outcomes[1].code == "UNAVAILABLE"
    assert len(scripted.calls) == QUICK.attempts
    scripted.losses = 1
    scripted.script.extend([Slow(0), Fail(grpc.StatusCode.INTERNAL, "went wrong")])
    assert said(client.generate_batch(["a", "lost b"])) == ["A", "input 1: went wrong"]


def test_a_wrong_input_is_named_and_not_sent_again(client: Any, scripted: ScriptedServer) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^input\.text is bad$") as caught:
        client.generate("bad")
    assert caught.value.violations[0].field == "input.text"
    assert len(scripted.calls) == 1


def test_a_lone_surrogate_never_leaves(client: Any, scripted: ScriptedServer) -> None:
    for call in (client.generate, client.generate_stream, client.tokenize):
        with pytest.raises(ValueError, match=r"lone surrogate U\+D800 at position 1"):
            call("a\ud800")
    assert scripted.calls == []


def test_unavailable_twice_then_an_answer(client: Any, scripted: ScriptedServer) -> None:
    for call in (client.generate, lambda text: client.generate_stream(text).result()):
        scripted.script.extend([UNAVAILABLE, UNAVAILABLE])
        assert call("a").text == "A"
    scripted.script.extend([UNAVAILABLE, UNAVAILABLE])
    assert client.generate_batch(["a"])[0].text == "A"
    assert len(scripted.calls) == 9


def test_the_attempts_are_bounded(client: Any, scripted: ScriptedServer) -> None:
    scripted.script.extend([UNAVAILABLE] * 10)
    with pytest.raises(UnavailableError, match="the server is draining"):
        client.generate("a")
    assert len(scripted.calls) == 4


def test_the_server_s_delay_is_honoured(client: Any, scripted: ScriptedServer) -> None:
    scripted.script.extend([FULL, FULL])
    started = time.monotonic()
    assert client.generate("a").text == "A"
    assert time.monotonic() - started >= 0.2


def test_a_delay_past_the_timeout_is_not_waited_for(client: Any, scripted: ScriptedServer) -> None:
    scripted.script.append(Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", retry_after=300))
    started = time.monotonic()
    with pytest.raises(ResourceExhaustedError, match="the queue is full") as caught:
        client.generate("a", timeout=100)
    assert caught.value.retry_after == 300
    assert time.monotonic() - started < 50


def test_the_timeout_ends_the_wait_and_reaches_the_server(client: Any, scripted: ScriptedServer) -> None:
    scripted.script.append(Slow(2.0))
    with pytest.raises(DeadlineExceededError, match="the timeout passed"):
        client.generate("a", timeout=1)
    assert scripted.timeouts[0] is not None
    assert scripted.timeouts[0] < 1.5


def test_a_message_over_the_limit_is_not_sent_again(client: Any, scripted: ScriptedServer) -> None:
    with pytest.raises(ResourceExhaustedError, match="larger than max"):
        client.generate("x" * 5_000_000)
    assert scripted.calls == []  # gRPC refused it on the server's side


def test_a_stream_that_breaks_in_the_middle_is_not_begun_anew(client: Any, scripted: ScriptedServer) -> None:
    scripted.script.append(Fail(grpc.StatusCode.UNAVAILABLE, "the server went away", after=2))
    stream = client.generate_stream("abcd")
    assert [next(stream).text, next(stream).text] == ["A", "B"]
    with pytest.raises(UnavailableError, match="the server went away"):
        next(stream)
    assert len(scripted.calls) == 1


def test_a_stream_without_its_last_message_is_an_error(client: Any, scripted: ScriptedServer) -> None:
    scripted.finals = False
    stream = client.generate_stream("ab")
    assert [next(stream).text, next(stream).text] == ["A", "B"]
    with pytest.raises(ServerError, match="ended without its last message"):
        next(stream)


def test_a_cancelled_stream_ends_on_the_server_too(client: Any, scripted: ScriptedServer) -> None:
    stream = client.generate_stream("x" * 100_000)
    next(stream)
    assert not scripted.stream_ended.is_set()
    stream.cancel()
    assert scripted.stream_ended.wait(5)
    with pytest.raises(CallCancelledError):
        for _ in stream:
            pass


def test_nobody_at_the_address(connect: Callable[..., Any]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"  # bound, but nobody listens
        with pytest.raises(
            UnavailableError, match=rf"^no server can be reached at {address} \(connection refused"
        ) as caught:
            connect(address).generate("a")
        with pytest.raises(UnavailableError):
            connect(address).health()
    assert "\n" not in str(caught.value)


def test_calls_go_round_all_addresses(connect: Callable[..., Any]) -> None:
    with ScriptedServer() as one, ScriptedServer() as other:
        client = connect(f"{one.address},{other.address}")
        for _ in range(50):
            client.generate("a")
        assert min(len(one.calls), len(other.calls)) >= 10


def test_health(client: Any, scripted: ScriptedServer) -> None:
    assert client.health() is HealthStatus.SERVING
    assert client.health("no.such.Service") is HealthStatus.SERVICE_UNKNOWN
    scripted.serving(False)
    assert client.health() is HealthStatus.NOT_SERVING


def test_many_are_answered_in_order(client: Any) -> None:
    texts = [f"slow{index}" if index % 7 == 0 else f"text{index}" for index in range(200)]
    answers = list(client.generate_many(iter(texts)))
    assert [each.text for each in answers] == [text.upper() for text in texts]


def test_many_have_errors_for_those_that_fail(client: Any, scripted: ScriptedServer) -> None:
    scripted.script.extend([UNAVAILABLE, UNAVAILABLE])
    a, bad, odd, b = client.generate_many(["a", "bad", "\ud800", "b"])
    assert (a.text, b.text) == ("A", "B")
    assert (bad.index, str(bad.error), odd.index) == (1, "input.text is bad", 2)
    assert list(client.generate_many([])) == []


def test_many_adapt_to_what_the_server_takes(client: Any, scripted: ScriptedServer) -> None:
    scripted.capacity = 3
    texts = [f"slow{index}" for index in range(60)]
    answers = list(client.generate_many(texts))
    assert [each.text for each in answers] == [text.upper() for text in texts]
    assert scripted.busiest == 3
    assert scripted.refused > 0


def test_many_are_bounded(client: Any, scripted: ScriptedServer) -> None:
    list(client.generate_many((f"slow{index}" for index in range(20)), max_in_flight=2))
    assert scripted.busiest <= 2


def test_many_end_at_what_concerns_them_all(client: Any, scripted: ScriptedServer) -> None:
    wrong = Fail(grpc.StatusCode.INVALID_ARGUMENT, "must be 1 to 47, got 0", field="options.max_new_tokens")
    scripted.script.extend([wrong] * 200)
    with pytest.raises(InvalidArgumentError, match=r"options\.max_new_tokens"):
        list(client.generate_many(["a"] * 100))
    with pytest.raises(TypeError):
        list(client.generate_many(["a", None]))


def test_a_blocking_many_cancels_what_is_left(scripted: ScriptedServer) -> None:
    read = []

    def texts() -> Iterator[str]:
        for index in range(10_000):
            read.append(index)
            yield f"slow{index}"

    with Client(scripted.address) as client:
        answers = client.generate_many(texts())
        assert isinstance(next(answers), Result)
        answers.close()  # type: ignore[attr-defined]
    assert len(read) < 300


async def test_an_answer_comes_before_the_next_input(scripted: ScriptedServer) -> None:
    asked: asyncio.Queue[str | None] = asyncio.Queue()

    async def texts() -> Any:
        while (text := await asked.get()) is not None:
            yield text

    async with AsyncClient(scripted.address) as client:
        answers = client.generate_many(texts())
        for text in ("a", "b"):
            asked.put_nowait(text)
            answer = await asyncio.wait_for(anext(answers), 5)
            assert isinstance(answer, Result)
            assert answer.text == text.upper()
        asked.put_nowait(None)
        with pytest.raises(StopAsyncIteration):
            await anext(answers)


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
    """In a cycle, which another thread happens to collect."""
    holder: list[Any] = [client.generate_stream(ENDLESS)]
    await anext(holder[0])
    holder.append(holder)
    del holder
    await asyncio.to_thread(gc.collect)


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_error, leave_by_closing, leave_to_the_collector])
async def test_a_stream_that_is_left_ends_on_the_server_too(scripted: ScriptedServer, leave: Any) -> None:
    async with AsyncClient(scripted.address) as client:
        await leave(client)
        await until_async(scripted.stream_ended.is_set)
        assert scripted.streamed < len(ENDLESS)
        assert (await client.generate("a")).text == "A", "others go on"


def test_a_blocking_stream_that_is_left_ends_on_the_server_too(scripted: ScriptedServer) -> None:
    with Client(scripted.address) as client:
        for _ in client.generate_stream(ENDLESS):
            break
        assert scripted.stream_ended.wait(PATIENCE)
        assert scripted.streamed < len(ENDLESS)


def test_a_stream_that_is_left_after_its_loop_is_no_trouble(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", troubles.append)

    async def start() -> Any:
        stream = AsyncClient(scripted.address).generate_stream(ENDLESS)
        await anext(stream)
        return stream

    asyncio.run(start())  # and what it returns is collected
    gc.collect()
    assert troubles == []


async def test_a_failure_that_is_forgotten_keeps_no_connection_open(scripted: ScriptedServer) -> None:
    """Until garbage is collected, that is, which may be long."""

    def failures() -> list[InvalidArgumentError]:
        return [each for each in gc.get_objects() if isinstance(each, InvalidArgumentError)]

    gc.collect()
    gc.disable()
    others = failures()  # that tests before this one hold on to
    try:
        async with AsyncClient(scripted.address) as client:
            for call in (client.generate("bad"), client.generate_stream("bad").result()):
                with contextlib.suppress(InvalidArgumentError):
                    await call
        await until_async(lambda: all(any(each is other for other in others) for each in failures()))
    finally:
        gc.enable()
