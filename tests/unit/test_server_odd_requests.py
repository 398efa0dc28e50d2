"""What clients send or do by accident, and what the server says then."""

import asyncio
from typing import Any, cast

import grpc
import pytest

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.messages.api_error import abort, invalid
from tests.support.fake_engines import serve_fake


async def test_a_character_of_several_code_points_is_named_whole() -> None:
    async with serve_fake() as server:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await server.stub.Generate(pb.GenerateRequest(input=pb.Input(text="haA\u0308b")))
        expected = "input.text has 'A\u0308' at position 2 (counted from 0), which the model has never seen"
        assert refused.value.details() == expected


async def test_a_client_that_leaves_while_it_is_refused_is_no_error() -> None:
    class Gone:
        async def abort(self, *_: Any) -> None:
            raise grpc.aio.InternalError("the batch failed")

    with pytest.raises(asyncio.CancelledError):
        await abort(cast("grpc.aio.ServicerContext[object, object]", Gone()), invalid("input", "is wrong"), "name")
