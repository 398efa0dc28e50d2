"""Streams of requests, which a drain ends early: they could go on for hours."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from dragoman_server.messages.api_error import unavailable
from dragoman_server.models.manager import STOPPING


class Stream(Protocol):
    """A call whose client sends requests one after the other."""

    def drain(self) -> None:
        """Reads no more requests; the call ends once those that it has read are answered."""


class OpenStreams:
    """The streams of a service that are running."""

    def __init__(self) -> None:
        self._streams: set[Stream] = set()
        self._draining = False

    def drain(self) -> None:
        """Drains all streams, and refuses new ones."""
        self._draining = True
        for stream in self._streams:
            stream.drain()

    @contextmanager
    def open(self, stream: Stream) -> Iterator[None]:
        """Adds a stream while it runs.

        Raises:
            ApiError: The server is shutting down.
        """
        if self._draining:
            raise unavailable(STOPPING)
        self._streams.add(stream)
        try:
            yield
        finally:
            self._streams.discard(stream)
