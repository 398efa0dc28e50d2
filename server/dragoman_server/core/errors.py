"""Errors that more than one room raises or handles, and why requests are refused."""

from enum import StrEnum
from typing import Literal


class StartError(Exception):
    """The server can't start; the message says why in one sentence."""


class Rejection(StrEnum):
    """Why a request was refused before it got to an engine; the values are label values of a metric."""

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
    """Why a request has no answer."""


class QueueFullError(EngineError):
    """Too much waits.

    Attributes:
        retry_after: seconds after which there will likely be room.
        bound: what there is too much of: requests, or source tokens in them.
    """

    def __init__(self, retry_after: float, bound: QueueBound = "requests") -> None:
        what = "as many requests" if bound == "requests" else "requests with as many source tokens"
        super().__init__(f"the queue is full: {what} wait as may; retry in {retry_after:.1f} s")
        self.retry_after = retry_after
        self.bound = bound


class DeadlineExpiredError(EngineError):
    """The request's deadline passed while it waited or ran."""


class EngineUnavailableError(EngineError):
    """The engine is stopping, or failed; the message says which."""


class OutOfMemoryError(EngineError):
    """The device had not the memory for this request beside the others."""

    def __init__(self) -> None:
        super().__init__("the device has not the memory for this request beside those that run")
