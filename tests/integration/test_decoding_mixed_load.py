"""Requests of every kind at random times, some cancelled: each gets the answer that it gets alone."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from dragoman.local import LocalServer
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from tests.conftest import StartServer
from tests.support.metrics_page import sum_of
from tests.support.quantized_bundles import write_quantized
from tests.support.waiting import until

DISTINCT, TIMES = 200, 5
SECONDS = 1.5  # over which they arrive
IN_FLIGHT = 800  # gRPC refuses calls when a server has a thousand that it has not accepted yet
CANCELLED = 0.15  # share of calls that their clients cancel
WORDS = ["one", "two", "five", "seven", "twenty", "hundred", "thousand", "forty"]


@dataclass(frozen=True)
class RequestCase:
    """A request, and whether to stream its answer."""

    request: pb.GenerateRequest
    streams: bool


def random_cases(count: int) -> list[RequestCase]:
    draw = random.Random(7)
    return [RequestCase(random_request(draw), draw.random() < 0.4) for _ in range(count)]


def random_request(draw: random.Random) -> pb.GenerateRequest:
    """Returns a greedy, beam search or sampling request, short or long, with some constraints."""
    options = pb.GenerationOptions()
    kind = draw.choice(["greedy", "greedy", "beam", "groups", "sample", "samples", "alternatives", "beam alternatives"])
    if kind == "beam":
        options.beam_size = draw.randint(1, 6)
        options.num_hypotheses = draw.randint(1, options.beam_size)
        options.length_normalization = draw.choice([pb.LENGTH_NORMALIZATION_LENGTH, pb.LENGTH_NORMALIZATION_GNMT])
        options.length_penalty = draw.choice([0.0, 0.6, 1.0, 2.0])
        options.early_stopping = draw.random() < 0.5
        if draw.random() < 0.3:
            options.coverage_penalty = 0.3
    elif kind == "groups":
        options.beam_size, options.beam_groups = draw.choice([(4, 2), (3, 3), (6, 2)])
        options.num_hypotheses = 2
    elif kind in ("sample", "samples"):
        options.sample = True
        options.seed = draw.getrandbits(64)
        options.temperature = draw.choice([0.5, 1.0, 2.0])
        options.num_hypotheses = draw.randint(2, 4) if kind == "samples" else 1
        if draw.random() < 0.5:
            options.top_p = draw.choice([0.5, 0.95])
        elif draw.random() < 0.5:
            options.typical_p = 0.8
    elif "alternatives" in kind:
        options.alternatives = True
        options.num_hypotheses = draw.randint(2, 3)
        if "beam" in kind:
            options.beam_size = 3
    if draw.random() < 0.3:
        options.max_new_tokens = draw.randint(1, 6)
    elif draw.random() < 0.3:
        options.max_new_tokens = 20
        options.min_new_tokens = draw.randint(1, 20)
    constrain(draw, options, softly="alternatives" not in kind)
    details = pb.Details(
        log_probabilities=draw.random() < 0.5, top_tokens=draw.choice([0, 0, 2]), alignment=draw.random() < 0.1
    )
    number = str(draw.randrange(10 ** draw.randint(1, 4)))
    return pb.GenerateRequest(input=pb.Input(text=number), options=options, details=details)


def constrain(draw: random.Random, options: pb.GenerationOptions, softly: bool) -> None:
    if draw.random() < 0.2:
        options.prefix.text = " ".join(draw.choices(WORDS, k=draw.randint(1, 3)))
        if softly and draw.random() < 0.5:
            options.prefix_bias = 0.6
    if draw.random() < 0.2:
        options.suppressed_tokens.extend(draw.sample(range(4, 20), 3))
    if draw.random() < 0.2:
        options.suppressed_sequences.add().text = " ".join(draw.sample(WORDS, 2))
    if draw.random() < 0.2:
        options.repetition_penalty = draw.choice([1.5, 3.0])
    if draw.random() < 0.2:
        options.no_repeat_ngram_size = draw.randint(1, 2)
    if draw.random() < 0.2:
        options.stop_sequences.append(draw.choice(["hundred", "ty ", "e t", "nine"]))
        options.include_stop_sequence = draw.random() < 0.5
    if draw.random() < 0.2:
        options.vocabulary.ids.extend(draw.sample(range(4, 31), 14))


async def answer(stub: Any, case: RequestCase, cancel_after: float | None = None) -> pb.GenerateResponse | None:
    """Returns the answer; None if it is cancelled first, `cancel_after` seconds after the call or its first message."""
    if case.streams:
        return await streamed(stub.GenerateStream(case.request), cancel_after)
    call = stub.Generate(case.request)
    if cancel_after is not None:
        asyncio.get_running_loop().call_later(cancel_after, call.cancel)
    try:
        response: pb.GenerateResponse = await call
    except (asyncio.CancelledError, grpc.aio.AioRpcError):
        if cancel_after is None or not call.cancelled():
            raise
        return None
    return response


async def streamed(call: Any, cancel_after: float | None) -> pb.GenerateResponse | None:
    """Returns the final answer of a stream, whose texts are the joined pieces."""
    texts: dict[int, str] = {}
    final: pb.GenerateResponse | None = None
    try:
        async for message in call:
            if cancel_after is not None and not texts:
                asyncio.get_running_loop().call_later(cancel_after, call.cancel)
            texts[message.hypothesis] = texts.get(message.hypothesis, "") + message.text
            final = message.final if message.HasField("final") else None
    except (asyncio.CancelledError, grpc.aio.AioRpcError):
        if cancel_after is None or not call.cancelled():
            raise
        return None
    assert final is not None
    assert {index: text for index, text in texts.items() if text} == {
        index: hypothesis.text for index, hypothesis in enumerate(final.hypotheses) if hypothesis.text
    }
    return final


async def alone(server: LocalServer, distinct: Sequence[RequestCase]) -> list[pb.GenerateResponse]:
    """Returns the answers to requests one by one, not streamed."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        return [await stub.Generate(case.request) for case in distinct]


