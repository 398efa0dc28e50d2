"""Errors that several packages of the server raise or handle, and the reasons for refusing requests."""

from enum import StrEnum
from typing import Literal


class StartError(Exception):
    """The server can't start; the message says why in one sentence."""


class Rejection(StrEnum):
    """Reason for refusing a request before it reaches an engine; the values are label values of a metric."""

    INVALID = "invalid"
    UNKNOWN_MODEL = "unknown_model"
    QUEUE_FULL = "queue_full"
    QUEUE_TOKENS = "queue_tokens"
    UNAVAILABLE = "unavailable"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    KEY_LIMIT = "key_limit"


QueueBound = Literal["requests", "tokens"]


class EngineError(Exception):
    """A request ended without a result."""


class QueueFullError(EngineError):
    """The queue is full.

    Attributes:
        retry_after: Seconds after which there will likely be room.
        bound: The limit that was reached: waiting requests, or their source tokens.
    """

    def __init__(self, retry_after: float, bound: QueueBound = "requests") -> None:
        waiting = "requests" if bound == "requests" else "source tokens"
        super().__init__(f"the queue is full: too many {waiting} are waiting; retry in {retry_after:.1f} s")
        self.retry_after = retry_after
        self.bound = bound


class DeadlineExpiredError(EngineError):
    """The request's deadline passed while it waited or ran."""


class EngineUnavailableError(EngineError):
    """The engine is stopping or has failed; the message says which."""


class OutOfMemoryError(EngineError):
    """The device ran out of memory with this request and the running ones."""

    def __init__(self) -> None:
        super().__init__("the device ran out of memory: the request does not fit beside those that are running")
