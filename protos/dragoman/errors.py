"""The client's exceptions, and their construction from gRPC errors."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

REQUEST_ID = "x-request-id"
"""The metadata key of a call's id, both in the request and in the trailers of the response."""

ConnectionFailure = Literal["unready", "tls", "closed", "network"]

_STATUS_DETAILS_KEY = "grpc-status-details-bin"
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
_NOT_READY = "it is not ready: its model is loading, or it is shutting down"
# gRPC's messages for servers that fail its health check, and ours.
_UNREADY = {"backend unhealthy": _NOT_READY, "health check call failed": "it does not report whether it is ready"}
_PROXY_REFUSED = re.compile(r"HTTP proxy returned response code (\d+)")
_OTHER_NAME = "the server's certificate is for another name; if it is the right server, pass that name (--server-name)"
_TLS_FAULTS = {
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate has expired or is not signed by a trusted authority",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "Hostname Verification": _OTHER_NAME,
    "is not in peer certificate": _OTHER_NAME,
}
_CLOSED = re.compile("socket closed|connection reset by peer|end of tcp stream", re.IGNORECASE)
_CLOSED_HINT = "something listens there, but it requires TLS or a client certificate, or has no server behind it"
# Codes for which the server's log may say more. Other errors are complete in themselves.
_SERVER_FAULTS = {"INTERNAL", "UNKNOWN", "DATA_LOSS", "UNAVAILABLE", "DEADLINE_EXCEEDED"}
TIMED_OUT = "the timeout passed before the answer arrived"
_TIMEOUTS = {"Deadline Exceeded", "Stream removed (Deadline Exceeded)"}
_LOST = re.compile(r"^Stream removed \((?!Deadline Exceeded|Channel closed)(.*)\)$")
# The connection was never established; the reason follows the last colon.
_NO_CONNECTION = re.compile(r"failed to connect to all addresses|connections to all backends failing|errors resolving")


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """An invalid field of a request.

    Attributes:
        field: Path of the field as in the .proto file, such as "options.max_new_tokens".
        description: What is wrong with it.
    """

    field: str
    description: str

    def __str__(self) -> str:
        return f"{self.field}: {self.description}" if self.field else self.description


class DragomanError(Exception):
    """A call that failed. str() is one readable sentence.

    Attributes:
        code: Name of the gRPC status code, such as "INVALID_ARGUMENT".
        violations: The invalid fields, if the server named them.
        retry_after: Seconds after which the server suggests a retry, if it does.
        request_id: Id of the call in the server's log and traces; None if the call never reached a server. Tracebacks
            show it if the log may say more.
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
    """The request is invalid. A retry would fail again."""

    code = "INVALID_ARGUMENT"


class NotFoundError(DragomanError):
    """The server has no such model."""

    code = "NOT_FOUND"


class ResourceExhaustedError(DragomanError):
    """The queue is full, the API key has reached its limit, or a message is over the size limit.

    `retry_after` is set in the first two cases.
    """

    code = "RESOURCE_EXHAUSTED"


class DeadlineExceededError(DragomanError):
    """The timeout passed before the answer arrived."""

    code = "DEADLINE_EXCEEDED"


class UnauthenticatedError(DragomanError):
    """The server requires an API key, or does not accept the one it got."""

    code = "UNAUTHENTICATED"


class UnavailableError(DragomanError):
    """No server answers at the address, or the server is loading or draining.

    Attributes:
        connection_failure: Why the call reached no server: "unready" if the servers report that they are not ready or
            do not report that they are, "tls" if client and server disagree on TLS, "closed" if the peer hangs up, and
            "network" otherwise. None if the call reached a server.
    """

    code = "UNAVAILABLE"
    connection_failure: ConnectionFailure | None = None


class CallCancelledError(DragomanError):
    """The call was cancelled."""

    code = "CANCELLED"


class ServerError(DragomanError):
    """Any other failure of the server; see `code`."""


class ItemError(DragomanError):
    """The failure of one input among many.

    Attributes:
        index: Position of the input, from 0.
        error: The failure itself.
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


