"""Drives generate_many in the client for asyncio."""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any, TypeAlias

import grpc

from dragoman.base import Many
from dragoman.errors import ItemError, UnavailableError
from dragoman.many import CLOSE_SECONDS, ManyCall
from dragoman.pipeline import Job
from dragoman.requests import Source
from dragoman.results import Result
from dragoman.v1 import generation_pb2 as pb

Event: TypeAlias = tuple[Job | ManyCall | None, Any]
"""As in many_blocking; or None and the future of the next source."""


async def outcomes(sources: Iterable[Source] | AsyncIterable[Source], many: Many) -> AsyncIterator[Result | ItemError]:
    """Sends the sources and yields their outcomes in order. Raises as Client.generate_many."""
    events: asyncio.Queue[Event] = asyncio.Queue()
    alone: dict[int, Any] = {}  # calls of single sources, by index
    streams: dict[ManyCall, Stream] = {}
    pipeline, exhausted = many.pipeline, False
    unread = aiter(sources if isinstance(sources, AsyncIterable) else _asynchronous(sources))
    reading: asyncio.Future[Source] | None = None
    try:
        while True:
            if not exhausted and reading is None and pipeline.has_room():
                reading = asyncio.ensure_future(anext(unread))
                reading.add_done_callback(lambda done: events.put_nowait((None, done)))
            for job in pipeline.due():
                if many.streams.needs_own_call(job):
                    alone[job.index] = many.source_sender(job).start()
                    alone[job.index].add_done_callback(lambda done, job=job: events.put_nowait((job, done)))
                else:
                    many.streams.add(job)
            for call, messages in many.streams.messages():
                if call not in streams:
                    streams[call] = Stream(call, many, events)
                streams[call].send(messages)
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
                if isinstance(of, Job):
                    del alone[of.index]
                try:
                    await _report(many, streams, of, event)
                except UnavailableError as failure:
                    raise await asyncio.to_thread(many.diagnose, failure) from failure.__cause__
            many.expire()
        await _close(streams, events)
    finally:
        if reading is not None:
            reading.cancel()
        for each in (*alone.values(), *streams.values()):
            each.cancel()


class Stream:
    """A GenerateMany call on the wire.

    Args:
        events: Receives its messages, and its end.
    """

    def __init__(self, call: ManyCall, many: Many, events: asyncio.Queue[Event]) -> None:
        self._call, self._events = call, events
        self._unsent: asyncio.Queue[pb.GenerateManyRequest | None] = asyncio.Queue()
        self._responses = many.call_sender(call, self._requests()).start()
        self._reading = asyncio.create_task(self._read())

    def send(self, messages: Iterable[pb.GenerateManyRequest]) -> None:
        """Sends messages, and the end of the requests if the call is closed."""
        for message in messages:
            self._unsent.put_nowait(message)
        if self._call.closed:
            self.close()

    def close(self) -> None:
        """Ends the requests."""
        self._unsent.put_nowait(None)

    def cancel(self) -> None:
        """Ends the call; the server stops generating."""
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
            error = failure
        self._events.put_nowait((self._call, error))


async def _next(events: asyncio.Queue[Event], seconds: float | None) -> list[Event]:
    """Waits for the next event, up to `seconds`, and returns all that have arrived."""
    try:
        found = [await asyncio.wait_for(events.get(), seconds)]
    except TimeoutError:
        return []
    while not events.empty():
        found.append(events.get_nowait())
    return found


async def _report(many: Many, streams: dict[ManyCall, Stream], of: Job | ManyCall, event: Any) -> None:
    if isinstance(of, Job):
        try:
            response = await event
        except grpc.RpcError as error:
            many.failed_alone(of, error)
        else:
            many.sent_alone(of, response)
    elif isinstance(event, pb.GenerateManyResponse):
        many.answered(of, event)
    else:
        streams.pop(of).close()
        many.ended(of, event)


async def _close(streams: dict[ManyCall, Stream], events: asyncio.Queue[Event]) -> None:
    """Ends calls that have nothing left to do in a way that the server does not take for a lost client."""
    for stream in streams.values():
        stream.close()
    deadline = time.monotonic() + CLOSE_SECONDS
    while streams and (left := deadline - time.monotonic()) > 0:
        for of, event in await _next(events, left):
            if isinstance(of, ManyCall) and not isinstance(event, pb.GenerateManyResponse):
                streams.pop(of, None)


async def _asynchronous(sources: Iterable[Source]) -> AsyncIterator[Source]:
    for source in sources:
        yield source
