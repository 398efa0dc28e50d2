"""Requests, responses, addresses and errors of the client, without a server."""

import math
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2

import dragoman
from dragoman import messages
from dragoman.channel import target
from dragoman.errors import ItemError, NotFoundError, ServerError, concerns_one_input, from_status
from dragoman.results import FinishReason, Token
from dragoman.v1 import generation_pb2 as pb
from tests.scripted_server import Fail


def test_every_public_name_is_there() -> None:
    assert all(getattr(dragoman, name) for name in dragoman.__all__)
    assert set(dragoman.__all__) <= set(dir(dragoman))
    with pytest.raises(AttributeError, match="no attribute 'Clinet'"):
        dragoman.Clinet  # noqa: B018


def test_a_text_and_its_options_become_a_request() -> None:
    call = messages.generate("a\0א🙂", model="m", max_new_tokens=0, time_limit=0.25, tokens=True)
    assert call.request == pb.GenerateRequest(
        model="m",
        input=pb.Input(text="a\0א🙂"),
        options=pb.GenerationOptions(max_new_tokens=0, time_limit=duration_pb2.Duration(nanos=250_000_000)),
        details=pb.Details(tokens=True),
    )


def test_what_is_not_given_is_not_sent() -> None:
    request = messages.generate([5, 6, 3]).request
    assert list(request.input.token_ids.ids) == [5, 6, 3]
    assert not request.input.HasField("text")
    assert not request.options.ListFields()
    assert not request.details.ListFields()


