"""What a refused call says."""

from typing import Any, cast

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status


def detail(error: grpc.aio.AioRpcError, kind: type[Any]) -> Any:
    """The error's only google.rpc detail, which must be of this kind."""
    status = rpc_status.from_call(cast("grpc.Call", error))
    assert status is not None
    assert (status.code, status.message) == (error.code().value[0], error.details())
    [packed] = status.details
    unpacked = kind()
    assert packed.Unpack(unpacked)
    return unpacked


def assert_refused(error: grpc.aio.AioRpcError, field: str, words: str) -> None:
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    [violation] = detail(error, error_details_pb2.BadRequest).field_violations
    assert violation.field == field
    assert words in violation.description
    assert error.details() == f"{field} {violation.description}"
