"""Scores of given targets, and where the tokens of answers look."""

from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import duration_pb2
from google.rpc import code_pb2

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.messages.response_writer import write_attention
from tests.support.fake_engines import MODEL, FakeEngines, FakeServer, serve_fake
from tests.support.refusals import assert_refused
from tests.support.waiting import until_async

LOOK = pb.Details(alignment=True, attention=True)
END = 3


def ids(*given: int) -> pb.Input:
    return pb.Input(token_ids=pb.TokenIds(ids=given))


def score(source: str, *targets: str | pb.Input, **wanted: Any) -> pb.ScoreRequest:
    inputs = [pb.Input(text=target) if isinstance(target, str) else target for target in targets]
    return pb.ScoreRequest(input=pb.Input(text=source), targets=inputs, **wanted)


def ask(text: str, details: pb.Details = LOOK, **options: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(input=pb.Input(text=text), details=details, options=pb.GenerationOptions(**options))


def weights(attention: pb.Attention) -> Any:
    shape = attention.layers, attention.heads, attention.target_tokens, attention.source_tokens
    return np.reshape(attention.weights, shape)


async def test_targets_are_scored_with_their_end_tokens(server: FakeServer) -> None:
    answer = await server.stub.Score(score("abc", "xy", "Z"))
    assert answer.model == MODEL
    assert [token.text for token in answer.source] == ["a", "b", "c", "</s>"]
    first, second = answer.scores
    assert [(token.text, token.log_probability) for token in first.tokens] == [
        ("x", -0.25),
        ("y", -0.5),
        ("</s>", -0.75),
    ]
    assert first.tokens[2].id == END
    assert first.log_probability == -1.5
    assert [token.text for token in second.tokens] == ["z", "</s>"]
    assert second.log_probability == -0.75
    assert not first.alignment
    assert not first.HasField("attention")
    assert server.scoring.runs == [([(4, 2), (4, 1)], False)]
    assert server.metric("dragoman_requests_total", method="dragoman.v1.GenerationService/Score", code="OK") == 1
    assert server.metric("dragoman_scored_tokens_total", model=MODEL, version="1") == 5
    assert server.metric("dragoman_score_rows_sum", model=MODEL, version="1") == 2


async def test_a_target_may_come_as_ids_or_be_empty(server: FakeServer) -> None:
    answer = await server.stub.Score(score("abc", ids(4, 5), ids(4, 5, END), "", "  ", ids(), ids(END)))
    lengths = [[token.id for token in each.tokens] for each in answer.scores]
    assert lengths == [[4, 5, END], [4, 5, END], [END], [END], [END], [END]]
    longest = await server.stub.Score(score("a" * 15, "b" * 12))
    assert len(longest.scores[0].tokens) == 13


async def test_alignment_and_attention_of_given_targets(server: FakeServer) -> None:
    answer = await server.stub.Score(score("abc", "xy", "z", alignment=True, attention=True))
    first, second = answer.scores
    # By the last layer but one, which looks backwards: the last letter first.
    assert first.alignment == [2, 1, 0]
    assert second.alignment == [2, 1]
    looks = weights(first.attention)
    assert looks.shape == (2, 2, 3, 4)
    assert looks[0, 1].tolist() == [[0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0]]
    assert (looks[1] == 0.25).all()
    assert weights(second.attention).shape == (2, 2, 2, 4)
    aligned = await server.stub.Score(score("abc", "xy", alignment=True))
    assert aligned.scores[0].alignment == [2, 1, 0]
    assert not aligned.scores[0].HasField("attention")


async def test_answers_tell_where_their_tokens_look(server: FakeServer) -> None:
    answer = await server.stub.Generate(ask("abc", beam_size=2, num_hypotheses=2, prefix=pb.Input(text="x")))
    assert [token.text for token in answer.source] == ["a", "b", "c", "</s>"]
    first, second = answer.hypotheses
    assert [token.text for token in first.tokens] == ["x", "c", "b", "a"]
    assert first.alignment == [2, 1, 0, 0]  # one for each token; the end token is not among them
    assert weights(first.attention).shape == (2, 2, 5, 4)  # but has its row here
    assert second.alignment == [2, 1, 0]
    assert server.scoring.runs == [([(4, 4), (4, 3)], True)]
    alone = await server.stub.Generate(ask("abc", pb.Details(alignment=True)))
    assert alone.hypotheses[0].alignment == [2, 1, 0]
    assert alone.hypotheses[0].tokens
    assert not alone.hypotheses[0].HasField("attention")
    assert len(alone.source) == 4


async def test_streams_and_batches_tell_it_too(server: FakeServer) -> None:
    alone = await server.stub.Generate(ask("abc"))
    messages = [message async for message in server.stub.GenerateStream(ask("abc"))]
    assert messages[-1].final == alone
    request = pb.GenerateBatchRequest(inputs=[pb.Input(text="abc"), pb.Input(text="de")], details=LOOK)
    first, second = (await server.stub.GenerateBatch(request)).items
    assert first.response == alone
    assert second.response.hypotheses[0].alignment == [1, 0]


async def test_the_scorer_is_loaded_when_it_is_needed_and_not_before(server: FakeServer) -> None:
    await server.stub.Generate(ask("abc", pb.Details(top_tokens=2)))
    assert server.scoring.loads == 0
    await server.stub.Score(score("a", "b"))
    await server.stub.Generate(ask("abc"))
    assert server.scoring.loads == 1


WRONG = {
    "no targets": (score("a"), "targets", "is empty"),
    "too many": (score("a", *["b"] * 65), "targets", "has 65 targets, but at most 64 are allowed"),
    "neither": (score("a", "b", pb.Input()), "targets[1]", "has neither text nor token_ids"),
    "unknown": (score("a", "b1"), "targets[0].text", "has the character '1' (U+0031) at position 1"),
    "too long": (score("a", "b" * 13), "targets[0].text", "has 13 tokens, but the model writes at most 12 tokens"),
    "ids too long": (score("a", ids(*[4] * 13, END)), "targets[0].token_ids.ids", "has 14 tokens, but the model"),
    "too long without an end": (score("a", ids(*[4] * 13)), "targets[0].token_ids.ids", "has 13 tokens, but the"),
    "unknown id": (score("a", "b", ids(4, 33)), "targets[1].token_ids.ids[1]", "is 33, but the target vocabulary"),
    "never written": (score("a", ids(4, 1)), "targets[0].token_ids.ids[1]", "is 1, the special token <unk>"),
    "end inside": (score("a", ids(4, END, 4)), "targets[0].token_ids.ids[1]", "is 3, the special token </s>"),
    "no source": (pb.ScoreRequest(targets=[pb.Input(text="b")]), "input", "has neither text nor token_ids"),
    "wrong source": (score("a?", "b"), "input.text", "the character '?'"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_what_can_not_be_scored_is_refused(server: FakeServer, case: str) -> None:
    request, field, words = WRONG[case]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await server.stub.Score(request)
    assert_refused(refused.value, field, words)
    assert not server.scoring.loads


async def test_more_attention_than_a_response_may_hold_is_refused_beforehand(server: FakeServer) -> None:
    limits = server.registry.find("").model.limits
    limits.attention_weights = 2 * 2 * 4 * 5  # a source of 4 tokens, a target of 5, the end tokens included
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await server.stub.Score(score("abc", "wxyz", "", attention=True))
    assert_refused(refused.value, "attention", "could have 96 weights, but a response may have at most 80; send fewer")
    assert (await server.stub.Score(score("abc", "wxyz", attention=True))).scores[0].HasField("attention")
    await server.stub.Score(score("abc", "wxyz", "", alignment=True))  # of which only the greatest are returned

    for most in (4, 5, None):
        asked = ask("abc", max_new_tokens=most)
        for call in (server.stub.Generate(asked), server.stub.GenerateStream(asked).read()):
            if most == 4:
                await call
                continue
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert_refused(
                refused.value, "details.attention", "a response may have at most 80; lower max_new_tokens or"
            )
    with pytest.raises(grpc.aio.AioRpcError):
        await server.stub.Generate(ask("abc", max_new_tokens=3, prefix=pb.Input(text="xy")))
    with pytest.raises(grpc.aio.AioRpcError):
        await server.stub.Generate(ask("abc", max_new_tokens=2, beam_size=2, num_hypotheses=2))
    request = pb.GenerateBatchRequest(inputs=[pb.Input(text="abc")], options={"max_new_tokens": 4}, details=LOOK)
    await server.stub.GenerateBatch(request)
    request.inputs.add(text="def")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await server.stub.GenerateBatch(request)
    assert_refused(refused.value, "details.attention", "could have 160 weights, but a response may have at most 80")


async def test_a_full_queue_of_the_scorer_refuses_calls_and_lets_batches_wait() -> None:
    async with serve_fake(score_queue=2) as server:
        server.scoring.gate.clear()
        running = server.stub.Score(score("a", "b"))
        await until_async(server.scoring.started.is_set)
        waiting = server.stub.Score(score("a", "b", "c"))
        await until_async(lambda: server.scorer.backlog()[0] == 2)
        batch = server.stub.GenerateBatch(pb.GenerateBatchRequest(inputs=[pb.Input(text="abc")] * 4, details=LOOK))
        await until_async(lambda: len(server.engines.accepted) == 4)
        for call in (server.stub.Score(score("a", "b")), server.stub.Generate(ask("abc"))):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        server.scoring.gate.set()
        assert len((await running).scores) == 1
        assert len((await waiting).scores) == 2
        assert [item.response.hypotheses[0].alignment for item in (await batch).items] == [[2, 1, 0]] * 4


async def test_a_scorer_that_fails_is_unavailable_and_comes_back(server: FakeServer) -> None:
    server.scoring.error = RuntimeError("it broke")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await server.stub.Score(score("a", "b", "c"))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert refused.value.details() == "the scorer failed: RuntimeError"
    server.scoring.error = RuntimeError("it broke")
    [item] = (await server.stub.GenerateBatch(pb.GenerateBatchRequest(inputs=[pb.Input(text="a")], details=LOOK))).items
    assert (item.error.code, item.error.message) == (code_pb2.UNAVAILABLE, "the scorer failed: RuntimeError")
    assert len((await server.stub.Score(score("a", "b"))).scores) == 1
    assert server.scoring.loads == 3


async def test_a_time_limit_of_generation_does_not_keep_its_attention_back(server: FakeServer) -> None:
    limit = duration_pb2.Duration(nanos=1)
    assert (await server.stub.Generate(ask("abc", time_limit=limit))).hypotheses[0].alignment == [2, 1, 0]


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 5, 7), (3, 8, 31, 33)])
def test_attention_is_written_as_protobuf_writes_it(shape: tuple[int, int, int, int]) -> None:
    values = np.random.default_rng(0).random(shape, np.float32)
    message = pb.Attention()
    write_attention(message, values)
    expected = pb.Attention(
        layers=shape[0],
        heads=shape[1],
        target_tokens=shape[2],
        source_tokens=shape[3],
        weights=values.ravel().tolist(),
    )
    assert message == expected
    assert message.SerializeToString() == expected.SerializeToString()


async def test_nothing_is_scored_for_those_who_left() -> None:
    async with serve_fake(FakeEngines()) as server:
        server.scoring.gate.clear()
        running = server.stub.Score(score("a", "b"))
        await until_async(server.scoring.started.is_set)
        left = server.stub.Score(score("a", "bbb"), timeout=0.2)
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await left
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until_async(lambda: server.scorer.backlog()[0] == 0)
        server.scoring.gate.set()
        await running
        await server.stub.Score(score("a", "bb"))
        assert [lengths for lengths, _ in server.scoring.runs] == [[(2, 1)], [(2, 2)]]
