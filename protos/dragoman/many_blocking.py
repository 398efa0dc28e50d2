"""Drives generate_many in the blocking client."""

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import grpc

from dragoman.base import Many
from dragoman.errors import ItemError, UnavailableError
from dragoman.many import CLOSE_SECONDS, ManyCall
from dragoman.pipeline import Job
from dragoman.requests import Source
from dragoman.results import Result
from dragoman.v1 import generation_pb2 as pb

Event: TypeAlias = tuple[Job | ManyCall, Any]
"""A source and its finished call; or a GenerateMany call with a message, or with its error or None at its end."""


def outcomes(sources: Iterable[Source], many: Many) -> Iterator[Result | ItemError]:
    """Sends the sources and yields their outcomes in order. Raises as Client.generate_many."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    alone: dict[int, Any] = {}  # calls of single sources, by index
    streams: dict[ManyCall, Stream] = {}
    pipeline, unread, exhausted = many.pipeline, iter(sources), False
    try:
        while True:
            while not exhausted and pipeline.has_room():
                try:
                    pipeline.add(next(unread))
                except StopIteration:
                    exhausted = True
            for job in pipeline.due():
                if many.streams.needs_own_call(job):
                    alone[job.index] = many.source_sender(job).start(future=True)
                    alone[job.index].add_done_callback(lambda done, job=job: events.put((job, done)))
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
            if pipeline.empty or (not exhausted and pipeline.has_room()):
                continue
            try:
                for of, event in _next(events, many.delay()):
                    if isinstance(of, Job):
                        del alone[of.index]
                    _report(many, streams, of, event)
                many.expire()
            except UnavailableError as failure:
                raise many.diagnose(failure) from failure.__cause__
        _close(streams, events)
    finally:
        for future in alone.values():
            future.cancel()
        for stream in streams.values():
            stream.cancel()


class Stream:
    """A GenerateMany call on the wire.

    Args:
        events: Receives its messages, and its end.
    """

    def __init__(self, call: ManyCall, many: Many, events: "queue.SimpleQueue[Event]") -> None:
        self._call, self._events = call, events
        self._unsent: queue.SimpleQueue[pb.GenerateManyRequest | None] = queue.SimpleQueue()
        self._responses = many.call_sender(call, iter(self._unsent.get, None)).start()
        threading.Thread(target=self._read, name="generate-many", daemon=True).start()

    def send(self, messages: Iterable[pb.GenerateManyRequest]) -> None:
        """Sends messages, and the end of the requests if the call is closed."""
        for message in messages:
            self._unsent.put(message)
        if self._call.closed:
            self.close()

    def close(self) -> None:
        """Ends the requests."""
        self._unsent.put(None)

    def cancel(self) -> None:
        """Ends the call; the server stops generating."""
        self._responses.cancel()
        self.close()  # frees gRPC's thread that waits for the next request

    def _read(self) -> None:
        error: grpc.RpcError | None = None
        try:
            for response in self._responses:
                self._events.put((self._call, response))
        except grpc.RpcError as failure:
            error = failure
        self._events.put((self._call, error))


def _next(events: "queue.SimpleQueue[Event]", seconds: float | None) -> list[Event]:
    """Waits for the next event, up to `seconds`, and returns all that have arrived."""
    found: list[Event] = []
    try:
        found.append(events.get(timeout=seconds))
        while True:
            found.append(events.get_nowait())
    except queue.Empty:
        return found


def _report(many: Many, streams: dict[ManyCall, Stream], of: Job | ManyCall, event: Any) -> None:
    if isinstance(of, Job):
        try:
            response = event.result()
        except grpc.RpcError as error:
            many.failed_alone(of, error)
        else:
            many.sent_alone(of, response)
    elif isinstance(event, pb.GenerateManyResponse):
        many.answered(of, event)
    else:
        streams.pop(of).close()
        many.ended(of, event)


def _close(streams: dict[ManyCall, Stream], events: "queue.SimpleQueue[Event]") -> None:
    """Ends calls that have nothing left to do in a way that the server does not take for a lost client."""
    for stream in streams.values():
        stream.close()
    deadline = time.monotonic() + CLOSE_SECONDS
    while streams and (left := deadline - time.monotonic()) > 0:
        for of, event in _next(events, left):
            if isinstance(of, ManyCall) and not isinstance(event, pb.GenerateManyResponse):
                streams.pop(of, None)
