"""The client's exceptions, and how gRPC's errors become them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import grpc
from google.rpc import error_details_pb2, status_pb2

from dragoman.names import REQUEST_ID

Unconnected = Literal["unready", "tls", "closed", "network"]

_STATUS_DETAILS_KEY = "grpc-status-details-bin"
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
# gRPC's words for what may come between, and ours.
_NOT_READY = "it is not ready: its model is loading, or it is shutting down"
_UNREADY = {"backend unhealthy": _NOT_READY, "health check call failed": "it does not say whether it is ready"}
_PROXY_REFUSED = re.compile(r"HTTP proxy returned response code (\d+)")
_OTHER_NAME = "the server's certificate is for another name; if that is the server meant, give its name (--server-name)"
_TLS_FAULTS = {
    "CERTIFICATE_VERIFY_FAILED": "nobody who is trusted here has signed the server's certificate, or it has expired",
    "WRONG_VERSION_NUMBER": "it does not talk TLS",
    "Hostname Verification": _OTHER_NAME,
    "is not in peer certificate": _OTHER_NAME,
}
_CLOSED = re.compile("socket closed|connection reset by peer|end of tcp stream", re.IGNORECASE)
_BEHIND = "something listens there, but speaks TLS alone, wants a client's certificate, or has no server behind it"
# Of which the server's log may tell more; other failures say all themselves.
_SERVER_FAULTS = {"INTERNAL", "UNKNOWN", "DATA_LOSS", "UNAVAILABLE", "DEADLINE_EXCEEDED"}
_PASSED = {"Deadline Exceeded", "Stream removed (Deadline Exceeded)"}
_LOST = re.compile(r"^Stream removed \((?!Deadline Exceeded|Channel closed)(.*)\)$")
# For a connection that never came about; the reason stands after the last colon.
_NO_CONNECTION = re.compile(r"failed to connect to all addresses|connections to all backends failing|errors resolving")


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """A field of the request, named as in the .proto file, and what is wrong with it."""

    field: str
    description: str

    def __str__(self) -> str:
        return f"{self.field}: {self.description}" if self.field else self.description


class DragomanError(Exception):
    """A call that failed; str() is one readable sentence.

    Attributes:
        code: the gRPC status code's name, such as "INVALID_ARGUMENT".
        violations: the fields that are wrong, where the server named them.
        retry_after: seconds after which the server wants to be asked again, where it said so.
        request_id: the name of the call in the server's log and traces; None where it can't have come there. A
            traceback shows it where that may tell more.
    """

    code = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        violations: tuple[FieldViolation, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code or type(self).code
        self.violations = violations
        self.retry_after = retry_after
        self.request_id: str | None = None


class InvalidArgumentError(DragomanError):
    """The request is wrong; sending it again will not help."""

    code = "INVALID_ARGUMENT"


class NotFoundError(DragomanError):
    """The server has no such model."""

    code = "NOT_FOUND"


class ResourceExhaustedError(DragomanError):
    """The server's queue is full or the API key has had its share (`retry_after` says when to come again), or a message
    is over the size limit."""

    code = "RESOURCE_EXHAUSTED"


class DeadlineExceededError(DragomanError):
    """The call's timeout passed before the answer came."""

    code = "DEADLINE_EXCEEDED"


class UnauthenticatedError(DragomanError):
    """The server wants an API key, or does not know the one it was sent."""

    code = "UNAUTHENTICATED"


class UnavailableError(DragomanError):
    """No server answers at the address, or it is loading or draining.

    Attributes:
        unconnected: why no server was sent the call: "unready" where they say that they are not ready, or do not say
            that they are; "tls" where client and server do not agree on TLS; "closed" where what listens there hangs
            up; else "network". None where that is not why.
    """

    code = "UNAVAILABLE"
    unconnected: Unconnected | None = None


class CallCancelledError(DragomanError):
    """The call was cancelled."""

    code = "CANCELLED"


class ServerError(DragomanError):
    """Any other failure of the server; `code` says which."""


class ItemError(DragomanError):
    """The failure of one of many inputs.

    Attributes:
        index: the input's place, counted from 0.
        error: what went wrong with it.
    """

    def __init__(self, index: int, error: DragomanError) -> None:
        super().__init__(
            f"input {index}: {error}", code=error.code, violations=error.violations, retry_after=error.retry_after
        )
        self.index = index
        self.error = error
        self.request_id = error.request_id


