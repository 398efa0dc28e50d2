"""The calls of one generate_many on the wire. Both clients share this; they differ in how they wait."""

from collections.abc import Callable
from typing import Any, Protocol

import grpc

from dragoman.base import Many
from dragoman.many import ManyCall
from dragoman.pipeline import Job
from dragoman.v1 import generation_pb2 as pb


class Stream(Protocol):
    """A GenerateMany call on the wire. It reports each response, and at its end the error or None."""

    def send(self, message: pb.GenerateManyRequest | None) -> None:
        """Sends a message; None ends the requests."""

    def cancel(self) -> None:
        """Ends the call; the server stops generating."""


class Wire:
    """Sends what is due, and takes what arrives.

    Args:
        many: The generate_many.
        send_alone: Sends a source in a call of its own, and returns the call.
        open_stream: Opens a GenerateMany call.
    """

    def __init__(self, many: Many, send_alone: Callable[[Job], Any], open_stream: Callable[[ManyCall], Stream]) -> None:
        self._many = many
        self._send_alone = send_alone
        self._open_stream = open_stream
        self._alone: dict[int, Any] = {}  # calls of single sources, by index
        self._streams: dict[ManyCall, Stream] = {}

    def send_due(self) -> None:
        """Sends the jobs that are due and the cancellations, and ends the requests of calls that take no more."""
        streams = self._many.streams
        for job in self._many.pipeline.due():
            if streams.needs_own_call(job):
                self._alone[job.index] = self._send_alone(job)
            else:
                streams.add(job)
        for call, messages in streams.messages():
            stream = self._streams.get(call)
            if stream is None:
                stream = self._streams[call] = self._open_stream(call)
            for message in messages:
                stream.send(message)
            if call.closed:
                stream.send(None)

    def take(self, of: Job | ManyCall, event: Any) -> None:
        """Takes an event. Raises as Pipeline.failed.

        Args:
            of: A source in a call of its own; or a GenerateMany call.
            event: The response or the error; or a response, and at the end of the call the error or None.
        """
        if isinstance(of, Job):
            del self._alone[of.index]
            if isinstance(event, grpc.RpcError):
                self._many.failed_alone(of, event)
            else:
                self._many.sent_alone(of, event)
        elif isinstance(event, pb.GenerateManyResponse):
            self._many.answered(of, event)
        else:
            self._streams.pop(of).send(None)
            self._many.ended(of, event)

    def end(self) -> None:
        """Ends the requests of all calls, so that the server does not take a finished client for a lost one."""
        for stream in self._streams.values():
            stream.send(None)

    @property
    def has_streams(self) -> bool:
        """Whether a GenerateMany call has not ended yet."""
        return bool(self._streams)

    def cancel(self) -> None:
        """Cancels the calls that have not ended."""
        for call in (*self._alone.values(), *self._streams.values()):
            call.cancel()
