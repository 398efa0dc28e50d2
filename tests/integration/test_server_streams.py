"""Streams of a real model: for whatever is asked, they tell what a single answer tells."""

import random
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from dragoman.local import LocalServer
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from dragoman_server.bundle.load import load_bundle, shipped_bundle

SOURCE_LETTERS = "etaoinshrdlu"
IDS = load_bundle(shipped_bundle()).target_tokenizer.get_vocab()
PHONES = sorted(set(IDS) - {"<pad>", "<unk>", "<s>", "</s>"})
COUNT = 250
DEAD_END = pb.GenerateRequest(  # no token twice, of two that may be chosen, and no end before the third
    input=pb.Input(text="banana"),
    options=pb.GenerationOptions(vocabulary={"ids": [10, 11]}, no_repeat_ngram_size=1, min_new_tokens=3),
    details=pb.Details(tokens=True),
)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Of a server of the bundle that ships."""
    with LocalServer(log=tmp_path_factory.mktemp("server") / "server.log") as server:
        with grpc.insecure_channel(server.address) as channel:
            yield generation_pb2_grpc.GenerationServiceStub(channel)
        assert server.stop() == 0, server.log_tail()


def phones(draw: random.Random, most: int) -> str:
    return " ".join(draw.choices(PHONES, k=draw.randint(1, most)))


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


def request(draw: random.Random) -> pb.GenerateRequest:
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


def test_streams_tell_what_a_single_answer_tells(stub: Any) -> None:
    draw = random.Random(1)
    refused = pieces = 0
    reasons = set()
    for asked in [DEAD_END, *(request(draw) for _ in range(COUNT))]:
        try:
            answer = stub.Generate(asked)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                raise
            refused += 1  # what makes no sense, such as more to generate at least than at most
            continue
        messages = list(stub.GenerateStream(asked))
        assert messages[-1].final == answer, asked
        told = {message.hypothesis for message in messages}
        assert told <= set(range(len(answer.hypotheses))), asked
        for index, hypothesis in enumerate(answer.hypotheses):
            own = [message for message in messages if message.hypothesis == index]
            assert "".join(message.text for message in own) == hypothesis.text, asked
            assert [token for message in own for token in message.tokens] == list(hypothesis.tokens), asked
            pieces += len([message for message in own if message.text])
            reasons.add(pb.FinishReason.Name(hypothesis.finish_reason).removeprefix("FINISH_REASON_"))
        if asked.options.HasField("beam_size"):
            assert any(message.HasField("progress") for message in messages[:-1])
    assert refused < COUNT / 4
    assert pieces > 3 * COUNT
    assert reasons >= {"EOS", "LENGTH", "STOP_SEQUENCE", "DEAD_END"}
