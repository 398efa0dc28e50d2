"""What calls are answered, in a form that is the same whenever the answer is."""

import math
from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from tests.soak.asks import Ask

RESPONSES: dict[str, type[Message]] = {
    "Generate": pb.GenerateResponse,
    "GenerateStream": pb.GenerateStreamResponse,
    "GenerateBatch": pb.GenerateBatchResponse,
    "Score": pb.ScoreResponse,
    "ModelInfer": oip.ModelInferResponse,
    "ModelStreamInfer": oip.ModelStreamInferResponse,
}
TOLERANCE = 1e-5  # of log-probabilities and shares of attention
EXHAUSTED = "RESOURCE_EXHAUSTED"


class WrongAnswerError(Exception):
    """The message says what is wrong with it, whatever it should be."""


class RefusedError(Exception):
    """One of the requests of a stream, or inputs of a batch, was refused; the message begins with the status."""


def open_call(channel: grpc.aio.Channel, ask: Ask, timeout: float | None = None) -> Any:
    """Begins a call."""
    parse = RESPONSES[ask.name].FromString
    to_bytes = type(ask.requests[0]).SerializeToString
    if len(ask.requests) > 1 or ask.name == "ModelStreamInfer":
        return channel.stream_stream(ask.method, to_bytes, parse)(iter(ask.requests), timeout=timeout)
    if ask.streams:
        return channel.unary_stream(ask.method, to_bytes, parse)(ask.requests[0], timeout=timeout)
    return channel.unary_unary(ask.method, to_bytes, parse)(ask.requests[0], timeout=timeout)


def whole(ask: Ask, messages: Sequence[Any]) -> Any:
    """The answer as one object, to be compared by `same`.

    Args:
        messages: all that came, one for a unary call.

    Raises:
        WrongAnswerError: they contradict each other.
        RefusedError: not all of it is there.
    """
    if ask.name == "GenerateStream":
        return _joined(messages).SerializeToString(deterministic=True)
    if ask.name == "ModelStreamInfer":
        return _sorted_out(ask, messages)
    [message] = messages
    if ask.name == "GenerateBatch":
        for item in message.items:
            if item.HasField("error"):
                raise RefusedError(f"{_status_name(item.error.code)}: {item.error.message}")
    return message.SerializeToString(deterministic=True)


def _joined(messages: Sequence[pb.GenerateStreamResponse]) -> pb.GenerateResponse:
    """The last message of a stream; the pieces before are its texts."""
    texts: dict[int, str] = {}
    for message in messages:
        texts[message.hypothesis] = texts.get(message.hypothesis, "") + message.text
    if not messages or not messages[-1].HasField("final"):
        raise WrongAnswerError("a stream ended without its last message")
    final = messages[-1].final
    if any(texts.get(index, "") != hypothesis.text for index, hypothesis in enumerate(final.hypotheses)):
        raise WrongAnswerError("the pieces of a stream are not the text that it ends with")
    return final


def _sorted_out(ask: Ask, messages: Sequence[oip.ModelStreamInferResponse]) -> dict[str, Any]:
    """By id of the request: its outputs, pieces of text joined, and tensors that come whole as they are."""
    found: dict[str, dict[str, Any]] = {}
    ended: set[str] = set()
    for message in messages:
        if message.error_message:
            raise RefusedError(message.error_message)
        response = message.infer_response
        if response.id in ended:
            raise WrongAnswerError("something came behind the last response to a request")
        outputs = found.setdefault(response.id, {})
        for index, tensor in enumerate(response.outputs):
            if response.raw_output_contents:
                raw = response.raw_output_contents[index]
                values = _elements(raw) if tensor.datatype == "BYTES" else [raw]
            else:
                values = list(tensor.contents.bytes_contents) or [tensor.contents.SerializeToString(deterministic=True)]
            if tensor.name == "text":
                before = outputs.get("text") or [b""] * len(values)
                values = [head + tail for head, tail in zip(before, values, strict=True)]
            if tensor.name != "tokens":  # arrays whose borders depend on how fast the pieces are read
                outputs[tensor.name] = values
        if response.parameters["triton_final_response"].bool_param:
            ended.add(response.id)
    if ended != {request.id for request in ask.requests if isinstance(request, oip.ModelInferRequest)}:
        raise WrongAnswerError("a stream ended before all of its requests were answered")
    return found


def _elements(raw: bytes) -> list[bytes]:
    elements, at = [], 0
    while at < len(raw):
        end = at + 4 + int.from_bytes(raw[at : at + 4], "little")
        elements.append(raw[at + 4 : end])
        at = end
    return elements


def _status_name(number: int) -> str:
    return next((code.name for code in grpc.StatusCode if code.value[0] == number), str(number))


def same(ask: Ask, right: Any, found: Any) -> bool:
    """Whether two answers are the same, as `whole` gives them.

    Bit by bit, but for the numbers of Score: those depend in their last digits on what is scored in the same run.
    """
    if found == right:
        return True
    if ask.name != "Score":
        return False
    return _alike(pb.ScoreResponse.FromString(right), pb.ScoreResponse.FromString(found))


def _alike(right: Any, found: Any) -> bool:
    """Whether messages, or values of their fields, are the same, numbers within a tolerance."""
    if isinstance(right, Message):
        wanted, other = dict(right.ListFields()), dict(found.ListFields())
        return wanted.keys() == other.keys() and all(_alike(value, other[field]) for field, value in wanted.items())
    if isinstance(right, float):
        return math.isclose(right, found, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if isinstance(right, int | str):
        return bool(right == found)
    return len(right) == len(found) and all(map(_alike, right, found))


def beginning(ask: Ask, right: Any, found: Any) -> bool:
    """Whether an answer that was cut by a time limit can be the start of the right one, as far as that can be told.

    Args:
        right, found: as `whole` gives them, of a call that may have a time limit.
    """
    if ask.name == "GenerateBatch":
        [request] = ask.requests
        wanted = [item.response for item in pb.GenerateBatchResponse.FromString(right).items]
        cut = [item.response for item in pb.GenerateBatchResponse.FromString(found).items]
        return len(wanted) == len(cut) and all(_begins(request, *pair) for pair in zip(wanted, cut, strict=True))
    return _begins(ask.requests[0], pb.GenerateResponse.FromString(right), pb.GenerateResponse.FromString(found))


def _begins(request: Any, right: pb.GenerateResponse, found: pb.GenerateResponse) -> bool:
    options = request.options
    # What a beam held at that moment need not be on the way to its answer; and a text may end within a stop sequence.
    if options.HasField("beam_size") or options.alternatives or len(found.hypotheses) > 1 or options.stop_sequences:
        return True
    if found.hypotheses[0].finish_reason != pb.FINISH_REASON_TIME_LIMIT:
        return found == right
    return right.hypotheses[0].text.startswith(found.hypotheses[0].text)
