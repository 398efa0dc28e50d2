"""Answers that could be too large are refused before they are computed, naming what would fit."""

import re
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from tests.support.fake_engines import MODEL, FakeServer

WORD = pb.Input(text="drawer")
SAMPLES = pb.GenerationOptions(sample=True, num_hypotheses=8)
ALL = pb.Details(tokens=True, log_probabilities=True, top_tokens=20, alignment=True, attention=True)
DETAILS = [
    pb.Details(tokens=True),
    pb.Details(log_probabilities=True),
    pb.Details(top_tokens=20),
    pb.Details(alignment=True),
    pb.Details(attention=True),
    ALL,
]


def allow(server: FakeServer, size: int) -> None:
    with server.registry.use("") as model:
        model.limits.answer_bytes = size


async def refusal(call: Any) -> tuple[str, str]:
    """The field that is named, and what is said of it."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    status: Any = rpc_status.from_call(refused.value)  # type: ignore[arg-type]
    detail = error_details_pb2.BadRequest()
    assert status.details[0].Unpack(detail)
    [violation] = detail.field_violations
    return violation.field, violation.description


def number_that_fits(problem: str) -> int:
    found = re.search(r"(\d+) (such items |tokens )?fit", problem)
    assert found, problem
    return int(found[1])


async def test_the_most_inputs_that_fit_are_told_and_taken(server: FakeServer) -> None:
    allow(server, 2**20)
    request = pb.GenerateBatchRequest(inputs=[WORD] * 10_000, options=SAMPLES, details=pb.Details(top_tokens=20))
    field, problem = await refusal(server.stub.GenerateBatch(request))
    assert field == "inputs"
    assert "the server sends at most 1048576 (--max-answer-bytes)" in problem
    assert not server.engines.accepted
    fit = number_that_fits(problem)
    del request.inputs[fit:]
    answer = await server.stub.GenerateBatch(request)
    assert len(answer.items) == fit
    assert answer.ByteSize() <= 2**20
    request.inputs.append(WORD)
    assert number_that_fits((await refusal(server.stub.GenerateBatch(request)))[1]) == fit


@pytest.mark.parametrize("streaming", [False, True])
async def test_the_most_tokens_that_fit_are_told_and_taken(server: FakeServer, streaming: bool) -> None:
    async def ask(request: pb.GenerateRequest) -> None:
        if streaming:
            assert [message async for message in server.stub.GenerateStream(request)]
        else:
            assert (await server.stub.Generate(request)).ByteSize() <= 20_000

    allow(server, 20_000)
    request = pb.GenerateRequest(input=WORD, options=SAMPLES, details=pb.Details(top_tokens=20))
    field, problem = await refusal(ask(request))
    assert field == "options.max_new_tokens"
    assert not server.engines.accepted
    request.options.max_new_tokens = number_that_fits(problem)
    await ask(request)
    allow(server, 2000)
    assert (await refusal(ask(request)))[0] == "options.num_hypotheses"


@pytest.mark.parametrize("details", DETAILS, ids=str)
async def test_no_answer_is_larger_than_it_was_taken_for(server: FakeServer, details: pb.Details) -> None:
    word = pb.Input(text="abcdefghijkl")  # as long as an answer may be
    request = pb.GenerateRequest(input=word, options=SAMPLES, details=details)
    allow(server, (await server.stub.Generate(request)).ByteSize() - 1)
    await refusal(server.stub.Generate(request))


async def test_plain_answers_are_measured_as_they_come(server: FakeServer) -> None:
    request = pb.GenerateBatchRequest(inputs=[WORD] * 1000)
    size = (await server.stub.GenerateBatch(request)).ByteSize()
    allow(server, size)
    assert len((await server.stub.GenerateBatch(request)).items) == 1000
    allow(server, size // 2)
    assert await refusal(server.stub.GenerateBatch(request)) == (
        "inputs",
        f"have responses of more than {size // 2} bytes, the server's --max-answer-bytes; send fewer at once",
    )
    assert not server.engines.running


async def test_scores_are_held_to_it(server: FakeServer) -> None:
    request = pb.ScoreRequest(input=WORD, targets=[pb.Input(text="reward")] * 20, alignment=True, attention=True)
    allow(server, (await server.stub.Score(request)).ByteSize() - 1)
    field, problem = await refusal(server.stub.Score(request))
    assert field == "targets"
    del request.targets[number_that_fits(problem) :]
    assert (await server.stub.Score(request)).scores


async def test_the_other_protocol_names_its_own_fields(server: FakeServer) -> None:
    request = oip.ModelInferRequest(model_name=MODEL)
    request.inputs.add(name="text", datatype="BYTES", shape=[20]).contents.bytes_contents.extend([b"abcdefghijkl"] * 20)
    request.parameters["sample"].bool_param = True
    request.parameters["num_hypotheses"].int64_param = 8
    request.parameters["top_tokens"].int64_param = 20
    size = (await server.inference_stub.ModelInfer(request)).ByteSize()
    allow(server, size - 1)
    field, problem = await refusal(server.inference_stub.ModelInfer(request))
    assert field == "text"
    assert "20 items" in problem
