"""Every call of the client has a name, and its error tells it where the server's log may tell more."""

from typing import Any

import grpc
import pytest

from dragoman.cli.common import error_message as sentence
from dragoman.errors import UnavailableError, from_rpc_error
from dragoman.retry import NO_RETRY, Attempts, RetryPolicy


class Failure:
    """What gRPC raises."""

    def __init__(self, code: grpc.StatusCode, details: str = "went wrong", **trailing: str) -> None:
        self._code, self._details, self._trailing = code, details, trailing

    def code(self) -> Any:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return tuple((key.replace("_", "-"), value) for key, value in self._trailing.items())


@pytest.mark.parametrize(
    ("failure", "name", "told"),
    [
        (Failure(grpc.StatusCode.INTERNAL, x_request_id="theirs"), "theirs", "went wrong (request id: theirs)"),
        (Failure(grpc.StatusCode.INTERNAL), "ours", "went wrong (request id: ours)"),
        (Failure(grpc.StatusCode.INVALID_ARGUMENT, x_request_id="theirs"), "theirs", "went wrong"),
        (
            Failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"),
            "ours",
            "the timeout passed before the answer arrived (request id: ours)",
        ),
        (
            Failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Stream removed (Deadline Exceeded)"),
            "ours",
            "the timeout passed before the answer arrived (request id: ours)",
        ),
        (
            Failure(grpc.StatusCode.UNKNOWN, "Stream removed (Data frame with END_STREAM flag received)"),
            "ours",
            "the connection to host:1 was lost (Data frame with END_STREAM flag received) (request id: ours)",
        ),
        (
            Failure(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; last error: x: Refused"),
            None,
            "no server can be reached at host:1 (refused)",
        ),
    ],
)
def test_an_error_has_the_name_that_the_server_logged_or_was_sent(
    failure: Failure, name: str | None, told: str
) -> None:
    error = from_rpc_error(failure, "host:1", "ours")
    assert (error.request_id, sentence(error)) == (name, told)


def test_a_call_keeps_its_name_in_all_attempts_and_shares_it_with_no_other() -> None:
    names = {Attempts(NO_RETRY, None).request_id for _ in range(10)}
    assert len(names) == 10


def test_a_call_whose_connection_was_lost_is_sent_again() -> None:
    lost = from_rpc_error(Failure(grpc.StatusCode.UNKNOWN, "Stream removed (Socket closed)"), "host:1")
    assert isinstance(lost, UnavailableError)
    assert Attempts(RetryPolicy(), 60).delay_after(lost) is not None
    own = from_rpc_error(Failure(grpc.StatusCode.UNKNOWN, "the model has no such word"), "host:1")
    assert not isinstance(own, UnavailableError)
