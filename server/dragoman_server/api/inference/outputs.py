"""Writes responses as output tensors, with a row for each text and a column for each hypothesis."""

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.api.inference.parameters import Parameters
from dragoman_server.api.inference.tensors import check_tensor_parameters, write_tensor
from dragoman_server.messages.api_error import invalid
from dragoman_server.messages.served_model import INLINE_TOKENS

Written = TypeVar("Written")

FINAL = "triton_final_response"


@dataclass(frozen=True, slots=True)
class Output:
    """An output tensor.

    Attributes:
        datatype: Its datatype in the protocol.
        absent: Filler for a text that has fewer hypotheses than another.
        element: Returns the element for one hypothesis of a response.
    """

    datatype: str
    absent: Any
    element: Callable[[pb.GenerateResponse, pb.Hypothesis], Any]


def _reason(hypothesis: pb.Hypothesis) -> bytes:
    return pb.FinishReason.Name(hypothesis.finish_reason).removeprefix("FINISH_REASON_").encode()


def _tokens(tokens: Sequence[pb.Token]) -> bytes:
    """Encodes tokens as a JSON array. A client can concatenate the arrays of a stream."""
    return json.dumps([_token(token) for token in tokens], ensure_ascii=False).encode()


def _token(token: pb.Token) -> dict[str, Any]:
    encoded: dict[str, Any] = {"id": token.id, "text": token.text}
    if token.HasField("log_probability"):
        encoded["log_probability"] = token.log_probability
    if token.alternatives:
        encoded["alternatives"] = [_token(other) for other in token.alternatives]
    return encoded


OUTPUTS: Mapping[str, Output] = {
    "text": Output("BYTES", b"", lambda _, hypothesis: hypothesis.text.encode()),
    "finish_reason": Output("BYTES", b"", lambda _, hypothesis: _reason(hypothesis)),
    "score": Output("FP32", math.nan, lambda _, hypothesis: hypothesis.score),
    "log_probability": Output("FP32", math.nan, lambda _, hypothesis: hypothesis.log_probability),
    "tokens": Output("BYTES", b"[]", lambda _, hypothesis: _tokens(hypothesis.tokens)),
    "seed": Output("UINT64", 0, lambda response, _: response.seed),
}
DEFAULT_OUTPUTS = ("text", "finish_reason")
PROBABILITIES = ("score", "log_probability")


class OutputWriter:
    """Writes the responses to one request.

    Args:
        request: The request. If it names no outputs, they are DEFAULT_OUTPUTS and those that its parameters imply.
        parameters: Parameters of the request. Details that the outputs need are switched on.
        name: Name of the model that responds.
        version: Version of the model that responds.

    Raises:
        ApiError: the request names an unknown output.
    """

    def __init__(self, request: oip.ModelInferRequest, parameters: Parameters, name: str, version: str) -> None:
        details = parameters.details
        self._name, self._version = name, version
        for index, output in enumerate(request.outputs):
            if output.name not in OUTPUTS:
                raise invalid(f"outputs[{index}].name", f"must be one of {', '.join(OUTPUTS)}")
            check_tensor_parameters(f"outputs[{index}]", output.parameters)
        self._names = list(dict.fromkeys(output.name for output in request.outputs))
        if not self._names:
            probabilities = details.log_probabilities or details.top_tokens > 0
            self._names += DEFAULT_OUTPUTS
            self._names += PROBABILITIES if probabilities else ()
            self._names += ["tokens"] if probabilities or details.tokens else []
            self._names += ["seed"] if parameters.options.sample else []
        details.tokens |= "tokens" in self._names
        details.log_probabilities |= any(name in self._names for name in PROBABILITIES)
        self._tokens_per_position = 1 + max(0, details.top_tokens)
        self._width = max(1, parameters.options.num_hypotheses)
        self._id = request.id
        self._raw = bool(request.raw_input_contents)

    async def response(self, answers: Sequence[pb.GenerateResponse]) -> oip.ModelInferResponse:
        """Writes the response of a unary call.

        Args:
            answers: The response to each text.
        """
        size = sum(1 + self._size(hypothesis.tokens) for answer in answers for hypothesis in answer.hypotheses)
        return await _write(size, lambda: self._write_response(answers))

    async def message(self, message: pb.GenerateStreamResponse) -> oip.ModelInferResponse | None:
        """Converts a message of a stream. The last one includes the outputs that can't be sent in pieces."""
        return await _write(self._size(message.tokens), lambda: self._write_message(message))

    def _size(self, tokens: Sequence[pb.Token]) -> int:
        """Returns the number of tokens to write, including their alternatives."""
        return len(tokens) * self._tokens_per_position

    def _write_response(self, answers: Sequence[pb.GenerateResponse]) -> oip.ModelInferResponse:
        response = self._empty_response()
        for name in self._names:
            self._write(response, name, [_row(name, answer) for answer in answers])
        return response

    def _write_message(self, message: pb.GenerateStreamResponse) -> oip.ModelInferResponse | None:
        final = message.final if message.HasField("final") else None
        pieces = {"text": message.text.encode(), "tokens": _tokens(message.tokens)}
        rows: dict[str, list[Any]] = {}
        for name in self._names:
            if name in pieces:
                if final or message.text or message.tokens:
                    rows[name] = [OUTPUTS[name].absent] * self._width
                    rows[name][message.hypothesis] = pieces[name]
            elif final:
                rows[name] = _row(name, final)
        if not rows:
            return None
        response = self._empty_response()
        response.parameters[FINAL].bool_param = final is not None
        for name, row in rows.items():
            self._write(response, name, [row])
        return response

    def _empty_response(self) -> oip.ModelInferResponse:
        return oip.ModelInferResponse(model_name=self._name, model_version=self._version, id=self._id)

    def _write(self, response: oip.ModelInferResponse, name: str, rows: list[list[Any]]) -> None:
        output = OUTPUTS[name]
        full = [row + [output.absent] * (self._width - len(row)) for row in rows]
        write_tensor(response, name, output.datatype, full, self._raw)


async def _write(size: int, write: Callable[[], Written]) -> Written:
    """Writes a small response at once, and a large one in a thread."""
    return write() if size <= INLINE_TOKENS else await asyncio.to_thread(write)


def _row(name: str, answer: pb.GenerateResponse) -> list[Any]:
    """Returns the elements of an output for one text."""
    return [OUTPUTS[name].element(answer, hypothesis) for hypothesis in answer.hypotheses]
