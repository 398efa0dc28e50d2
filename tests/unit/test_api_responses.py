"""The contents of responses: details, hypotheses, seeds, streams and unseen tokens."""

import asyncio
import gc
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.api.streaming import HypothesisStream
from dragoman_server.core.requests import FinishReason, GenerationRequest, HypothesisResult, TokenChoice
from dragoman_server.core.search_options import Constraints, Conventions
from dragoman_server.decoding.stop_sequences import StopTracker
from dragoman_server.decoding.text_stream import TargetDecoder
from tests.support.fake_engines import MAX_TARGET, MODEL, FakeEngines, FakeServer, letters, serve_fake
from tests.support.target_tokenizers import TOKENIZERS

A, B = 4, 5  # ids of the letters


def single(text: str, details: pb.Details | None = None, **options: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(input=pb.Input(text=text), details=details, options=pb.GenerationOptions(**options))


def texts(response: pb.GenerateResponse) -> list[str]:
    return [hypothesis.text for hypothesis in response.hypotheses]


async def test_details_are_returned_on_request(server: FakeServer) -> None:
    [hypothesis] = (await server.stub.Generate(single("ab", pb.Details(tokens=True)))).hypotheses
    assert [(token.id, token.text) for token in hypothesis.tokens] == [(B, "b"), (A, "a")]
    assert not hypothesis.tokens[0].HasField("log_probability")
    assert not hypothesis.HasField("log_probability")
    prefix = pb.Input(text="xy")
    [hypothesis] = (
        await server.stub.Generate(single("ab", pb.Details(log_probabilities=True), prefix=prefix))
    ).hypotheses
    assert (hypothesis.text, hypothesis.target_tokens) == ("xyba", 4)
    assert [token.text for token in hypothesis.tokens] == ["x", "y", "b", "a"]
    assert [token.HasField("log_probability") for token in hypothesis.tokens] == [False, False, True, True]
    assert [token.log_probability for token in hypothesis.tokens[2:]] == [-0.5, -0.5]
    assert hypothesis.log_probability == -1.25  # including the end token
    assert hypothesis.HasField("score")
    assert hypothesis.score == 0


async def test_alternatives_are_listed_at_every_position_after_the_prefix(server: FakeServer) -> None:
    request = single("ab", pb.Details(top_tokens=2), prefix=pb.Input(text="x"))
    first, second, third = (await server.stub.Generate(request)).hypotheses[0].tokens
    assert not first.alternatives
    assert [(token.text, token.log_probability) for token in second.alternatives] == [("b", -0.5), ("c", -1.5)]
    assert [(token.id, token.text) for token in third.alternatives] == [(A, "a"), (B, "b")]


async def test_an_impossible_token_is_no_alternative() -> None:
    choices = [TokenChoice(A, -0.1), TokenChoice(B, float("-inf"))]
    result = HypothesisResult([A], [-0.1], FinishReason.LENGTH, alternatives=[choices])
    async with serve_fake(FakeEngines(results=lambda _: [result])) as server:
        [hypothesis] = (await server.stub.Generate(single("ab", pb.Details(top_tokens=2)))).hypotheses
        assert [token.id for token in hypothesis.tokens[0].alternatives] == [A]


async def test_a_large_response_is_written_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop does other work meanwhile, and the response is the same."""

    def long(request: GenerationRequest) -> list[HypothesisResult]:
        choices = [[TokenChoice(A + n, -1.0 - n) for n in range(20)]] * 500
        return [HypothesisResult([A] * 500, [-1.0] * 500, FinishReason.LENGTH, alternatives=choices)] * 8

    async with serve_fake(FakeEngines(results=long)) as server:
        request = single("ab", pb.Details(top_tokens=20), sample=True, seed=1, num_hypotheses=8)

        async def response_and_longest_turn() -> tuple[pb.GenerateResponse, float]:
            call = asyncio.ensure_future(server.stub.Generate(request))
            gc.collect()  # or it may run in the middle of a turn
            turns = []
            while not call.done():
                before = time.thread_time()  # CPU time, because other processes may run
                await asyncio.sleep(0)
                turns.append(time.thread_time() - before)
            return await call, max(turns)

        threaded = [await response_and_longest_turn() for _ in range(3)]
        monkeypatch.setattr("dragoman_server.messages.served_model.INLINE_TOKENS", 10**6)
        inline = [await response_and_longest_turn() for _ in range(3)]
        large = threaded[0][0]
        assert all(response == large for response, _ in [*threaded, *inline])
        assert min(turn for _, turn in threaded) < min(turn for _, turn in inline) / 2
        assert len(large.hypotheses[7].tokens[499].alternatives) == 20


async def test_hypotheses_are_in_order_with_their_scores(server: FakeServer) -> None:
    details = pb.Details(log_probabilities=True)
    response = await server.stub.Generate(single("abc", details, beam_size=3, num_hypotheses=3))
    assert texts(response) == ["cba", "ba", "a"]
    assert [hypothesis.score for hypothesis in response.hypotheses] == [0, -1, -2]
    assert not response.HasField("seed")
    plain = await server.stub.Generate(single("abc", beam_size=3))
    assert not plain.hypotheses[0].HasField("score")
    assert not plain.hypotheses[0].tokens
    assert not plain.source


@pytest.mark.parametrize("reason", FinishReason)
async def test_every_finish_reason_has_its_name(reason: FinishReason) -> None:
    async with serve_fake(FakeEngines(results=lambda _: [HypothesisResult([A], [-1.0], reason)])) as server:
        response = await server.stub.Generate(single("ab"))
        assert pb.FinishReason.Name(response.hypotheses[0].finish_reason) == f"FINISH_REASON_{reason.name}"


async def test_limits_and_stop_sequences_cut_the_text(server: FakeServer) -> None:
    [hypothesis] = (await server.stub.Generate(single("drawer", max_new_tokens=2))).hypotheses
    assert (hypothesis.text, hypothesis.finish_reason) == ("re", pb.FINISH_REASON_LENGTH)
    request = single("abcdef", pb.Details(tokens=True), stop_sequences=["zz", "dc"])
    [hypothesis] = (await server.stub.Generate(request)).hypotheses
    assert (hypothesis.text, hypothesis.finish_reason) == ("fe", pb.FINISH_REASON_STOP_SEQUENCE)
    assert "".join(token.text for token in hypothesis.tokens) == "fedc"
    request.options.include_stop_sequence = True
    assert texts(await server.stub.Generate(request)) == ["fedc"]


async def test_the_seed_is_returned_and_chosen_if_absent(server: FakeServer) -> None:
    assert (await server.stub.Generate(single("ab", sample=True, seed=2**64 - 1))).seed == 2**64 - 1
    assert (await server.stub.Generate(single("ab", sample=True, seed=0))).HasField("seed")
    chosen = {(await server.stub.Generate(single("ab", sample=True))).seed for _ in range(3)}
    assert len(chosen) == 3
    used = [generation.request.search.sampling for generation in server.engines.accepted]
    assert [sampling.seed for sampling in used if sampling][:2] == [2**64 - 1, 0]
    assert {sampling.seed for sampling in used[2:] if sampling} == chosen
    assert not (await server.stub.Generate(single("ab"))).HasField("seed")


@pytest.mark.parametrize("seed", [None, 7])
async def test_items_of_a_batch_share_only_a_given_seed(server: FakeServer, seed: int | None) -> None:
    options = pb.GenerationOptions(sample=True, seed=seed)
    request = pb.GenerateBatchRequest(inputs=[pb.Input(text="ab")] * 5, options=options)
    seeds = [item.response.seed for item in (await server.stub.GenerateBatch(request)).items]
    assert seeds == [7] * 5 if seed else len(set(seeds)) == 5
    searches = [generation.request.search.sampling for generation in server.engines.accepted]
    assert sorted(seeds) == sorted(sampling.seed for sampling in searches if sampling)


async def test_options_of_a_batch_apply_to_all_items(server: FakeServer) -> None:
    options = pb.GenerationOptions(beam_size=2, num_hypotheses=2, prefix=pb.Input(text="x"), stop_sequences=["a"])
    inputs = [pb.Input(text="ab"), pb.Input(text="cd")]
    details = pb.Details(log_probabilities=True)
    request = pb.GenerateBatchRequest(inputs=inputs, options=options, details=details)
    items = (await server.stub.GenerateBatch(request)).items
    for source, item in zip(inputs, items, strict=True):
        alone = pb.GenerateRequest(input=source, options=options, details=details)
        assert item.response == await server.stub.Generate(alone)
    assert texts(items[0].response) == ["xb", "x"]


STREAMED: dict[str, dict[str, Any]] = {
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
async def test_a_stream_adds_up_to_the_unary_response(server: FakeServer, kind: str, details: pb.Details) -> None:
    request = single("abcde", details, **STREAMED[kind])
    messages = [message async for message in server.stub.GenerateStream(request)]
    assert server.engines.accepted[0].request.streaming
    response = await server.stub.Generate(request)
    assert messages[-1].final == response
    assert not any(message.HasField("final") for message in messages[:-1])
    for index, hypothesis in enumerate(response.hypotheses):
        own = [message for message in messages if message.hypothesis == index]
        assert "".join(message.text for message in own) == hypothesis.text
        assert [token for message in own for token in message.tokens] == list(hypothesis.tokens)
    if "beam" in kind or "best" in kind:
        progress = [message.progress for message in messages if message.HasField("progress")]
        assert [(each.tokens, each.running, each.finished) for each in progress][:2] == [(1, 4, 0), (2, 4, 0)]
        last = len(messages) - len(response.hypotheses)
        assert not any(message.text or message.tokens for message in messages[:last])
        order = [message.hypothesis for message in messages if message.text or message.HasField("final")]
        assert order == sorted(order)  # the best first
        assert order[-1] == len(response.hypotheses) - 1
    elif "stop" not in kind:
        assert len([message for message in messages if message.text]) > len(response.hypotheses)


async def test_held_back_text_is_sent_as_soon_as_it_is_certain(server: FakeServer) -> None:
    request = single("abcdefgh", stop_sequences=["gfx"])
    pieces = [message.text async for message in server.stub.GenerateStream(request)]
    assert pieces == ["h", "gfe", "d", "c", "b", "a", ""]


DECODERS = {kind: TargetDecoder(tokenizer) for kind, tokenizer in TOKENIZERS.items()}
LETTERS = TargetDecoder(letters())


def stream(decoder: TargetDecoder, constraints: Constraints, ids: list[int]) -> tuple[list[str], str]:
    """Streams a hypothesis of these ids, up to the first stop sequence. Returns the pieces and the final text."""
    hypothesis, stops = HypothesisStream(decoder, constraints), StopTracker(decoder, constraints)
    taken = list(constraints.prefix)
    pieces = [hypothesis.push(taken)] if taken else []
    for token in taken:
        stops.push(token)
    cut = None
    for token in ids:
        taken.append(token)
        pieces.append(hypothesis.push([token]))
        if (cut := stops.push(token)) is not None:
            break
    text = decoder.decode(taken)[: stops.finish() if cut is None else cut]
    return [*pieces, hypothesis.rest(text)], text


@pytest.mark.parametrize("kind", DECODERS)
@settings(deadline=None)
@given(data=st.data())
def test_streamed_pieces_add_up_to_the_text_that_the_search_cut(kind: str, data: st.DataObject) -> None:
    decoder, size = DECODERS[kind], TOKENIZERS[kind].get_vocab_size()
    # Few different tokens, and stop sequences from their text, so that they occur and overlap.
    tokens = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=4))
    ids = data.draw(st.lists(st.sampled_from(tokens), max_size=24))
    prefix = data.draw(st.lists(st.sampled_from(tokens), max_size=4))
    text = decoder.decode(prefix + ids) or "a"
    spans = st.tuples(st.integers(0, len(text) - 1), st.integers(1, 5))
    stops = {text[start : start + length] for start, length in data.draw(st.lists(spans, max_size=3))}
    constraints = Constraints(
        prefix=tuple(prefix), stop_sequences=tuple(sorted(stops)), include_stop_sequence=data.draw(st.booleans())
    )
    pieces, expected = stream(decoder, constraints, ids)
    assert "".join(pieces) == expected


@pytest.mark.parametrize(
    ("stops", "prefix", "text", "include", "expected"),
    [
        ([], "", "abc", False, ["a", "b", "c", ""]),
        # The possible start of a stop sequence is held back.
        (["bcd"], "", "abcde", False, ["a", "", "", "", ""]),
        (["bcd"], "", "abcx", False, ["a", "", "", "bcx", ""]),
        (["bcd"], "", "abc", False, ["a", "", "", "bc"]),  # the end token comes first
        (["aab"], "", "aaab", False, ["", "", "a", "", ""]),
        (["bcd", "c"], "", "abcd", False, ["a", "", "", "b"]),  # the first that is complete
        # An included one is sent as it comes, except for its end.
        (["bcd"], "", "abcde", True, ["a", "b", "c", "", "d"]),
        # One within the prefix holds nothing back.
        (["b"], "ab", "cdbe", False, ["ab", "c", "d", "", ""]),
        (["bc"], "ab", "cde", False, ["a", "", ""]),
        (["bc"], "ab", "de", False, ["a", "bd", "e", ""]),
    ],
)
def test_text_is_held_back_for_stop_sequences(
    stops: list[str], prefix: str, text: str, include: bool, expected: list[str]
) -> None:
    def ids(text: str) -> list[int]:
        return letters().encode(text, add_special_tokens=False).ids

    constraints = Constraints(prefix=tuple(ids(prefix)), stop_sequences=tuple(stops), include_stop_sequence=include)
    assert stream(LETTERS, constraints, ids(text))[0] == expected


def test_a_stop_sequence_within_the_prefix_after_a_forced_token_holds_nothing_back() -> None:
    a, b, c = letters().encode("abc", add_special_tokens=False).ids
    constraints = Constraints(prefix=(a, b), stop_sequences=("b",))
    hypothesis = HypothesisStream(LETTERS, constraints, Conventions(forced_first=2))
    assert [hypothesis.push([2, a, b]), hypothesis.push([c])] == ["ab", "c"]


def test_streaming_a_long_text_costs_no_more_per_token() -> None:
    """Only the end of the text is searched."""
    draw = random.Random(0)
    ids = [draw.randrange(4, 30) for _ in range(20_000)]
    hypothesis = HypothesisStream(LETTERS, Constraints(stop_sequences=("a" * 256, "b" * 256)))
    sent = "".join(hypothesis.push([index]) for index in ids)
    assert sent + hypothesis.rest(LETTERS.decode(ids)) == LETTERS.decode(ids)
    assert len(hypothesis._tail) == 255


async def test_the_limits_are_reachable(server: FakeServer) -> None:
    limits = (await server.stub.GetModel(pb.GetModelRequest())).model.limits
    response = await server.stub.Generate(single("abcdefgh", sample=True, num_hypotheses=limits.hypotheses))
    assert len(response.hypotheses) == limits.hypotheses
    response = await server.stub.Generate(single("a", beam_size=limits.beam_size, max_new_tokens=MAX_TARGET))
    assert len(response.hypotheses) == 1


@pytest.mark.parametrize("known", [True, False])
async def test_unseen_source_tokens_are_listed_and_counted(known: bool) -> None:
    q = letters().get_vocab()["q"]
    async with serve_fake(unseen=[q] if known else []) as server:
        stub = server.stub

        def expect(response: Any, positions: list[int]) -> None:
            assert list(response.unseen_source_tokens) == (positions if known else [])

        expect(await stub.Generate(single("aqbq")), [1, 3])
        expect(await stub.Generate(pb.GenerateRequest(input=pb.Input(token_ids=pb.TokenIds(ids=[q])))), [0])
        expect(await stub.Generate(single("ab")), [])
        expect([message async for message in stub.GenerateStream(single("bq"))][-1].final, [1])
        batch = await stub.GenerateBatch(pb.GenerateBatchRequest(inputs=[pb.Input(text=t) for t in ("q", "a", "aq")]))
        for item, positions in zip(batch.items, ([0], [], [1]), strict=True):
            expect(item.response, positions)
        assert server.metric("dragoman_unseen_source_requests_total", model=MODEL, version="1") == (5 if known else 0)
        expect(await stub.Score(pb.ScoreRequest(input=pb.Input(text="qa"), targets=[pb.Input(text="a")])), [0])