def test_empty_text_and_empty_ids_are_sent_for_the_server_to_judge() -> None:
    assert messages.generate("").request.input.HasField("text")
    assert messages.generate([]).request.input.HasField("token_ids")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ab\ud83d", r"text: 'ab\\ud83d' has the lone surrogate U\+D83D at position 2 and cannot be sent"),
        ("\udc80", r"U\+DC80 at position 0 \(byte 0x80, which is not valid UTF-8\)"),
        ("x" * 500 + "\udfff" + "y" * 500, r"text: 'x{30}\\udfffy{29}' has .* at position 500"),
    ],
)
def test_a_lone_surrogate_is_named_with_its_place(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        messages.generate(text)
    with pytest.raises(ValueError, match="lone surrogate"):
        messages.tokenize(text, model="", side="source")


@pytest.mark.parametrize(
    ("source", "options", "error"),
    [
        ([2**31], {}, ValueError),
        ([1.5], {}, TypeError),
        (b"ab", {}, TypeError),
        (None, {}, TypeError),
        ("a", {"max_new_tokens": 2**40}, ValueError),
        ("a", {"max_new_tokens": "3"}, TypeError),
        ("a", {"time_limit": math.nan}, ValueError),
        ("a", {"time_limit": math.inf}, ValueError),
        ("a", {"model": "\ud800"}, ValueError),
        ("a", {"temprature": 1}, TypeError),
    ],
)
def test_what_cannot_be_sent_is_refused(source: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        messages.generate(source, **options)


def test_a_side_is_one_of_two() -> None:
    with pytest.raises(ValueError, match="side: expected"):
        messages.tokenize("a", model="", side="left")  # type: ignore[arg-type]


def test_an_answer_is_read() -> None:
    hypothesis = pb.Hypothesis(text="A", finish_reason=pb.FINISH_REASON_TIME_LIMIT, target_tokens=1)
    hypothesis.tokens.add(id=4, text="a", log_probability=0)
    answer = messages.generate("a").parse(pb.GenerateResponse(hypotheses=[hypothesis], source_tokens=2, model="m"))
    assert (answer.text, answer.finish_reason, answer.model) == ("A", FinishReason.TIME_LIMIT, "m")
    assert (answer.source_tokens, answer.target_tokens, answer.log_probability) == (2, 1, None)
    assert answer.tokens == (Token(4, "a", 0.0),)


def test_a_finish_reason_of_a_later_server_does_no_harm() -> None:
    response = pb.GenerateResponse(hypotheses=[pb.Hypothesis(finish_reason=99)])  # type: ignore[arg-type]
    assert messages.generate("a").parse(response).finish_reason is FinishReason.UNSPECIFIED


def test_an_answer_without_a_hypothesis_is_the_server_s_error() -> None:
    with pytest.raises(ServerError, match="no hypothesis"):
        messages.generate("a").parse(pb.GenerateResponse())


def test_a_batch_leaves_out_what_cannot_be_sent_and_keeps_the_order() -> None:
    call = messages.generate_batch(["a", "\ud800", "b"])
    assert [each.text for each in call.request.inputs] == ["a", "b"]
    refusal = Fail(grpc.StatusCode.INVALID_ARGUMENT, "is bad", field="inputs[1].text").status()
    items = [
        pb.BatchItem(response=pb.GenerateResponse(hypotheses=[pb.Hypothesis(text="A")])),
        pb.BatchItem(error=refusal),
    ]
    first, second, third = call.parse(pb.GenerateBatchResponse(items=items))
    assert not isinstance(first, ItemError)
    assert first.text == "A"
    assert isinstance(second, ItemError)
    assert (second.index, second.code) == (1, "INVALID_ARGUMENT")
    assert "lone surrogate" in str(second)
    assert isinstance(third, ItemError)
    assert (third.index, str(third.error)) == (2, "inputs[1].text is bad")
    with pytest.raises(ServerError, match="answered 1 of 2 inputs"):
        call.parse(pb.GenerateBatchResponse(items=items[:1]))


def test_a_status_becomes_an_exception_that_reads_well() -> None:
    error = from_status(
        Fail(grpc.StatusCode.INVALID_ARGUMENT, "must be 1 to 47, got 0", field="options.max_new_tokens").status()
    )
    assert isinstance(error, dragoman.InvalidArgumentError)
    assert str(error) == "options.max_new_tokens must be 1 to 47, got 0"
    assert error.violations[0].field == "options.max_new_tokens"
    status = Fail(grpc.StatusCode.INVALID_ARGUMENT, "must not be 0", field="a.b").status()
    status.message = "bad request"
    assert str(from_status(status)) == "a.b: must not be 0"
    full = from_status(Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", retry_after=0.25).status())
    assert isinstance(full, dragoman.ResourceExhaustedError)
    assert (str(full), full.retry_after) == ("the queue is full", 0.25)
    odd = from_status(Fail(grpc.StatusCode.DATA_LOSS, "").status())
    assert (type(odd), odd.code) == (ServerError, "DATA_LOSS")
    assert str(odd) == "the server answered DATA_LOSS without a message"


def test_a_wrong_option_concerns_every_input() -> None:
    def refusal(field: str | None) -> bool:
        return concerns_one_input(from_status(Fail(grpc.StatusCode.INVALID_ARGUMENT, "no", field=field).status()))

    assert refusal("input.text")
    assert refusal(None)
    assert not refusal("options.max_new_tokens")
    assert not concerns_one_input(NotFoundError("no such model"))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("localhost:50051", "dns:///localhost:50051"),
        ("[::1]:50051", "dns:///[::1]:50051"),
        ("127.0.0.1:1,127.0.0.2:2", "ipv4:127.0.0.1:1,127.0.0.2:2"),
        (["127.0.0.1:1", " 127.0.0.2:2"], "ipv4:127.0.0.1:1,127.0.0.2:2"),
        ("[::1]:1,[::1]:2", "ipv6:[::1]:1,[::1]:2"),
        ("unix:/run/dragoman.sock", "unix:/run/dragoman.sock"),
        ("dns:///headless:50051", "dns:///headless:50051"),
    ],
)
def test_an_address_becomes_a_target(address: str | list[str], expected: str) -> None:
    assert target(address) == expected


@pytest.mark.parametrize(
    "address", ["", "localhost", "localhost:", ":50051", "localhost:0", "localhost:99999", "a:b", "a:1,"]
)
def test_an_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="address: expected HOST:PORT"):
        target(address)


def test_addresses_of_two_ip_versions_are_refused() -> None:
    with pytest.raises(ValueError, match="one IP version"):
        target("127.0.0.1:1,[::1]:2")
