"""Scores and attention of a real model, beside its engines."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from dragoman import Client
from dragoman.local import LocalServer
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from tests.support.bundles import SHIPPED_FP32

WORDS = ["hello", "transformer", "colonel", "a", "onnx", "dragoman", "queue", "weight"]
DETAILS = pb.Details(log_probabilities=True, alignment=True, attention=True)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Of a server of the shipped model, in fp32."""
    arguments = ("--bundle", str(SHIPPED_FP32), "--max-beam-size", "4", "--max-hypotheses", "5", "--max-rows", "32")
    with LocalServer(*arguments, log=tmp_path_factory.mktemp("server") / "server.log") as server:
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
def test_score_agrees_with_what_was_generated(stub: Any, kind: str) -> None:
    """Two graphs of one model: the decoder's steps with a cache, and the scorer's single pass."""
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
            told = [token for token in hypothesis.tokens if token.HasField("log_probability")]
            compared = score.tokens[len(hypothesis.tokens) - len(told) :]
            for token, scored in zip(told, compared, strict=False):
                assert (token.id, token.log_probability) == (scored.id, pytest.approx(scored.log_probability, abs=1e-4))
            whole = sum(token.log_probability for token in compared)
            assert hypothesis.log_probability == pytest.approx(whole, abs=1e-3)
            assert list(hypothesis.alignment) == list(score.alignment)[:-1]
            looks = weights(hypothesis.attention)
            np.testing.assert_allclose(looks, weights(score.attention), atol=1e-4)
            np.testing.assert_allclose(looks.sum(-1), 1, atol=1e-5)


def test_scores_of_integers_are_close_to_those_of_generation(tmp_path: Path) -> None:
    """The bundle that ships: its two graphs round at other places."""
    with LocalServer(log=tmp_path / "server.log") as server, Client(server.address) as client:
        for word in WORDS:
            answer = client.generate(word, log_probabilities=True)
            score = client.score(word, [answer.text]).scores[0]
            assert score.log_probability == pytest.approx(answer.log_probability, abs=0.1)
        assert server.stop() == 0, server.log_tail()


def test_many_score_and_generate_at_once(stub: Any) -> None:
    """Each gets what it gets alone, whatever it shares a run with."""
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
        for one, expected in zip(answer.scores, alone[word][0].scores, strict=True):
            assert one.log_probability == pytest.approx(expected.log_probability, abs=1e-3)
            np.testing.assert_allclose(weights(one.attention), weights(expected.attention), atol=1e-4)
        assert other.hypotheses[0].text == alone[word][1].hypotheses[0].text
        assert other.hypotheses[0].alignment == alone[word][1].hypotheses[0].alignment


def test_the_limits_are_those_that_were_configured(stub: Any) -> None:
    model = stub.GetModel(pb.GetModelRequest()).model
    assert (model.limits.beam_size, model.limits.hypotheses) == (4, 5)
    assert (model.decoder_layers, model.heads) == (2, 4)
    with pytest.raises(grpc.RpcError) as refused:
        stub.Generate(pb.GenerateRequest(input=pb.Input(text="a"), options=pb.GenerationOptions(beam_size=5)))
    assert "options.beam_size is 5, but must be from 1 to 4" in str(refused.value)
