"""Answers of calls, in a form that can be compared."""

import math
from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from tests.soak.calls import Call

RESPONSES: dict[str, type[Message]] = {
    "Generate": pb.GenerateResponse,
    "GenerateStream": pb.GenerateStreamResponse,
    "GenerateBatch": pb.GenerateBatchResponse,
    "Score": pb.ScoreResponse,
    "ModelInfer": oip.ModelInferResponse,
    "ModelStreamInfer": oip.ModelStreamInferResponse,
}
TOLERANCE = 1e-5  # of log-probabilities and attention weights
EXHAUSTED = "RESOURCE_EXHAUSTED"


class WrongAnswerError(Exception):
    """The messages of an answer contradict each other, whatever the expected answer is."""


class RefusedError(Exception):
    """A request of a stream or an item of a batch was refused; the message begins with the status."""


def open_call(channel: grpc.aio.Channel, call: Call, timeout: float | None = None) -> Any:
    """Starts a call."""
    parse = RESPONSES[call.name].FromString
    to_bytes = type(call.requests[0]).SerializeToString
    if len(call.requests) > 1 or call.name == "ModelStreamInfer":
        return channel.stream_stream(call.method, to_bytes, parse)(iter(call.requests), timeout=timeout)
    if call.streams:
        return channel.unary_stream(call.method, to_bytes, parse)(call.requests[0], timeout=timeout)
    return channel.unary_unary(call.method, to_bytes, parse)(call.requests[0], timeout=timeout)


def assemble(call: Call, messages: Sequence[Any]) -> Any:
    """Returns the answer as one object, which `is_same` compares.

    Args:
        messages: All messages received, one for a unary call.

    Raises:
        WrongAnswerError: The messages contradict each other.
        RefusedError: A part of the call was refused.
    """
    if call.name == "GenerateStream":
        return _assemble_generation(messages).SerializeToString(deterministic=True)
    if call.name == "ModelStreamInfer":
        return _assemble_inference(call, messages)
    [message] = messages
    if call.name == "GenerateBatch":
        for item in message.items:
            if item.HasField("error"):
                raise RefusedError(f"{_status_name(item.error.code)}: {item.error.message}")
    return message.SerializeToString(deterministic=True)


def _assemble_generation(messages: Sequence[pb.GenerateStreamResponse]) -> pb.GenerateResponse:
    """Returns the final response of a stream, and checks that its text deltas add up to it."""
    texts: dict[int, str] = {}
    for message in messages:
        texts[message.hypothesis] = texts.get(message.hypothesis, "") + message.text
    if not messages or not messages[-1].HasField("final"):
        raise WrongAnswerError("a stream ended without its final message")
    final = messages[-1].final
    if any(texts.get(index, "") != hypothesis.text for index, hypothesis in enumerate(final.hypotheses)):
        raise WrongAnswerError("the text deltas of a stream differ from its final text")
    return final


def _assemble_inference(call: Call, messages: Sequence[oip.ModelStreamInferResponse]) -> dict[str, Any]:
    """Returns the outputs of each request by its id: text deltas joined, other tensors unchanged."""
    outputs_by_id: dict[str, dict[str, Any]] = {}
    ended: set[str] = set()
    for message in messages:
        if message.error_message:
            raise RefusedError(message.error_message)
        response = message.infer_response
        if response.id in ended:
            raise WrongAnswerError("a response follows the final response to its request")
        outputs = outputs_by_id.setdefault(response.id, {})
        for index, tensor in enumerate(response.outputs):
            if response.raw_output_contents:
                raw = response.raw_output_contents[index]
                values = _elements(raw) if tensor.datatype == "BYTES" else [raw]
            else:
                values = list(tensor.contents.bytes_contents) or [tensor.contents.SerializeToString(deterministic=True)]
            if tensor.name == "text":
                before = outputs.get("text") or [b""] * len(values)
                values = [head + tail for head, tail in zip(before, values, strict=True)]
            if tensor.name != "tokens":  # split into arrays that depend on how fast the client reads
                outputs[tensor.name] = values
        if response.parameters["triton_final_response"].bool_param:
            ended.add(response.id)
    if ended != {request.id for request in call.requests if isinstance(request, oip.ModelInferRequest)}:
        raise WrongAnswerError("a stream ended before all of its requests were answered")
    return outputs_by_id


def _elements(raw: bytes) -> list[bytes]:
    elements, at = [], 0
    while at < len(raw):
        end = at + 4 + int.from_bytes(raw[at : at + 4], "little")
        elements.append(raw[at + 4 : end])
        at = end
    return elements


def _status_name(number: int) -> str:
    return next((code.name for code in grpc.StatusCode if code.value[0] == number), str(number))


def is_same(call: Call, expected: Any, answer: Any) -> bool:
    """Whether two answers, as returned by `assemble`, are equal.

    Answers must be identical, except for the numbers of Score: their last digits depend on the other targets in the
    same run of the graph.
    """
    if answer == expected:
        return True
    if call.name != "Score":
        return False
    return _is_close(pb.ScoreResponse.FromString(expected), pb.ScoreResponse.FromString(answer))


def _is_close(expected: Any, answer: Any) -> bool:
    """Whether messages or field values are equal, numbers within the tolerance."""
    if isinstance(expected, Message):
        fields, others = dict(expected.ListFields()), dict(answer.ListFields())
        return fields.keys() == others.keys() and all(
            _is_close(value, others[field]) for field, value in fields.items()
        )
    if isinstance(expected, float):
        return math.isclose(expected, answer, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if isinstance(expected, int | str):
        return bool(expected == answer)
    return len(expected) == len(answer) and all(map(_is_close, expected, answer))


def is_truncated(call: Call, expected: Any, answer: Any) -> bool:
    """Whether an answer may be the expected one cut short by a time limit, as far as can be determined.

    Args:
        expected, answer: Answers as returned by `assemble`, of a call that supports time limits.
    """
    if call.name == "GenerateBatch":
        [request] = call.requests
        whole = [item.response for item in pb.GenerateBatchResponse.FromString(expected).items]
        cut = [item.response for item in pb.GenerateBatchResponse.FromString(answer).items]
        return len(whole) == len(cut) and all(_is_prefix(request, *pair) for pair in zip(whole, cut, strict=True))
    return _is_prefix(
        call.requests[0], pb.GenerateResponse.FromString(expected), pb.GenerateResponse.FromString(answer)
    )


def _is_prefix(request: Any, expected: pb.GenerateResponse, answer: pb.GenerateResponse) -> bool:
    options = request.options
    # A beam's interim best need not lead to its final answer, and a cut text may end within a stop sequence.
    if options.HasField("beam_size") or options.alternatives or len(answer.hypotheses) > 1 or options.stop_sequences:
        return True
    if answer.hypotheses[0].finish_reason != pb.FINISH_REASON_TIME_LIMIT:
        return answer == expected
    return expected.hypotheses[0].text.startswith(answer.hypotheses[0].text)
