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
from dragoman.many_wire import Wire
from dragoman.pipeline import Job
from dragoman.requests import Source
from dragoman.results import Result
from dragoman.v1 import generation_pb2 as pb

Event: TypeAlias = tuple[Job | ManyCall, Any]
"""A source and its finished call; or a GenerateMany call with a response, or at its end with the error or None."""


def outcomes(sources: Iterable[Source], many: Many) -> Iterator[Result | ItemError]:
    """Sends the sources and yields their outcomes in order. Raises as Client.generate_many."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def send_alone(job: Job) -> Any:
        call = many.source_sender(job).start(future=True)
        call.add_done_callback(lambda done: events.put((job, done)))
        return call

    wire = Wire(many, send_alone, lambda call: _Stream(call, many, events))
    pipeline, unread, exhausted = many.pipeline, iter(sources), False
    try:
        while True:
            while not exhausted and pipeline.has_room():
                try:
                    pipeline.add(next(unread))
                except StopIteration:
                    exhausted = True
            wire.send_due()
            while (outcome := pipeline.pop()) is not None:
                yield outcome
            if pipeline.empty and exhausted:
                break
            if pipeline.empty or (not exhausted and pipeline.has_room()):
                continue
            try:
                for of, event in _next(events, many.delay()):
                    wire.take(of, _response(event) if isinstance(of, Job) else event)
                many.expire()
            except UnavailableError as failure:
                raise many.diagnose(failure) from failure.__cause__
        wire.end()
        deadline = time.monotonic() + CLOSE_SECONDS
        while wire.has_streams and (left := deadline - time.monotonic()) > 0:
            for of, event in _next(events, left):
                wire.take(of, event)
    finally:
        wire.cancel()


class _Stream:
    """See many_wire.Stream.

    Args:
        events: Receives its responses, and its end.
    """

    def __init__(self, call: ManyCall, many: Many, events: "queue.SimpleQueue[Event]") -> None:
        self._call, self._events = call, events
        self._unsent: queue.SimpleQueue[pb.GenerateManyRequest | None] = queue.SimpleQueue()
        self._responses = many.call_sender(call, iter(self._unsent.get, None)).start()
        threading.Thread(target=self._read, name="generate-many", daemon=True).start()

    def send(self, message: pb.GenerateManyRequest | None) -> None:
        self._unsent.put(message)

    def cancel(self) -> None:
        self._responses.cancel()
        self.send(None)  # frees gRPC's thread that waits for the next request

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


def _response(call: Any) -> Any:
    """Returns the response of a finished call, or its error."""
    try:
        return call.result()
    except grpc.RpcError as error:
        return error
