"""Errors as clients get them: a gRPC status code, a sentence, and google.rpc details."""

import asyncio
import math
from typing import NoReturn

import grpc
import structlog
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

log = structlog.get_logger()

DETAILS_KEY = "grpc-status-details-bin"  # the trailer in which gRPC implementations expect a google.rpc.Status
DOMAIN = "dragoman"  # of google.rpc.ErrorInfo
# Maximum size of the message, and of each text in the details: a status with all its trailers stays below 4 KB.
MESSAGE_BYTES, DETAIL_BYTES = 700, 600
RETRY_SECONDS = 1.0  # delay before a retry at a server that is loading or draining

# The rejection that is counted, and the ErrorInfo reason that the client gets.
QUEUE_BOUNDS: dict[QueueBound, tuple[Rejection, str]] = {
    "requests": (Rejection.QUEUE_FULL, "QUEUE_REQUESTS"),
    "tokens": (Rejection.QUEUE_TOKENS, "QUEUE_TOKENS"),
}


class ApiError(Exception):
    """Ends a call, or an item of a batch, with a status.

    Attributes:
        code: The status code.
        message: The message, truncated to MESSAGE_BYTES.
        detail: A google.rpc detail, its texts truncated to DETAIL_BYTES; None for none.
        reason: Reason for google.rpc.ErrorInfo, for programs; None if the code is specific enough.
        rejection: The reason under which the metrics count it; None for a request that reached an engine.
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
            _truncate_texts(detail)
        super().__init__(message)
        self.code, self.message, self.detail, self.rejection = code, message, detail, rejection
        self.reason = reason

    def status(self) -> status_pb2.Status:
        """Returns the error as a google.rpc.Status."""
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
    """Returns INVALID_ARGUMENT for one field.

    Args:
        field: Path of the field as in the .proto file, such as "options.max_new_tokens".
        problem: What is wrong with it, as a predicate of the field: "must be at least 1".
    """
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=problem)
    detail = error_details_pb2.BadRequest(field_violations=[violation])
    return ApiError(grpc.StatusCode.INVALID_ARGUMENT, f"{field} {problem}", detail, Rejection.INVALID)


def malformed() -> ApiError:
    """Returns INVALID_ARGUMENT for bytes that are not a valid message."""
    message = "the request can't be parsed: it is not a valid message of its type, or a string in it is not UTF-8"
    return ApiError(grpc.StatusCode.INVALID_ARGUMENT, message, rejection=Rejection.INVALID)


def unknown_model(name: str, known: list[str]) -> ApiError:
    """Returns NOT_FOUND, with the known names that are most similar."""
    shown = shorten(name)
    message = f"model {shown!r} is not served here; available: {list_nearest(known, name)}"
    detail = error_details_pb2.ResourceInfo(resource_type="dragoman.v1.Model", resource_name=shown, description=message)
    return ApiError(grpc.StatusCode.NOT_FOUND, message, detail, Rejection.UNKNOWN_MODEL)


def unavailable(message: str, rejection: Rejection | None = Rejection.UNAVAILABLE) -> ApiError:
    """Returns UNAVAILABLE, with a delay after which to retry, here or at another server."""
    return ApiError(grpc.StatusCode.UNAVAILABLE, message, _retry_after(RETRY_SECONDS), rejection)


def unauthenticated(problem: str) -> ApiError:
    """Returns UNAUTHENTICATED, with how to send a key."""
    message = f"{problem}; send a key as metadata, authorization: Bearer KEY"
    return ApiError(grpc.StatusCode.UNAUTHENTICATED, message, rejection=Rejection.UNAUTHENTICATED)


def forbidden(problem: str) -> ApiError:
    """Returns PERMISSION_DENIED."""
    return ApiError(grpc.StatusCode.PERMISSION_DENIED, problem, rejection=Rejection.FORBIDDEN)


def key_limit(error: OverLimitError) -> ApiError:
    """Returns RESOURCE_EXHAUSTED for an API key that is over one of its limits."""
    seconds = math.ceil(100 * error.retry_after) / 100
    message, detail = f"{error}; retry in {seconds:.2f} s", _retry_after(error.retry_after)
    return ApiError(grpc.StatusCode.RESOURCE_EXHAUSTED, message, detail, Rejection.KEY_LIMIT, error.reason)


def from_engine(error: EngineError) -> ApiError:
    """Returns the error that a client gets for a request that the engines refused or did not finish."""
    if isinstance(error, QueueFullError):
        detail, rejection, reason = _retry_after(error.retry_after), *QUEUE_BOUNDS[error.bound]
        return ApiError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), detail, rejection, reason)
    if isinstance(error, DeadlineExpiredError):
        return ApiError(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed before the answer was complete")
    if isinstance(error, OutOfMemoryError):
        detail = _retry_after(RETRY_SECONDS)
        return ApiError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), detail, reason="DEVICE_MEMORY")
    return unavailable(str(error), rejection=None)


def from_exception(error: Exception, event: str, **fields: object) -> ApiError:
    """Returns the error that a client gets for any exception. Unexpected ones are logged, and become INTERNAL.

    Args:
        event: Event of the log line.
        fields: Fields of the log line.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineError):
        return from_engine(error)
    log.error(event, **fields, exc_info=error)
    return ApiError(grpc.StatusCode.INTERNAL, "internal error of the server; its log has the details")


async def abort(context: grpc.aio.ServicerContext[object, object], error: ApiError, request_id: str) -> NoReturn:
    """Ends a call with the status of an error, and the id of the call in the trailers."""
    details = ((DETAILS_KEY, error.status().SerializeToString()), (REQUEST_ID, request_id))
    try:
        await context.abort(error.code, error.message, details)
    except grpc.aio.InternalError:  # gRPC can't send the status: the client has just left
        raise asyncio.CancelledError from None


def _truncate_texts(message: Message) -> None:
    """Truncates all strings in a message to DETAIL_BYTES."""
    for field, value in message.ListFields():
        if isinstance(value, str):
            setattr(message, field.name, truncate(value, DETAIL_BYTES))
        elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            for part in [value] if isinstance(value, Message) else value:
                _truncate_texts(part)


def _retry_after(seconds: float) -> error_details_pb2.RetryInfo:
    delay = duration_pb2.Duration()
    delay.FromNanoseconds(int(seconds * 1e9))
    return error_details_pb2.RetryInfo(retry_delay=delay)
