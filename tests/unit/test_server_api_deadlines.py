"""A call's deadline is where the client set it, however long its request takes to be read."""

import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.api.generation_service import GenerationService
from dragoman_server.messages.served_model import ServedModel
from tests.support.fake_engines import serve_fake

BEFORE, SECONDS = 5.0, 1000.0  # spent on each step of reading, and given by the client
INPUT = pb.Input(text="drawer")


class Call:
    """A call on a clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.end = self.now + SECONDS

    def time_remaining(self) -> float:
        return self.end - self.now

    def slow(self, step: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def slowed(*args: Any) -> Any:
            self.now += BEFORE
            return await step(*args)

        return slowed


async def generate(service: GenerationService, context: Any) -> None:
    await service.Generate(pb.GenerateRequest(input=INPUT), context)


async def stream(service: GenerationService, context: Any) -> None:
    async for _ in service.GenerateStream(pb.GenerateRequest(input=INPUT), context):
        pass


async def batch(service: GenerationService, context: Any) -> None:
    await service.GenerateBatch(pb.GenerateBatchRequest(inputs=[INPUT]), context)


@pytest.mark.parametrize("call", [generate, stream, batch])
async def test_the_deadline_does_not_move_while_a_request_is_read(
    call: Callable[[GenerationService, Any], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Call()
    monkeypatch.setattr("dragoman_server.api.generation_service.time", SimpleNamespace(monotonic=lambda: context.now))
    for step in ("read_options", "encode_source"):
        monkeypatch.setattr(ServedModel, step, context.slow(getattr(ServedModel, step)))
    async with serve_fake() as server:
        await call(server.service, context)
    assert context.now > context.end - SECONDS
    assert server.engines.accepted[0].request.deadline == pytest.approx(context.end, abs=0.001)
