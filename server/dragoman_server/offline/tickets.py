"""Requests that wait for their answers together."""

import threading
from collections.abc import Sequence
from typing import NamedTuple

from dragoman_server.core.errors import EngineError
from dragoman_server.core.requests import GenerationRequest, GenerationResult

Answer = GenerationResult | EngineError


class Ticket:
    """Requests that were submitted together.

    Attributes:
        requests: The requests.
        answers: The answer to each; None while it is missing.
    """

    def __init__(self, requests: Sequence[GenerationRequest]) -> None:
        self.requests = requests
        self.answers: list[Answer | None] = [None] * len(requests)
        self._missing = len(requests)
        self._done = threading.Event()
        if not requests:
            self._done.set()

    def deliver(self, index: int, answer: Answer) -> None:
        """Takes an answer. Not thread-safe."""
        self.answers[index] = answer
        self._missing -= 1
        if not self._missing:
            self._done.set()

    def wait(self, seconds: float) -> bool:
        """Waits for all answers, and returns whether they are there."""
        return self._done.wait(seconds)


class Place(NamedTuple):
    """Where the answer to a request belongs."""

    ticket: Ticket
    position: int
