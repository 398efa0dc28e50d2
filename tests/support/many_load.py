"""The load generator of GenerateMany: one call that always has the same number of unanswered items."""

import select
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from math import inf

import psutil

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.messages.protobuf_encoding import length_delimited
from tests.support.http2 import ConnectionLostError, Http2Connection
from tests.support.load import PATIENCE, SERVICE, Clock, Sample, tokens

IDS = 4096  # so many that none is used again before its item is answered
ITEMS = pb.GenerateManyRequest.DESCRIPTOR.fields_by_name["items"].number


class ManyGenerator:
    """Sends items and keeps the answers, which are counted after the measurement.

    Args:
        address: Host and port of the server.
        server_pid: Process id of the server; its CPU time, with that of its children, is reported beside our own.
        defaults: Serialized GenerateRequest: the defaults of the items.
        texts: Texts of the items, sent in turn, repeatedly.
        together: Maximum number of items in a message.
    """

    def __init__(
        self, address: tuple[str, int], server_pid: int, defaults: bytes, texts: Sequence[str], together: int = 64
    ) -> None:
        self.target = (*address, SERVICE + "GenerateMany")
        self.server = psutil.Process(server_pid)
        self.defaults = pb.GenerateManyRequest(defaults=pb.GenerateRequest.FromString(defaults)).SerializeToString()
        self.together = together
        items = [
            pb.ManyItem(id=str(place), request=pb.GenerateRequest(input=pb.Input(text=text)))
            for place, text in enumerate(islice(cycle(texts), max(IDS, len(texts))))
        ]
        self.turn = cycle([length_delimited(ITEMS, item.SerializeToString()) for item in items])

    def closed(self, in_flight: int, seconds: float) -> Sample:
        """Keeps `in_flight` items unanswered; the next is sent when one is answered.

        The clock starts when `in_flight` items have been answered, and stops after at least `seconds`.
        """
        processes, clock = [self.server, *self.server.children(recursive=True)], None
        responses: list[pb.GenerateManyResponse] = []
        answered = 0
        for response in self._responses(in_flight):
            answered += len(response.answers)
            if clock is not None:
                responses.append(response)
                if clock.seconds >= seconds:
                    break
            elif answered >= in_flight:
                clock = Clock(processes)
        assert clock is not None
        elapsed, cpu_seconds = clock.seconds, clock.cpu_seconds()
        counts = [_count(response) for response in responses]
        items, succeeded, generated = (sum(column) for column in zip(*counts, strict=True))
        return Sample(elapsed, generated, succeeded, failed=items - succeeded, cpu_seconds=cpu_seconds)

    def watched(self, in_flight: int, moments: Sequence[int], look: Callable[[], object]) -> Sample:
        """Keeps `in_flight` items unanswered until the last of the `moments`: numbers of answers, at which it looks."""
        started, left = time.perf_counter(), list(moments)
        items = succeeded = generated = 0
        for response in self._responses(in_flight, moments[-1]):
            counts = _count(response)
            items, succeeded, generated = items + counts[0], succeeded + counts[1], generated + counts[2]
            while left and items >= left[0]:
                look()
                left.pop(0)
        return Sample(time.perf_counter() - started, generated, succeeded, failed=items - succeeded)

    def _responses(self, in_flight: int, most: float = inf) -> Iterator[pb.GenerateManyResponse]:
        """Yields the responses of a call, in which the next item is sent when one is answered, up to `most`."""
        connection = Http2Connection(*self.target)
        try:
            stream = connection.open()
            connection.write(stream, self.defaults)
            sent = self._send(connection, stream, int(min(in_flight, most)))
            answered = 0
            while answered < most:
                for message in self._receive(connection, stream):
                    response = pb.GenerateManyResponse.FromString(message)
                    answered += len(response.answers)
                    yield response
                sent += self._send(connection, stream, int(min(answered + in_flight, most)) - sent)
        finally:
            connection.close()

    def _send(self, connection: Http2Connection, stream: int, wanted: int) -> int:
        """Queues up to `wanted` items; returns how many flow control allowed."""
        sent = 0
        while sent < wanted:
            some = list(islice(self.turn, min(self.together, wanted - sent)))
            message = b"".join(some)
            if not connection.may_write(stream, len(message)):
                raise AssertionError("the server does not read")
            connection.write(stream, message)
            sent += len(some)
        return sent

    def _receive(self, connection: Http2Connection, stream: int) -> list[bytes]:
        """Waits for bytes from the server, and returns the messages that are complete."""
        connection.flush()
        writers = [connection.socket] if connection.wants_to_write else []
        readable, _, _ = select.select([connection.socket], writers, [], PATIENCE)
        if not readable and not writers:
            raise TimeoutError(f"no answer from the server for {PATIENCE:.0f} s")
        if readable and connection.receive():
            raise ConnectionLostError("the server ended the call")
        return connection.messages(stream)


def _count(response: pb.GenerateManyResponse) -> tuple[int, int, int]:
    """Returns the numbers of answers, of those without an error, and of their tokens."""
    succeeded = [answer.response for answer in response.answers if answer.HasField("response")]
    return len(response.answers), len(succeeded), sum(map(tokens, succeeded))
