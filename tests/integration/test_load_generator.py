"""The load generator's own HTTP/2 client gets what gRPC's client gets, and counts it right."""

import pytest

from dragoman import Client
from dragoman.local import LOOPBACK, LocalServer
from dragoman.v1 import generation_pb2 as pb
from tests.support.load import LoadGenerator

TEXTS = [str(number) for number in range(7, 100, 3)]


def generator(server: LocalServer, method: str, requests: list[bytes]) -> LoadGenerator:
    return LoadGenerator((LOOPBACK, server.port), server.process.pid, method, requests)


def unary(texts: list[str]) -> list[bytes]:
    return [pb.GenerateRequest(input=pb.Input(text=text)).SerializeToString() for text in texts]


def test_answers_come_in_order_and_failures_as_none(tiny_server: LocalServer) -> None:
    answers = generator(tiny_server, "Generate", unary([*TEXTS, "", TEXTS[0]])).answers(concurrency=8)
    texts = [pb.GenerateResponse.FromString(answer).hypotheses[0].text if answer else None for answer in answers]
    with Client(tiny_server.address) as client:
        expected = [client.generate(text).text for text in TEXTS]
    assert texts == [*expected, None, expected[0]]


@pytest.mark.parametrize("size", [1, 5, 31])
def test_a_batch_is_counted_by_its_inputs(tiny_server: LocalServer, size: int) -> None:
    inputs = [pb.Input(text=text) for text in TEXTS[:size]]
    request = pb.GenerateBatchRequest(inputs=inputs).SerializeToString()
    sample = generator(tiny_server, "GenerateBatch", [request]).closed(concurrency=2, seconds=0.05)
    assert sample.failed == 0
    assert sample.sequences == size * len(sample.latencies) > 0
    assert len(sample.latencies) % 2 == 0
    assert sample.tokens > sample.sequences


def test_a_closed_loop_counts_a_wave_even_where_one_takes_longer_than_the_sample(tiny_server: LocalServer) -> None:
    sample = generator(tiny_server, "Generate", unary(TEXTS)).closed(concurrency=16, seconds=0.0)
    assert sample.failed == 0
    assert len(sample.latencies) > 0
    assert len(sample.latencies) % 16 == 0


def test_an_open_loop_sends_what_was_due(tiny_server: LocalServer) -> None:
    sample = generator(tiny_server, "Generate", unary(TEXTS)).open(rate=100, seconds=0.5, seed=1)
    assert 25 < sample.sequences < 85  # 50 expected
    assert sample.seconds >= 0.5
    assert min(sample.latencies) > 0


def test_a_message_longer_than_a_frame_arrives(tiny_server: LocalServer) -> None:
    inputs = [pb.Input(text=text) for text in TEXTS * 120]
    request = pb.GenerateBatchRequest(inputs=inputs).SerializeToString()
    assert 16_384 < len(request) < 65_000
    (answer,) = generator(tiny_server, "GenerateBatch", [request]).answers(concurrency=1)
    assert answer is not None
    assert len(pb.GenerateBatchResponse.FromString(answer).items) == len(inputs)
