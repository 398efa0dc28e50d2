"""Scores, attention and streams of a real model."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from dragoman import Client
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from dragoman_server.bundle.load import load_bundle
from tests.support.bundles import SHIPPED_FP32, SHIPPED_G2P
from tests.support.servers import G2PServer

WORDS = ["hello", "transformer", "colonel", "a", "onnx", "dragoman", "queue", "weight"]
DETAILS = pb.Details(log_probabilities=True, alignment=True, attention=True)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Calls a server of the shipped model in fp32."""
    arguments = ("--bundle", str(SHIPPED_FP32), "--max-beam-size", "4", "--max-hypotheses", "5", "--max-rows", "32")
    with G2PServer(*arguments, log=tmp_path_factory.mktemp("server") / "server.log") as server:
        with grpc.insecure_channel(server.address) as channel:
            yield generation_pb2_grpc.GenerationServiceStub(channel)
        assert server.stop() == 0, server.log_tail()


def weights(attention: pb.Attention) -> Any:
    shape = attention.layers, attention.heads, attention.target_tokens, attention.source_tokens
    return np.reshape(attention.weights, shape)


OPTIONS = {
    "greedy": pb.GenerationOptions(),
    "beam": pb.GenerationOptions(beam_size=4, num_hypotheses=3),
    "samples": pb.GenerationOptions(sample=True, seed=3, num_hypotheses=3, temperature=1.5),
    "prefix": pb.GenerationOptions(prefix=pb.Input(text="HH AH")),
    "alternatives": pb.GenerationOptions(alternatives=True, num_hypotheses=5),
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_scores_agree_with_generation(stub: Any, kind: str) -> None:
    """The decoder, with its steps and its cache, and the scorer, with a single pass, are two graphs of one model."""
    for word in WORDS:
        source = pb.Input(text=word)
        request = pb.GenerateRequest(input=source, options=OPTIONS[kind], details=DETAILS)
        answer = stub.Generate(request)
        targets = [
            pb.Input(token_ids=pb.TokenIds(ids=[token.id for token in hypothesis.tokens]))
            for hypothesis in answer.hypotheses
        ]
        scores = stub.Score(pb.ScoreRequest(input=source, targets=targets, alignment=True, attention=True))
        assert scores.source == answer.source
        assert len(scores.scores) == len(answer.hypotheses)
        for hypothesis, score in zip(answer.hypotheses, scores.scores, strict=True):
            assert hypothesis.finish_reason == pb.FINISH_REASON_EOS
            generated = [token for token in hypothesis.tokens if token.HasField("log_probability")]
            compared = score.tokens[len(hypothesis.tokens) - len(generated) :]
            for token, scored in zip(generated, compared, strict=False):
                assert (token.id, token.log_probability) == (scored.id, pytest.approx(scored.log_probability, abs=1e-4))
            total = sum(token.log_probability for token in compared)
            assert hypothesis.log_probability == pytest.approx(total, abs=1e-3)
            assert list(hypothesis.alignment) == list(score.alignment)[:-1]
            attention = weights(hypothesis.attention)
            np.testing.assert_allclose(attention, weights(score.attention), atol=1e-4)
            np.testing.assert_allclose(attention.sum(-1), 1, atol=1e-5)


def test_scores_of_an_int8_bundle_are_close_to_generation(tmp_path: Path) -> None:
    """The two graphs round at different places."""
    with G2PServer(log=tmp_path / "server.log") as server, Client(server.address) as client:
        for word in WORDS:
            answer = client.generate(word, log_probabilities=True)
            score = client.score(word, [answer.text]).scores[0]
            assert score.log_probability == pytest.approx(answer.log_probability, abs=0.1)
        assert server.stop() == 0, server.log_tail()


def test_concurrent_scores_and_generations_are_the_same_as_alone(stub: Any) -> None:
    targets = [pb.Input(text=text) for text in ("HH EH L OW", "", "K ER N AH L", "AA", "D R AE G OW M AH N")]

    def score(word: str) -> pb.ScoreResponse:
        request = pb.ScoreRequest(input=pb.Input(text=word), targets=targets, attention=True)
        return stub.Score(request)  # type: ignore[no-any-return]

    def generate(word: str) -> pb.GenerateResponse:
        return stub.Generate(pb.GenerateRequest(input=pb.Input(text=word), details=DETAILS))  # type: ignore[no-any-return]

    alone = {word: (score(word), generate(word)) for word in WORDS}
    with ThreadPoolExecutor(16) as threads:
        scored = list(threads.map(score, WORDS * 6))
        generated = list(threads.map(generate, WORDS * 6))
    for word, answer, other in zip(WORDS * 6, scored, generated, strict=True):
        for score_, expected in zip(answer.scores, alone[word][0].scores, strict=True):
            assert score_.log_probability == pytest.approx(expected.log_probability, abs=1e-3)
            np.testing.assert_allclose(weights(score_.attention), weights(expected.attention), atol=1e-4)
        assert other.hypotheses[0].text == alone[word][1].hypotheses[0].text
        assert other.hypotheses[0].alignment == alone[word][1].hypotheses[0].alignment


def test_the_limits_are_configurable(stub: Any) -> None:
    model = stub.GetModel(pb.GetModelRequest()).model
    assert (model.limits.beam_size, model.limits.hypotheses) == (4, 5)
    assert (model.decoder_layers, model.heads) == (2, 4)
    with pytest.raises(grpc.RpcError) as refused:
        stub.Generate(pb.GenerateRequest(input=pb.Input(text="a"), options=pb.GenerationOptions(beam_size=5)))
    assert "options.beam_size is 5, but must be from 1 to 4" in str(refused.value)


SOURCE_LETTERS = "etaoinshrdlu"
IDS = load_bundle(SHIPPED_G2P).target_tokenizer.get_vocab()
PHONES = sorted(set(IDS) - {"<pad>", "<unk>", "<s>", "</s>"})
COUNT = 120
DEAD_END = pb.GenerateRequest(  # two allowed tokens, none twice, and at least three
    input=pb.Input(text="banana"),
    options=pb.GenerationOptions(vocabulary={"ids": [10, 11]}, no_repeat_ngram_size=1, min_new_tokens=3),
    details=pb.Details(tokens=True),
)


@pytest.fixture(scope="module")
def int8_stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Calls a server of the shipped int8 bundle."""
    with G2PServer(log=tmp_path_factory.mktemp("server") / "server.log") as server:
        with grpc.insecure_channel(server.address) as channel:
            yield generation_pb2_grpc.GenerationServiceStub(channel)
        assert server.stop() == 0, server.log_tail()


def phones(draw: random.Random, limit: int) -> str:
    return " ".join(draw.choices(PHONES, k=draw.randint(1, limit)))


def search(draw: random.Random) -> dict[str, Any]:
    kind = draw.choice(["greedy", "beam", "sample", "alternatives", "beam of alternatives"])
    options: dict[str, Any] = {}
    if kind == "sample":
        options = {"sample": True, "seed": draw.getrandbits(64), "num_hypotheses": draw.randint(1, 4)}
        rules = {"temperature": 2.0, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.8}
        options |= {name: value for name, value in rules.items() if draw.random() < 0.4}
    if kind.startswith("beam"):
        options["beam_size"] = draw.choice([1, 2, 4, 6])
        options["num_hypotheses"] = draw.randint(1, options["beam_size"])
        numbers = {"length_penalty": 0.6, "coverage_penalty": 0.2, "length_normalization": "LENGTH_NORMALIZATION_GNMT"}
        options |= {name: value for name, value in numbers.items() if draw.random() < 0.3}
        if draw.random() < 0.3:
            options |= {"early_stopping": True, "patience": 1.5}
        if draw.random() < 0.3 and options["beam_size"] > 1:
            options |= {"beam_groups": 2, "diversity_penalty": 1.0}
    if "alternatives" in kind:
        options |= {"alternatives": True, "num_hypotheses": draw.randint(1, 4)}
    return options


def random_request(draw: random.Random) -> pb.GenerateRequest:
    options = search(draw)
    if draw.random() < 0.4:
        options["prefix"] = pb.Input(text=phones(draw, 3))
        if draw.random() < 0.5 and not options.get("alternatives"):
            options["prefix_bias"] = 0.7
    if draw.random() < 0.4:
        options["stop_sequences"] = [phones(draw, 1)[: draw.randint(1, 2)] for _ in range(draw.randint(1, 3))]
        options["include_stop_sequence"] = draw.random() < 0.5
    chosen: dict[str, Any] = {
        "max_new_tokens": draw.randint(1, 12),
        "min_new_tokens": draw.randint(0, 4),
        "suppressed_tokens": [IDS[phone] for phone in draw.sample(PHONES, 5)],
        "suppressed_sequences": [pb.Input(text=phones(draw, 2)) for _ in range(3)],
        "repetition_penalty": 1.5,
        "no_repeat_ngram_size": draw.randint(1, 3),
        "vocabulary": pb.TokenIds(ids=[IDS[phone] for phone in draw.sample(PHONES, 12)]),
    }
    options |= {name: value for name, value in chosen.items() if draw.random() < 0.25}
    details = pb.Details(top_tokens=draw.choice([0, 0, 3]), tokens=draw.random() < 0.5, alignment=draw.random() < 0.2)
    word = "".join(draw.choices(SOURCE_LETTERS, k=draw.randint(1, 12)))
    return pb.GenerateRequest(input=pb.Input(text=word), options=pb.GenerationOptions(**options), details=details)


def test_streams_add_up_to_the_unary_response(int8_stub: Any) -> None:
    draw = random.Random(1)
    refused = pieces = 0
    reasons = set()
    for request in [DEAD_END, *(random_request(draw) for _ in range(COUNT))]:
        try:
            answer = int8_stub.Generate(request)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                raise
            refused += 1  # contradictory options, such as min_new_tokens above max_new_tokens
            continue
        messages = list(int8_stub.GenerateStream(request))
        assert messages[-1].final == answer, request
        streamed = {message.hypothesis for message in messages}
        assert streamed <= set(range(len(answer.hypotheses))), request
        for index, hypothesis in enumerate(answer.hypotheses):
            own = [message for message in messages if message.hypothesis == index]
            assert "".join(message.text for message in own) == hypothesis.text, request
            assert [token for message in own for token in message.tokens] == list(hypothesis.tokens), request
            pieces += len([message for message in own if message.text])
            reasons.add(pb.FinishReason.Name(hypothesis.finish_reason).removeprefix("FINISH_REASON_"))
        if request.options.HasField("beam_size"):
            assert any(message.HasField("progress") for message in messages[:-1])
    assert refused < COUNT / 4
    assert pieces > 3 * COUNT
    assert reasons >= {"EOS", "LENGTH", "STOP_SEQUENCE", "DEAD_END"}
