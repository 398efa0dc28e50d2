"""Clients that disconnect in the middle of a response."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import pytest

from dragoman_server.api.interceptor import CallInterceptor
from dragoman_server.metrics import ServerMetrics

METHOD = "package.Service/Method"


class Left:
    """Replaces the ServicerContext of a client that reads one message and disconnects."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def set_trailing_metadata(self, _: object) -> None:
        pass

    def time_remaining(self) -> None:
        return None

    async def write(self, message: str) -> None:
        if self.written:
            raise grpc.aio.InternalError("the batch failed")
        self.written.append(message)


async def test_a_response_that_can_not_be_sent_is_cancelled_at_once() -> None:
    closed: list[str] = []

    async def answer(request: str, context: object) -> AsyncIterator[str]:
        try:
            for word in request.split():
                yield word
        finally:
            closed.append(request)

    async def handler(_: object) -> Any:
        return grpc.unary_stream_rpc_method_handler(answer, lambda data: data, lambda message: message)

    details = cast("grpc.HandlerCallDetails", type("Details", (), {"method": f"/{METHOD}"}))
    metrics, context = ServerMetrics(), Left()
    wrapped: Any = await CallInterceptor(metrics).intercept_service(handler, details)
    with pytest.raises(asyncio.CancelledError):
        await wrapped.unary_stream("one two three", context)
    assert context.written == ["one"]
    assert closed == ["one two three"]
    assert {ended: count for ended, count in metrics.calls.requests.items() if count} == {(METHOD, "CANCELLED"): 1}
    assert metrics.calls.running("package.Service") == 0
