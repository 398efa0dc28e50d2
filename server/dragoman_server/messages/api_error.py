"""Errors that a client sees: a gRPC status code, one sentence, and google.rpc details."""

import asyncio
import math
from typing import NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from dragoman_server.core.call_record import REQUEST_ID
from dragoman_server.core.errors import (
    DeadlineExpiredError,
    EngineError,
    OutOfMemoryError,
    QueueBound,
    QueueFullError,
    Rejection,
)
from dragoman_server.messages.error_text import list_nearest, shorten, truncate
from dragoman_server.security.keys import OverLimitError

DETAILS_KEY = "grpc-status-details-bin"  # where gRPC implementations look for a google.rpc.Status
DOMAIN = "dragoman"  # of the reasons
# Of the message, and of each text in the details; so a status and all its trailers stay below 4 KB.
MESSAGE_BYTES, DETAIL_BYTES = 700, 600
RETRY_SECONDS = 1.0  # after which to come back to a server that is loading or draining


# What is counted, and what the client is told.
QUEUE_BOUNDS: dict[QueueBound, tuple[Rejection, str]] = {
    "requests": (Rejection.QUEUE_FULL, "QUEUE_REQUESTS"),
    "tokens": (Rejection.QUEUE_TOKENS, "QUEUE_TOKENS"),
}


class ApiError(Exception):
    """Ends a call, or an item of a batch, with a status.

    Attributes:
        code, message, detail: what the client gets; texts that are too long for a status are cut.
        reason: the same for programs, as google.rpc.ErrorInfo; None where the code says it all.
        rejection: what the metrics count, None for a request that got as far as an engine.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        detail: Message | None = None,
        rejection: Rejection | None = None,
        reason: str | None = None,
    ) -> None:
        message = truncate(message, MESSAGE_BYTES)
        if detail is not None:
            _cut_texts(detail)
        super().__init__(message)
        self.code, self.message, self.detail, self.rejection = code, message, detail, rejection
        self.reason = reason

    def status(self) -> status_pb2.Status:
        number: int = self.code.value[0]
        status = status_pb2.Status(code=number, message=self.message)
        info = error_details_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN) if self.reason else None
        for detail in (self.detail, info):
            if detail is not None:
                packed = any_pb2.Any()
                packed.Pack(detail)
                status.details.append(packed)
        return status


def invalid(field: str, problem: str) -> ApiError:
    """INVALID_ARGUMENT.

    Args:
        field: path of the field as it stands in the .proto, such as "options.max_new_tokens".
        problem: what is wrong with it, to be read after the field: "must be at least 1".
    """
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=problem)
    detail = error_details_pb2.BadRequest(field_violations=[violation])
    return ApiError(grpc.StatusCode.INVALID_ARGUMENT, f"{field} {problem}", detail, Rejection.INVALID)


def malformed() -> ApiError:
    """INVALID_ARGUMENT for bytes that are not the message they should be, text that is not UTF-8 among them."""
    message = "the request can't be parsed: its bytes are not the message they should be, or a text in it is not UTF-8"
    return ApiError(grpc.StatusCode.INVALID_ARGUMENT, message, rejection=Rejection.INVALID)


def unknown_model(name: str, known: list[str]) -> ApiError:
    """NOT_FOUND."""
    shown = shorten(name)
    message = f"model {shown!r} is not served here; there is {list_nearest(known, name)}"
    detail = error_details_pb2.ResourceInfo(resource_type="dragoman.v1.Model", resource_name=shown, description=message)
    return ApiError(grpc.StatusCode.NOT_FOUND, message, detail, Rejection.UNKNOWN_MODEL)


def unavailable(message: str, rejection: Rejection | None = Rejection.UNAVAILABLE) -> ApiError:
    """UNAVAILABLE, with a delay after which to try again, here or at another server."""
    return ApiError(grpc.StatusCode.UNAVAILABLE, message, _retry_after(RETRY_SECONDS), rejection)


def unauthenticated(problem: str) -> ApiError:
    """UNAUTHENTICATED, with how to do better."""
    message = f"{problem}; send one as metadata, authorization: Bearer KEY"
    return ApiError(grpc.StatusCode.UNAUTHENTICATED, message, rejection=Rejection.UNAUTHENTICATED)


def forbidden(problem: str) -> ApiError:
    """PERMISSION_DENIED."""
    return ApiError(grpc.StatusCode.PERMISSION_DENIED, problem, rejection=Rejection.FORBIDDEN)


def key_limit(error: OverLimitError) -> ApiError:
    """RESOURCE_EXHAUSTED for an API key that has had its share."""
    seconds = math.ceil(100 * error.retry_after) / 100
    message, detail = f"{error}; retry in {seconds:.2f} s", _retry_after(error.retry_after)
    return ApiError(grpc.StatusCode.RESOURCE_EXHAUSTED, message, detail, Rejection.KEY_LIMIT, error.reason)


def from_engine(error: EngineError) -> ApiError:
    """What a client gets for a request that the engines refused or did not finish."""
    if isinstance(error, QueueFullError):
        detail, rejection, reason = _retry_after(error.retry_after), *QUEUE_BOUNDS[error.bound]
        return ApiError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), detail, rejection, reason)
    if isinstance(error, DeadlineExpiredError):
        return ApiError(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed before the answer was complete")
    if isinstance(error, OutOfMemoryError):
        detail = _retry_after(RETRY_SECONDS)
        return ApiError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), detail, reason="DEVICE_MEMORY")
    return unavailable(str(error), rejection=None)


async def abort(context: grpc.aio.ServicerContext[object, object], error: ApiError, request_id: str) -> NoReturn:
    """Ends the call with the error's status, and the call's id behind it."""
    details = ((DETAILS_KEY, error.status().SerializeToString()), (REQUEST_ID, request_id))
    try:
        await context.abort(error.code, error.message, details)
    except grpc.aio.InternalError:  # gRPC can't send it: the client left at this very moment
        raise asyncio.CancelledError from None


def _cut_texts(message: Message) -> None:
    for field, value in message.ListFields():
        if isinstance(value, str):
            setattr(message, field.name, truncate(value, DETAIL_BYTES))
        elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            for part in [value] if isinstance(value, Message) else value:
                _cut_texts(part)


def _retry_after(seconds: float) -> error_details_pb2.RetryInfo:
    delay = duration_pb2.Duration()
    delay.FromNanoseconds(int(seconds * 1e9))
    return error_details_pb2.RetryInfo(retry_delay=delay)
