"""Messages of GenerateMany calls, and what answers them."""

from typing import Any

import grpc
from google.rpc import code_pb2, error_details_pb2

from dragoman.v1 import generation_pb2 as pb
from tests.support.fake_engines import FakeServer

METHOD = "dragoman.v1.GenerationService/GenerateMany"
WINDOW = 8  # of the fake engines


def item(id_: str, text: str = "ab", **request: Any) -> pb.ManyItem:
    return pb.ManyItem(id=id_, request=pb.GenerateRequest(input=pb.Input(text=text), **request))


def items(*of: pb.ManyItem, **more: Any) -> pb.GenerateManyRequest:
    return pb.GenerateManyRequest(items=of, **more)


async def answered(call: Any) -> list[pb.ManyAnswer]:
    """Reads all answers that are left."""
    answers: list[pb.ManyAnswer] = []
    while (message := await call.read()) is not grpc.aio.EOF:
        answers += message.answers
    return answers


async def ask(server: FakeServer, *messages: pb.GenerateManyRequest, **more: Any) -> dict[str, pb.ManyAnswer]:
    """Sends messages and the end of the requests; returns the answers by id, of which no two may be equal."""
    answers = await answered(server.stub.GenerateMany(iter(messages), **more))
    assert len({answer.id for answer in answers}) == len(answers)
    return {answer.id: answer for answer in answers}


def field_of(answer: pb.ManyAnswer) -> str:
    """Returns the invalid field that an answer names."""
    assert answer.error.code == code_pb2.INVALID_ARGUMENT
    details = error_details_pb2.BadRequest()
    assert answer.error.details[0].Unpack(details)
    return str(details.field_violations[0].field)
