"""Scores of given targets, alignment and attention, and the scorer's queue and failures."""

from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import duration_pb2
from google.rpc import code_pb2

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.messages.response_writer import write_attention
from tests.support.fake_engines import MODEL, FakeServer, serve_fake
from tests.support.refusals import assert_refused, refused
from tests.support.waiting import until_async

ATTENTION = pb.Details(alignment=True, attention=True)
END = 3


def ids(*numbers: int) -> pb.Input:
    return pb.Input(token_ids=pb.TokenIds(ids=numbers))


def score(source: str, *targets: str | pb.Input, **details: Any) -> pb.ScoreRequest:
    inputs = [pb.Input(text=target) if isinstance(target, str) else target for target in targets]
    return pb.ScoreRequest(input=pb.Input(text=source), targets=inputs, **details)


def single(text: str, details: pb.Details = ATTENTION, **options: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(input=pb.Input(text=text), details=details, options=pb.GenerationOptions(**options))


def batch(*texts: str, **options: Any) -> pb.GenerateBatchRequest:
    inputs = [pb.Input(text=text) for text in texts]
    return pb.GenerateBatchRequest(inputs=inputs, options=pb.GenerationOptions(**options), details=ATTENTION)


def weights(attention: pb.Attention) -> Any:
    shape = attention.layers, attention.heads, attention.target_tokens, attention.source_tokens
    return np.reshape(attention.weights, shape)


async def test_targets_are_scored_with_their_end_tokens(server: FakeServer) -> None:
    response = await server.stub.Score(score("abc", "xy", "Z"))
    assert response.model == MODEL
    assert [token.text for token in response.source] == ["a", "b", "c", "</s>"]
    first, second = response.scores
    pairs = [(token.text, token.log_probability) for token in first.tokens]
    assert pairs == [("x", -0.25), ("y", -0.5), ("</s>", -0.75)]
    assert first.tokens[2].id == END
    assert first.log_probability == -1.5
    assert [token.text for token in second.tokens] == ["z", "</s>"]
    assert second.log_probability == -0.75
    assert not first.alignment
    assert not first.HasField("attention")
    assert server.scoring.runs == [([(4, 2), (4, 1)], False)]
    method = "dragoman.v1.GenerationService/Score"
    await until_async(lambda: server.metric("dragoman_requests_total", method=method, code="OK") == 1)
    assert server.metric("dragoman_scored_tokens_total", model=MODEL, version="1") == 5
    assert server.metric("dragoman_score_rows_sum", model=MODEL, version="1") == 2


async def test_a_target_may_be_ids_or_empty(server: FakeServer) -> None:
    response = await server.stub.Score(score("abc", ids(4, 5), ids(4, 5, END), "", "  ", ids(), ids(END)))
    tokens = [[token.id for token in target.tokens] for target in response.scores]
    assert tokens == [[4, 5, END], [4, 5, END], [END], [END], [END], [END]]
    longest = await server.stub.Score(score("a" * 15, "b" * 12))
    assert len(longest.scores[0].tokens) == 13


async def test_alignment_and_attention_of_targets(server: FakeServer) -> None:
    response = await server.stub.Score(score("abc", "xy", "z", alignment=True, attention=True))
    first, second = response.scores
    # In the last layer but one, the first target token attends to the last letter.
    assert first.alignment == [2, 1, 0]
    assert second.alignment == [2, 1]
    attention = weights(first.attention)
    assert attention.shape == (2, 2, 3, 4)
    assert attention[0, 1].tolist() == [[0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0]]
    assert (attention[1] == 0.25).all()
    assert weights(second.attention).shape == (2, 2, 2, 4)
    aligned = await server.stub.Score(score("abc", "xy", alignment=True))
    assert aligned.scores[0].alignment == [2, 1, 0]
    assert not aligned.scores[0].HasField("attention")


async def test_alignment_and_attention_of_hypotheses(server: FakeServer) -> None:
    request = single("abc", beam_size=2, num_hypotheses=2, prefix=pb.Input(text="x"))
    response = await server.stub.Generate(request)
    assert [token.text for token in response.source] == ["a", "b", "c", "</s>"]
    first, second = response.hypotheses
    assert [token.text for token in first.tokens] == ["x", "c", "b", "a"]
    assert first.alignment == [2, 1, 0, 0]  # without the end token
    assert weights(first.attention).shape == (2, 2, 5, 4)  # with a row for the end token
    assert second.alignment == [2, 1, 0]
    assert server.scoring.runs == [([(4, 4), (4, 3)], True)]
    aligned = await server.stub.Generate(single("abc", pb.Details(alignment=True)))
    assert aligned.hypotheses[0].alignment == [2, 1, 0]
    assert aligned.hypotheses[0].tokens
    assert not aligned.hypotheses[0].HasField("attention")
    assert len(aligned.source) == 4


async def test_attention_of_streams_and_batches(server: FakeServer) -> None:
    unary = await server.stub.Generate(single("abc"))
    assert [message async for message in server.stub.GenerateStream(single("abc"))][-1].final == unary
    first, second = (await server.stub.GenerateBatch(batch("abc", "de"))).items
    assert first.response == unary
    assert second.response.hypotheses[0].alignment == [1, 0]


async def test_the_scorer_is_loaded_when_it_is_needed(server: FakeServer) -> None:
    await server.stub.Generate(single("abc", pb.Details(top_tokens=2)))
    assert server.scoring.loads == 0
    await server.stub.Score(score("a", "b"))
    await server.stub.Generate(single("abc"))
    assert server.scoring.loads == 1


INVALID = {
    "no targets": (score("a"), "targets", "is empty"),
    "too many": (score("a", *["b"] * 65), "targets", "has 65 targets, but at most 64 are allowed"),
    "neither": (score("a", "b", pb.Input()), "targets[1]", "has neither text nor token_ids"),
    "unknown": (score("a", "b1"), "targets[0].text", "has the character '1' (U+0031) at position 1"),
    "too long": (score("a", "b" * 13), "targets[0].text", "has 13 tokens, but the model writes at most 12 tokens"),
    "ids too long": (score("a", ids(*[4] * 13, END)), "targets[0].token_ids.ids", "has 14 tokens, but the model"),
    "too long without an end": (score("a", ids(*[4] * 13)), "targets[0].token_ids.ids", "has 13 tokens, but the"),
    "unknown id": (score("a", "b", ids(4, 33)), "targets[1].token_ids.ids[1]", "is 33, but the target vocabulary"),
    "unknown token": (score("a", ids(4, 1)), "targets[0].token_ids.ids[1]", "is 1, the special token <unk>"),
    "end inside": (score("a", ids(4, END, 4)), "targets[0].token_ids.ids[1]", "is 3, the special token </s>"),
    "no source": (pb.ScoreRequest(targets=[pb.Input(text="b")]), "input", "has neither text nor token_ids"),
    "wrong source": (score("a?", "b"), "input.text", "the character '?'"),
}


@pytest.mark.parametrize("case", INVALID)
async def test_an_invalid_request_is_refused(server: FakeServer, case: str) -> None:
    request, field, words = INVALID[case]
    assert_refused(await refused(server.stub.Score(request)), field, words)
    assert not server.scoring.loads


async def test_too_many_attention_weights_are_refused_beforehand(server: FakeServer) -> None:
    stub = server.stub
    limits = server.registry.find("").model.limits
    limits.attention_weights = 2 * 2 * 4 * 5  # a source of 4 tokens and a target of 5, end tokens included
    await stub.Score(score("abc", "wxyz", attention=True))
    await stub.Score(score("abc", "wxyz", "", alignment=True))  # returns only the largest weights
    await stub.Generate(single("abc", max_new_tokens=4))
    await stub.GenerateStream(single("abc", max_new_tokens=4)).read()
    await stub.GenerateBatch(batch("abc", max_new_tokens=4))
    attention, details, most = "attention", "details.attention", "a response may have at most 80"
    for call, field, words in (
        (stub.Score(score("abc", "wxyz", "", attention=True)), attention, f"could have 96 weights, but {most}; send"),
        (stub.Generate(single("abc", max_new_tokens=5)), details, f"{most}; lower max_new_tokens or"),
        (stub.Generate(single("abc")), details, f"{most}; lower max_new_tokens or"),
        (stub.GenerateStream(single("abc", max_new_tokens=5)), details, most),
        (stub.GenerateStream(single("abc")), details, most),
        (stub.Generate(single("abc", max_new_tokens=3, prefix=pb.Input(text="xy"))), details, most),
        (stub.Generate(single("abc", max_new_tokens=2, beam_size=2, num_hypotheses=2)), details, most),
        (stub.GenerateBatch(batch("abc", "def", max_new_tokens=4)), details, f"could have 160 weights, but {most}"),
    ):
        assert_refused(await refused(call), field, words)


async def test_a_full_queue_of_the_scorer_refuses_calls_and_makes_batches_wait() -> None:
    async with serve_fake(score_queue=2) as server:
        server.scoring.gate.clear()
        running = server.stub.Score(score("a", "b"))
        await until_async(server.scoring.started.is_set)
        waiting = server.stub.Score(score("a", "b", "c"))
        await until_async(lambda: server.scorer.backlog()[0] == 2)
        items = server.stub.GenerateBatch(batch(*["abc"] * 4))
        await until_async(lambda: len(server.engines.accepted) == 4)
        for call in (server.stub.Score(score("a", "b")), server.stub.Generate(single("abc"))):
            assert (await refused(call)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        server.scoring.gate.set()
        assert len((await running).scores) == 1
        assert len((await waiting).scores) == 2
        assert [item.response.hypotheses[0].alignment for item in (await items).items] == [[2, 1, 0]] * 4


async def test_a_failing_scorer_is_unavailable_and_loaded_again(server: FakeServer) -> None:
    server.scoring.error = RuntimeError("it broke")
    error = await refused(server.stub.Score(score("a", "b", "c")))
    assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "the scorer failed: RuntimeError")
    server.scoring.error = RuntimeError("it broke")
    [item] = (await server.stub.GenerateBatch(batch("a"))).items
    assert (item.error.code, item.error.message) == (code_pb2.UNAVAILABLE, "the scorer failed: RuntimeError")
    assert len((await server.stub.Score(score("a", "b"))).scores) == 1
    assert server.scoring.loads == 3


async def test_a_time_limit_does_not_apply_to_attention(server: FakeServer) -> None:
    limit = duration_pb2.Duration(nanos=1)
    response = await server.stub.Generate(single("abc", time_limit=limit))
    assert response.hypotheses[0].alignment == [2, 1, 0]


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 5, 7), (3, 8, 31, 33)])
def test_attention_is_encoded_as_by_protobuf(shape: tuple[int, int, int, int]) -> None:
    values = np.random.default_rng(0).random(shape, np.float32)
    message = pb.Attention()
    write_attention(message, values)
    sizes = dict(zip(("layers", "heads", "target_tokens", "source_tokens"), shape, strict=True))
    expected = pb.Attention(**sizes, weights=values.ravel().tolist())
    assert message == expected
    assert message.SerializeToString() == expected.SerializeToString()


async def test_targets_of_clients_that_left_are_not_scored(server: FakeServer) -> None:
    server.scoring.gate.clear()
    running = server.stub.Score(score("a", "b"))
    await until_async(server.scoring.started.is_set)
    late = await refused(server.stub.Score(score("a", "bbb"), timeout=0.2))
    assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until_async(lambda: server.scorer.backlog()[0] == 0)
    server.scoring.gate.set()
    await running
    await server.stub.Score(score("a", "bb"))
    assert [lengths for lengths, _ in server.scoring.runs] == [[(2, 1)], [(2, 2)]]
