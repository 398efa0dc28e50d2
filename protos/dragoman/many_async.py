"""Drives generate_many in the client for asyncio."""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Iterable
from typing import Any, TypeAlias

import grpc

from dragoman.base import Many
from dragoman.errors import ItemError, UnavailableError
from dragoman.many import CLOSE_SECONDS, ManyCall
from dragoman.many_wire import Wire
from dragoman.pipeline import Job
from dragoman.requests import Source
from dragoman.results import Result
from dragoman.v1 import generation_pb2 as pb

Event: TypeAlias = tuple[Job | ManyCall | None, Any]
"""As in many_blocking; or None and the future of the next source."""


async def outcomes(sources: Iterable[Source] | AsyncIterable[Source], many: Many) -> AsyncIterator[Result | ItemError]:
    """Sends the sources and yields their outcomes in order. Raises as Client.generate_many."""
    events: asyncio.Queue[Event] = asyncio.Queue()

    def send_alone(job: Job) -> Any:
        call = many.source_sender(job).start()
        call.add_done_callback(lambda done: events.put_nowait((job, done)))
        return call

    wire = Wire(many, send_alone, lambda call: _Stream(call, many, events))
    pipeline, exhausted = many.pipeline, False
    unread = aiter(sources if isinstance(sources, AsyncIterable) else _asynchronous(sources))
    reading: asyncio.Future[Source] | None = None
    try:
        while True:
            if not exhausted and reading is None and pipeline.has_room():
                reading = asyncio.ensure_future(anext(unread))
                reading.add_done_callback(lambda done: events.put_nowait((None, done)))
            wire.send_due()
            while (outcome := pipeline.pop()) is not None:
                yield outcome
            if pipeline.empty and exhausted:
                break
            if not exhausted and reading is None and pipeline.has_room():
                continue
            for of, event in await _next(events, many.delay()):
                if of is None:
                    reading = None
                    try:
                        pipeline.add(event.result())
                    except StopAsyncIteration:
                        exhausted = True
                    continue
                try:
                    wire.take(of, await _response(event) if isinstance(of, Job) else event)
                except UnavailableError as failure:
                    raise await asyncio.to_thread(many.diagnose, failure) from failure.__cause__
            many.expire()
        wire.end()
        deadline = time.monotonic() + CLOSE_SECONDS
        while wire.has_streams and (left := deadline - time.monotonic()) > 0:
            for of, event in await _next(events, left):
                if of is not None:
                    wire.take(of, event)
    finally:
        if reading is not None:
            reading.cancel()
        wire.cancel()


class _Stream:
    """See many_wire.Stream.

    Args:
        events: Receives its responses, and its end.
    """

    def __init__(self, call: ManyCall, many: Many, events: asyncio.Queue[Event]) -> None:
        self._call, self._events = call, events
        self._unsent: asyncio.Queue[pb.GenerateManyRequest | None] = asyncio.Queue()
        self._status: grpc.aio.AioRpcError | None = None
        self._responses = many.call_sender(call, self._requests()).start()
        self._responses.add_done_callback(self._remember)
        self._reading = asyncio.create_task(self._read())

    def send(self, message: pb.GenerateManyRequest | None) -> None:
        self._unsent.put_nowait(message)

    def cancel(self) -> None:
        self._responses.cancel()
        self._reading.cancel()

    async def _requests(self) -> AsyncIterator[pb.GenerateManyRequest]:
        while (message := await self._unsent.get()) is not None:
            yield message

    async def _read(self) -> None:
        error: grpc.RpcError | None = None
        try:
            while (response := await self._responses.read()) is not grpc.aio.EOF:
                self._events.put_nowait((self._call, response))
        except grpc.RpcError as failure:
            ended = self._status
            lost = ended is not None and ended.code() not in (grpc.StatusCode.OK, failure.code())
            error = ended if lost else failure
        self._events.put_nowait((self._call, error))

    def _remember(self, call: Any) -> None:
        """Keeps the status with which the server ended the call.

        grpc.aio replaces it by an error of its own if a message was being written. Sources would be sent again for it.
        """
        if self._status is None:
            self._status = grpc.aio.AioRpcError(
                _at_once(call.code()), grpc.aio.Metadata(), _at_once(call.trailing_metadata()), _at_once(call.details())
            )


def _at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Returns the result of a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    coroutine.close()
    raise RuntimeError("a call that has ended has no status")


async def _next(events: asyncio.Queue[Event], seconds: float | None) -> list[Event]:
    """Waits for the next event, up to `seconds`, and returns all that have arrived."""
    try:
        found = [await asyncio.wait_for(events.get(), seconds)]
    except TimeoutError:
        return []
    while not events.empty():
        found.append(events.get_nowait())
    return found


async def _response(call: Any) -> Any:
    """Returns the response of a finished call, or its error."""
    try:
        return await call
    except grpc.RpcError as error:
        return error


async def _asynchronous(sources: Iterable[Source]) -> AsyncIterator[Source]:
    for source in sources:
        yield source