_CLASSES: dict[str, type[DragomanError]] = {
    kind.code: kind
    for kind in (
        InvalidArgumentError,
        NotFoundError,
        ResourceExhaustedError,
        DeadlineExceededError,
        UnauthenticatedError,
        UnavailableError,
        CallCancelledError,
    )
}


# What meets one input among many. The rest (no server, no such model, no permission) would meet the next one too.
_CODES_OF_ONE_INPUT = {"RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "CANCELLED", "INTERNAL", "UNKNOWN", "OUT_OF_RANGE"}


def concerns_one_input(error: DragomanError) -> bool:
    """Whether, of many inputs with the same options, the error may concern this one only."""
    if isinstance(error, InvalidArgumentError):
        # Whether there is room for all attention depends on the input's length.
        return not error.violations or any(
            each.field.startswith("input") or each.field == "details.attention" for each in error.violations
        )
    return error.code in _CODES_OF_ONE_INPUT


def from_rpc_error(
    error: Any, address: str, request_id: str | None = None, *, proxy: str | None = None
) -> DragomanError:
    """The exception for a grpc.RpcError (grpc or grpc.aio) of a call to `address`.

    Args:
        request_id: the name that it was sent with. The server may have given it another.
        proxy: the variable of the environment that names the proxy which it goes by.
    """
    status = status_pb2.Status()
    for key, value in error.trailing_metadata() or ():
        if key == _STATUS_DETAILS_KEY:
            status.ParseFromString(value)
        elif key == REQUEST_ID:
            request_id = value
    message = error.details() or ""
    unconnected: Unconnected | None = None
    if error.code() is grpc.StatusCode.UNAVAILABLE and _NO_CONNECTION.search(message):
        reason, unconnected = _reason(message)
        if proxy is not None:
            way = f"through the proxy that {proxy} names"
            reason = f"{way}: {reason}; list the host in no_proxy to go there without it"
        message, request_id = _unreached(address, reason), None
    elif error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and message in _PASSED:
        message = "the timeout passed before the answer came"
    code = error.code()
    if lost := _LOST.search(message):
        # The connection went in the middle of a call, and gRPC does not say so by its code.
        code, message = grpc.StatusCode.UNAVAILABLE, f"the connection to {address} was lost ({lost[1]})"
    failure = _build(code, message, status.details)
    if isinstance(failure, UnavailableError):
        failure.unconnected = unconnected
    if request_id is not None:
        failure.request_id = request_id
        if failure.code in _SERVER_FAULTS:
            failure.add_note(f"request id: {request_id}")
    return failure


def not_ready(address: str) -> UnavailableError:
    """There is a server, and it takes no calls."""
    return UnavailableError(_unreached(address, _NOT_READY))


def _unreached(address: str, reason: str) -> str:
    return f"no server can be reached at {address} ({reason})"


def _reason(message: str) -> tuple[str, Unconnected]:
    """Why there is no connection, in words and as in UnavailableError."""
    for words, reason in _UNREADY.items():
        if words in message:
            return reason, "unready"
    if refused := _PROXY_REFUSED.search(message):
        return f"the proxy answered with HTTP status {refused[1]}", "network"
    for words, reason in _TLS_FAULTS.items():
        if words in message:
            return reason, "tls"
    reason = message.rpartition(": ")[2].rstrip("] ")
    reason = reason[:1].lower() + reason[1:]
    return (f"{reason}: {_BEHIND}", "closed") if _CLOSED.search(reason) else (reason, "network")


def from_status(status: status_pb2.Status) -> DragomanError:
    """The exception for a google.rpc.Status, such as a batch item's."""
    return _build(_CODES.get(status.code, grpc.StatusCode.UNKNOWN), status.message, status.details)


def _build(code: grpc.StatusCode, message: str, details: Iterable[Any]) -> DragomanError:
    violations: list[FieldViolation] = []
    retry_after = None
    for detail in details:
        bad_request = error_details_pb2.BadRequest()
        retry_info = error_details_pb2.RetryInfo()
        if detail.Unpack(bad_request):
            violations += [FieldViolation(each.field, each.description) for each in bad_request.field_violations]
        elif detail.Unpack(retry_info):
            retry_after = retry_info.retry_delay.ToTimedelta().total_seconds()
    # Dragoman's own sentences name the field; where another server's (a proxy's) do not, the violations say more.
    if not message or not all(each.field in message for each in violations):
        message = "; ".join(map(str, violations)) or message or f"the server answered {code.name} without a message"
    kind = _CLASSES.get(code.name, ServerError)
    return kind(message, code=code.name, violations=tuple(violations), retry_after=retry_after)
