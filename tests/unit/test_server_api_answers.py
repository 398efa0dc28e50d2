"""What comes back on request, over engines that turn words around."""

import asyncio
import gc
import time
from typing import Any

import pytest

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.core.requests import FinishReason, GenerationRequest, HypothesisResult, TokenChoice
from tests.support.fake_engines import MAX_TARGET, FakeEngines, FakeServer, serve_fake

A, B = 4, 5  # ids of the letters


def ask(text: str, details: pb.Details | None = None, **options: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(input=pb.Input(text=text), details=details, options=pb.GenerationOptions(**options))


def texts(answer: pb.GenerateResponse) -> list[str]:
    return [hypothesis.text for hypothesis in answer.hypotheses]


async def test_tokens_have_log_probabilities_but_for_those_of_the_prefix(server: FakeServer) -> None:
    details = pb.Details(log_probabilities=True)
    [hypothesis] = (await server.stub.Generate(ask("ab", details, prefix=pb.Input(text="xy")))).hypotheses
    assert hypothesis.text == "xyba"
    assert hypothesis.target_tokens == 4
    assert [token.text for token in hypothesis.tokens] == ["x", "y", "b", "a"]
    assert [token.HasField("log_probability") for token in hypothesis.tokens] == [False, False, True, True]
    assert [token.log_probability for token in hypothesis.tokens[2:]] == [-0.5, -0.5]
    assert hypothesis.log_probability == -1.25
    assert hypothesis.HasField("score")
    assert hypothesis.score == 0


async def test_alternatives_stand_at_every_place_behind_the_prefix(server: FakeServer) -> None:
    details = pb.Details(top_tokens=2)
    [hypothesis] = (await server.stub.Generate(ask("ab", details, prefix=pb.Input(text="x")))).hypotheses
    first, second, third = hypothesis.tokens
    assert not first.alternatives
    assert [(token.text, token.log_probability) for token in second.alternatives] == [("b", -0.5), ("c", -1.5)]
    assert [(token.id, token.text) for token in third.alternatives] == [(A, "a"), (B, "b")]


async def test_a_large_answer_is_written_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same, and others have their turn meanwhile."""

    def long(request: GenerationRequest) -> list[HypothesisResult]:
        choices = [[TokenChoice(A + n, -1.0 - n) for n in range(20)]] * 500
        return [HypothesisResult([A] * 500, [-1.0] * 500, FinishReason.LENGTH, alternatives=choices)] * 8

    async with serve_fake(FakeEngines(results=long)) as server:
        request = ask("ab", pb.Details(top_tokens=20), sample=True, seed=1, num_hypotheses=8)

        async def answer_and_longest_turn() -> tuple[pb.GenerateResponse, float]:
            call = asyncio.ensure_future(server.stub.Generate(request))
            gc.collect()  # or it may come in the middle of a turn
            turns = []
            while not call.done():
                before = time.thread_time()  # not the clock's time: other processes may have the CPU
                await asyncio.sleep(0)
                turns.append(time.thread_time() - before)
            return await call, max(turns)

        beside = [await answer_and_longest_turn() for _ in range(3)]
        monkeypatch.setattr("dragoman_server.messages.served_model.INLINE_TOKENS", 10**6)
        inline = [await answer_and_longest_turn() for _ in range(3)]
        large = beside[0][0]
        assert all(answer == large for answer, _ in [*beside, *inline])
        assert min(turn for _, turn in beside) < min(turn for _, turn in inline) / 2
        assert len(large.hypotheses[7].tokens[499].alternatives) == 20


async def test_what_is_not_possible_is_no_alternative() -> None:
    def impossible(request: GenerationRequest) -> list[HypothesisResult]:
        choices = [TokenChoice(A, -0.1), TokenChoice(B, float("-inf"))]
        return [HypothesisResult([A], [-0.1], FinishReason.LENGTH, alternatives=[choices])]

    async with serve_fake(FakeEngines(results=impossible)) as server:
        [hypothesis] = (await server.stub.Generate(ask("ab", pb.Details(top_tokens=2)))).hypotheses
        assert [token.id for token in hypothesis.tokens[0].alternatives] == [A]


async def test_hypotheses_come_in_their_order_with_their_scores(server: FakeServer) -> None:
    answer = await server.stub.Generate(ask("abc", pb.Details(log_probabilities=True), beam_size=3, num_hypotheses=3))
    assert texts(answer) == ["cba", "ba", "a"]
    assert [hypothesis.score for hypothesis in answer.hypotheses] == [0, -1, -2]
    assert not answer.HasField("seed")
    plain = await server.stub.Generate(ask("abc", beam_size=3))
    assert not plain.hypotheses[0].HasField("score")
    assert not plain.hypotheses[0].tokens
    assert not plain.source


@pytest.mark.parametrize(("reason", "expected"), [(reason, f"FINISH_REASON_{reason.name}") for reason in FinishReason])
async def test_every_reason_to_finish_has_its_name(reason: FinishReason, expected: str) -> None:
    async with serve_fake(FakeEngines(results=lambda _: [HypothesisResult([A], [-1.0], reason)])) as server:
        answer = await server.stub.Generate(ask("ab"))
        assert pb.FinishReason.Name(answer.hypotheses[0].finish_reason) == expected


async def test_a_stop_sequence_cuts_the_text_but_not_the_tokens(server: FakeServer) -> None:
    request = ask("abcdef", pb.Details(tokens=True), stop_sequences=["zz", "dc"])
    [hypothesis] = (await server.stub.Generate(request)).hypotheses
    assert (hypothesis.text, hypothesis.finish_reason) == ("fe", pb.FINISH_REASON_STOP_SEQUENCE)
    assert "".join(token.text for token in hypothesis.tokens) == "fedc"
    request.options.include_stop_sequence = True
    assert texts(await server.stub.Generate(request)) == ["fedc"]


async def test_seeds_are_told_and_drawn_where_there_is_none(server: FakeServer) -> None:
    given = await server.stub.Generate(ask("ab", sample=True, seed=2**64 - 1))
    assert given.seed == 2**64 - 1
    zero = await server.stub.Generate(ask("ab", sample=True, seed=0))
    assert zero.HasField("seed")
    drawn = {(await server.stub.Generate(ask("ab", sample=True))).seed for _ in range(3)}
    assert len(drawn) == 3
    used = [generation.request.search.sampling for generation in server.engines.accepted]
    assert [sampling.seed for sampling in used if sampling][:2] == [2**64 - 1, 0]
    assert {sampling.seed for sampling in used[2:] if sampling} == drawn
    assert not (await server.stub.Generate(ask("ab"))).HasField("seed")


@pytest.mark.parametrize("seed", [None, 7])
async def test_items_of_a_batch_share_the_seed_that_is_given_and_no_other(server: FakeServer, seed: int | None) -> None:
    options = pb.GenerationOptions(sample=True, seed=seed)
    request = pb.GenerateBatchRequest(inputs=[pb.Input(text="ab")] * 5, options=options)
    seeds = [item.response.seed for item in (await server.stub.GenerateBatch(request)).items]
    assert seeds == [7] * 5 if seed else len(set(seeds)) == 5
    searches = [generation.request.search.sampling for generation in server.engines.accepted]
    assert sorted(seeds) == sorted(sampling.seed for sampling in searches if sampling)


async def test_all_options_of_a_batch_hold_for_all_its_items(server: FakeServer) -> None:
    options = pb.GenerationOptions(beam_size=2, num_hypotheses=2, prefix=pb.Input(text="x"), stop_sequences=["a"])
    inputs = [pb.Input(text="ab"), pb.Input(text="cd")]
    details = pb.Details(log_probabilities=True)
    request = pb.GenerateBatchRequest(inputs=inputs, options=options, details=details)
    items = (await server.stub.GenerateBatch(request)).items
    for source, item in zip(inputs, items, strict=True):
        alone = pb.GenerateRequest(input=source, options=options, details=details)
        assert item.response == await server.stub.Generate(alone)
    assert texts(items[0].response) == ["xb", "x"]


STREAMED = {
    "greedy": {},
    "prefix": {"prefix": pb.Input(text="xy")},
    "samples": {"sample": True, "seed": 1, "num_hypotheses": 3},
    "alternatives": {"alternatives": True, "num_hypotheses": 3, "prefix": pb.Input(text="x")},
    "beam": {"beam_size": 4},
    "n-best": {"beam_size": 4, "num_hypotheses": 4},
    "stop sequence": {"stop_sequences": ["cb"]},
    "included stop sequence": {"stop_sequences": ["cb"], "include_stop_sequence": True},
    "stopped samples": {"stop_sequences": ["ba", "d"], "sample": True, "seed": 1, "num_hypotheses": 4},
    "stopped beam": {"stop_sequences": ["ba", "d"], "beam_size": 4, "num_hypotheses": 4},
}


@pytest.mark.parametrize("details", [pb.Details(), pb.Details(tokens=True), pb.Details(top_tokens=3)], ids=str)
@pytest.mark.parametrize("kind", STREAMED)
async def test_streamed_pieces_and_tokens_are_those_of_the_unary_answer(
    server: FakeServer, kind: str, details: pb.Details
) -> None:
    request = ask("abcde", details, **STREAMED[kind])  # type: ignore[arg-type]
    messages = [message async for message in server.stub.GenerateStream(request)]
    answer = await server.stub.Generate(request)
    assert messages[-1].final == answer
    assert not any(message.HasField("final") for message in messages[:-1])
    for index, hypothesis in enumerate(answer.hypotheses):
        own = [message for message in messages if message.hypothesis == index]
        assert "".join(message.text for message in own) == hypothesis.text
        assert [token for message in own for token in message.tokens] == list(hypothesis.tokens)
    if "beam" in kind or "best" in kind:
        told = [message.progress for message in messages if message.HasField("progress")]
        assert [(each.tokens, each.running, each.finished) for each in told][:2] == [(1, 4, 0), (2, 4, 0)]
        last = len(messages) - len(answer.hypotheses)
        assert not any(message.text or message.tokens for message in messages[:last])
        order = [message.hypothesis for message in messages if message.text or message.HasField("final")]
        assert order == sorted(order)  # the best first
        assert order[-1] == len(answer.hypotheses) - 1
    elif "stop" not in kind:
        assert len([message for message in messages if message.text]) > len(answer.hypotheses)


async def test_held_back_text_goes_out_as_soon_as_it_is_certain(server: FakeServer) -> None:
    request = ask("abcdefgh", stop_sequences=["gfx"])
    assert [message.text async for message in server.stub.GenerateStream(request)] == [
        "h",
        "gfe",
        "d",
        "c",
        "b",
        "a",
        "",
    ]


async def test_the_limits_allow_what_they_say(server: FakeServer) -> None:
    limits = (await server.stub.GetModel(pb.GetModelRequest())).model.limits
    answer = await server.stub.Generate(ask("abcdefgh", sample=True, num_hypotheses=limits.hypotheses))
    assert len(answer.hypotheses) == limits.hypotheses
    answer = await server.stub.Generate(ask("a", beam_size=limits.beam_size, max_new_tokens=MAX_TARGET))
    assert len(answer.hypotheses) == 1