async def at_random_times(
    server: LocalServer, distinct: Sequence[RequestCase], times: int, seconds: float, cancelled: float
) -> list[list[pb.GenerateResponse | None]]:
    """Returns the answers to each request."""
    draw = random.Random(8)
    room = asyncio.Semaphore(IN_FLIGHT)

    async def one(stub: Any, case: RequestCase) -> pb.GenerateResponse | None:
        cancel_after = draw.uniform(0, 0.02) if draw.random() < cancelled else None
        await asyncio.sleep(draw.uniform(0, seconds))
        async with room:
            return await answer(stub, case, cancel_after)

    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        order = [index for index in range(len(distinct)) for _ in range(times)]
        draw.shuffle(order)
        answers = await asyncio.gather(*(one(stub, distinct[index]) for index in order))
    found: list[list[pb.GenerateResponse | None]] = [[] for _ in distinct]
    for index, response in zip(order, answers, strict=True):
        found[index].append(response)
    return found


def until_at_rest(server: LocalServer) -> None:
    """Waits until no row is in use and no request waits or runs."""
    names = ("dragoman_rows_running", "dragoman_requests_waiting", "dragoman_requests_in_flight")

    def left() -> dict[str, float]:
        return {name: value for name, value in server.metrics().items() if name.startswith(names) and value}

    until(lambda: not left(), otherwise=left)


def dropped(server: LocalServer) -> float:
    """Returns the number of requests cancelled while they waited or ran."""
    return sum_of(server, "dragoman_drops_total", "cancelled")


@pytest.fixture(scope="module", params=["fp32", "int8"])
def bundle(request: pytest.FixtureRequest, tiny_run: Path, tiny_bundle: Path, tmp_path_factory: Any) -> Path:
    """A bundle in fp32, or with int8 products and caches."""
    if request.param == "fp32":
        return tiny_bundle
    narrow: Path = tmp_path_factory.mktemp("int8") / "bundle"
    write_quantized(tiny_run, tiny_bundle, {narrow: ("int8", "int8")})
    return narrow


async def test_answers_under_load_are_those_of_requests_alone(start_server: StartServer, bundle: Path) -> None:
    layout = ["--engines", "2", "--threads-per-engine", "1", "--max-rows", "24", "--queue-size", "4000"]
    server = start_server("--bundle", str(bundle), *layout)
    distinct = random_cases(DISTINCT)
    expected = await alone(server, distinct)
    found = await at_random_times(server, distinct, TIMES, SECONDS, CANCELLED)
    for case, right, answers in zip(distinct, expected, found, strict=True):
        assert all(response in (None, right) for response in answers), case
    lost = sum(response is None for answers in found for response in answers)
    assert 0 < lost < 2 * CANCELLED * DISTINCT * TIMES
    until_at_rest(server)
    assert dropped(server) > 0
    assert await alone(server, distinct[:20]) == expected[:20]


async def test_a_seed_means_the_same_after_a_restart_and_in_other_rows(
    start_server: StartServer, tiny_bundle: Path
) -> None:
    sampled = [case for case in random_cases(DISTINCT) if case.request.options.sample]
    assert len(sampled) > 30
    first = start_server("--bundle", str(tiny_bundle), "--engines", "1", "--max-rows", "64")
    expected = await alone(first, sampled)
    assert [response.seed for response in expected] == [case.request.options.seed for case in sampled]
    assert first.stop() == 0
    second = start_server("--bundle", str(tiny_bundle), "--engines", "2", "--max-rows", "9")
    found = await at_random_times(second, sampled, 3, 0.3, 0.0)
    assert found == [[right] * 3 for right in expected]
    assert len({response.hypotheses[0].text for response in expected}) > len(expected) / 2
