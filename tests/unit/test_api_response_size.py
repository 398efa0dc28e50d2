"""The maximum size of a response: what is refused before it is computed, and what would fit."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from tests.support.fake_engines import MODEL, FakeServer
from tests.support.refusals import refused, violation

WORD = pb.Input(text="drawer")
SAMPLES = pb.GenerationOptions(sample=True, num_hypotheses=8)
TOP_TOKENS = pb.Details(top_tokens=20)
ALL = pb.Details(tokens=True, log_probabilities=True, top_tokens=20, alignment=True, attention=True)


def allow(server: FakeServer, size: int) -> None:
    """Sets the maximum bytes of a response."""
    with server.registry.use("") as model:
        model.limits.answer_bytes = size


def fitting(problem: str) -> int:
    """Returns what would fit, according to an error."""
    found = re.search(r"(\d+) (such items |tokens )?fit", problem)
    assert found, problem
    return int(found[1])


async def test_a_batch_is_refused_with_the_number_of_items_that_fit(server: FakeServer) -> None:
    allow(server, 2**20)
    request = pb.GenerateBatchRequest(inputs=[WORD] * 10_000, options=SAMPLES, details=TOP_TOKENS)
    field, problem = violation(await refused(server.stub.GenerateBatch(request)))
    assert field == "inputs"
    assert "the server sends at most 1048576 (--max-answer-bytes)" in problem
    assert not server.engines.accepted
    del request.inputs[fitting(problem) :]
    response = await server.stub.GenerateBatch(request)
    assert len(response.items) == fitting(problem)
    assert response.ByteSize() <= 2**20
    request.inputs.append(WORD)
    _, again = violation(await refused(server.stub.GenerateBatch(request)))
    assert fitting(again) == fitting(problem)


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_request_is_refused_with_the_number_of_tokens_that_fit(server: FakeServer, streaming: bool) -> None:
    method: Callable[[pb.GenerateRequest], Any] = server.stub.GenerateStream if streaming else server.stub.Generate
    allow(server, 20_000)
    request = pb.GenerateRequest(input=WORD, options=SAMPLES, details=TOP_TOKENS)
    field, problem = violation(await refused(method(request)))
    assert field == "options.max_new_tokens"
    assert not server.engines.accepted
    request.options.max_new_tokens = fitting(problem)
    if streaming:
        assert [message async for message in method(request)]
    else:
        assert (await method(request)).ByteSize() <= 20_000
    allow(server, 2000)
    assert violation(await refused(method(request)))[0] == "options.num_hypotheses"


@pytest.mark.parametrize(
    "details",
    [
        *(pb.Details(**{name: True}) for name in ("tokens", "log_probabilities", "alignment", "attention")),
        TOP_TOKENS,
        ALL,
    ],
    ids=str,
)
async def test_no_response_is_larger_than_estimated(server: FakeServer, details: pb.Details) -> None:
    text = pb.Input(text="abcdefghijkl")  # as long as a target may be
    request = pb.GenerateRequest(input=text, details=details, options=SAMPLES)
    allow(server, (await server.stub.Generate(request)).ByteSize() - 1)
    violation(await refused(server.stub.Generate(request)))


async def test_plain_responses_of_a_batch_are_measured(server: FakeServer) -> None:
    request = pb.GenerateBatchRequest(inputs=[WORD] * 1000)
    size = (await server.stub.GenerateBatch(request)).ByteSize()
    allow(server, size)
    assert len((await server.stub.GenerateBatch(request)).items) == 1000
    allow(server, size // 2)
    problem = f"have responses of more than {size // 2} bytes, the server's --max-answer-bytes; send fewer at once"
    assert violation(await refused(server.stub.GenerateBatch(request))) == ("inputs", problem)
    assert not server.engines.running


async def test_scores_are_refused_with_the_number_of_targets_that_fit(server: FakeServer) -> None:
    request = pb.ScoreRequest(input=WORD, targets=[pb.Input(text="reward")] * 20, alignment=True, attention=True)
    allow(server, (await server.stub.Score(request)).ByteSize() - 1)
    field, problem = violation(await refused(server.stub.Score(request)))
    assert field == "targets"
    del request.targets[fitting(problem) :]
    assert (await server.stub.Score(request)).scores


async def test_the_size_limit_holds_for_the_open_inference_protocol(server: FakeServer) -> None:
    request = oip.ModelInferRequest(model_name=MODEL)
    request.inputs.add(name="text", datatype="BYTES", shape=[20]).contents.bytes_contents.extend([b"abcdefghijkl"] * 20)
    request.parameters["sample"].bool_param = True
    request.parameters["num_hypotheses"].int64_param = 8
    request.parameters["top_tokens"].int64_param = 20
    allow(server, (await server.inference_stub.ModelInfer(request)).ByteSize() - 1)
    field, problem = violation(await refused(server.inference_stub.ModelInfer(request)))
    assert field == "text"
    assert "20 items" in problem