# Codes that may concern one input only. All others (no server, no such model, no permission) recur for every input.
_CODES_OF_ONE_INPUT = {"RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "CANCELLED", "INTERNAL", "UNKNOWN", "OUT_OF_RANGE"}


def concerns_one_input(error: DragomanError) -> bool:
    """Returns whether an error may concern this input only, rather than all inputs with the same options."""
    if isinstance(error, InvalidArgumentError):
        # `details.attention` is refused for long inputs.
        return not error.violations or any(
            violation.field.startswith("input") or violation.field == "details.attention"
            for violation in error.violations
        )
    return error.code in _CODES_OF_ONE_INPUT


def from_rpc_error(
    error: Any, address: str, request_id: str | None = None, *, proxy: str | None = None
) -> DragomanError:
    """Returns the exception for a grpc.RpcError (of grpc or grpc.aio).

    Args:
        address: Address of the server, as the user wrote it.
        request_id: Id that was sent with the call. The server may have replaced it.
        proxy: Environment variable that sets the proxy of this call, if there is one.
    """
    status = status_pb2.Status()
    for key, value in error.trailing_metadata() or ():
        if key == _STATUS_DETAILS_KEY:
            status = _status(value)
        elif key == REQUEST_ID:
            request_id = value
    code, message = error.code(), error.details() or ""
    connection_failure: ConnectionFailure | None = None
    if code is grpc.StatusCode.UNAVAILABLE and _NO_CONNECTION.search(message):
        reason, connection_failure = _connection_failure(message)
        if proxy is not None:
            reason = f"through the proxy in {proxy}: {reason}; add the host to no_proxy to bypass the proxy"
        message, request_id = _unreachable(address, reason), None
    elif code is grpc.StatusCode.DEADLINE_EXCEEDED and message in _TIMEOUTS:
        message = TIMED_OUT
    if lost := _LOST.search(message):
        # The connection broke during the call; gRPC does not report that as UNAVAILABLE.
        code, message = grpc.StatusCode.UNAVAILABLE, f"the connection to {address} was lost ({lost[1]})"
    failure = _build(code, message, status.details)
    if isinstance(failure, UnavailableError):
        failure.connection_failure = connection_failure
    if request_id is not None:
        failure.request_id = request_id
        if failure.code in _SERVER_FAULTS:
            failure.add_note(f"request id: {request_id}")
    return failure


def from_status(status: status_pb2.Status) -> DragomanError:
    """Returns the exception for a google.rpc.Status, such as that of a batch item."""
    return _build(_CODES.get(status.code, grpc.StatusCode.UNKNOWN), status.message, status.details)


def _status(content: bytes) -> status_pb2.Status:
    """Returns the status in the trailers of a call; an empty one if something between has damaged it."""
    try:
        return status_pb2.Status.FromString(content)
    except DecodeError:
        return status_pb2.Status()


def _holds(detail: Any, kind: Message) -> bool:
    """Fills a message with a detail; returns False for one of another kind, or a damaged one."""
    try:
        return bool(detail.Unpack(kind))
    except DecodeError:
        return False


def not_ready(address: str) -> UnavailableError:
    """Returns the error for a server that is up but takes no calls."""
    return UnavailableError(_unreachable(address, _NOT_READY))


def _unreachable(address: str, reason: str) -> str:
    return f"no server can be reached at {address} ({reason})"


def _connection_failure(message: str) -> tuple[str, ConnectionFailure]:
    """Returns the reason why there is no connection, as text and as `UnavailableError.connection_failure`."""
    for pattern, reason in _UNREADY.items():
        if pattern in message:
            return reason, "unready"
    if refused := _PROXY_REFUSED.search(message):
        return f"the proxy answered with HTTP status {refused[1]}", "network"
    for pattern, reason in _TLS_FAULTS.items():
        if pattern in message:
            return reason, "tls"
    reason = message.rpartition(": ")[2].rstrip("] ")
    reason = reason[:1].lower() + reason[1:]
    return (f"{reason}: {_CLOSED_HINT}", "closed") if _CLOSED.search(reason) else (reason, "network")


def _build(code: grpc.StatusCode, message: str, details: Iterable[Any]) -> DragomanError:
    violations: list[FieldViolation] = []
    retry_after = None
    for detail in details:
        bad_request = error_details_pb2.BadRequest()
        retry_info = error_details_pb2.RetryInfo()
        if _holds(detail, bad_request):
            violations += [FieldViolation(each.field, each.description) for each in bad_request.field_violations]
        elif _holds(detail, retry_info):
            retry_after = retry_info.retry_delay.seconds + retry_info.retry_delay.nanos * 1e-9
    # Dragoman's messages name the field. Those of another server, such as a proxy, may not: then the violations do.
    if not message or not all(violation.field in message for violation in violations):
        message = "; ".join(map(str, violations)) or message or f"the server answered {code.name} without a message"
    error_class = _CLASSES.get(code.name, ServerError)
    return error_class(message, code=code.name, violations=tuple(violations), retry_after=retry_after)
