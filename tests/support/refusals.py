"""Assertions about calls that fail."""

from typing import Any, cast

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status


async def refused(call: Any) -> grpc.aio.AioRpcError:
    """Awaits a call, or reads from a stream, that must fail. Returns the error."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await (call.read() if hasattr(call, "read") else call)
    return error.value


def detail(error: grpc.aio.AioRpcError, kind: type[Any]) -> Any:
    """Returns the first google.rpc detail of an error, which must be of this kind."""
    status = rpc_status.from_call(cast("grpc.Call", error))
    assert status is not None
    assert (status.code, status.message) == (error.code().value[0], error.details())
    unpacked = kind()
    assert status.details[0].Unpack(unpacked)
    return unpacked


def retry_seconds(error: grpc.aio.AioRpcError) -> float:
    """Returns the delay before a retry that an error suggests."""
    seconds: float = detail(error, error_details_pb2.RetryInfo).retry_delay.ToNanoseconds() / 1e9
    return seconds


def violation(error: grpc.aio.AioRpcError) -> tuple[str, str]:
    """Returns the field and the problem of an INVALID_ARGUMENT error."""
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    [violation] = detail(error, error_details_pb2.BadRequest).field_violations
    assert error.details() == f"{violation.field} {violation.description}"
    return violation.field, violation.description


def assert_refused(error: grpc.aio.AioRpcError, field: str, words: str) -> None:
    """Asserts that an error names a field, and contains some words about it."""
    violated, problem = violation(error)
    assert violated == field
    assert words in problem
