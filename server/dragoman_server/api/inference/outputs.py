"""Answers as output tensors: a row for each text, in it a column for each hypothesis."""

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
    """A tensor that can be asked for.

    Attributes:
        absent: stands where a text has fewer hypotheses than another.
        of: its element for a hypothesis of an answer.
    """

    datatype: str
    absent: Any
    of: Callable[[pb.GenerateResponse, pb.Hypothesis], Any]


def _reason(hypothesis: pb.Hypothesis) -> bytes:
    return pb.FinishReason.Name(hypothesis.finish_reason).removeprefix("FINISH_REASON_").encode()


def _tokens(tokens: Sequence[pb.Token]) -> bytes:
    """As a JSON array, so that those of the pieces of a stream can be put together."""
    return json.dumps([_token(token) for token in tokens], ensure_ascii=False).encode()


def _token(token: pb.Token) -> dict[str, Any]:
    told: dict[str, Any] = {"id": token.id, "text": token.text}
    if token.HasField("log_probability"):
        told["log_probability"] = token.log_probability
    if token.alternatives:
        told["alternatives"] = [_token(other) for other in token.alternatives]
    return told


OUTPUTS: Mapping[str, Output] = {
    "text": Output("BYTES", b"", lambda _, hypothesis: hypothesis.text.encode()),
    "finish_reason": Output("BYTES", b"", lambda _, hypothesis: _reason(hypothesis)),
    "score": Output("FP32", math.nan, lambda _, hypothesis: hypothesis.score),
    "log_probability": Output("FP32", math.nan, lambda _, hypothesis: hypothesis.log_probability),
    "tokens": Output("BYTES", b"[]", lambda _, hypothesis: _tokens(hypothesis.tokens)),
    "seed": Output("UINT64", 0, lambda answer, _: answer.seed),
}
ALWAYS = ("text", "finish_reason")
PROBABILITIES = ("score", "log_probability")


class OutputWriter:
    """Writes the responses to one request. It asks for the details that the outputs need.

    Args:
        request: names the outputs; where it names none, they are those of ALWAYS, and what its parameters ask for.
        parameters: of the request.
        name, version: of the model that answers.

    Raises:
        ApiError: the request names an output that there is not.
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
            self._names += ALWAYS
            self._names += PROBABILITIES if probabilities else ()
            self._names += ["tokens"] if probabilities or details.tokens else []
            self._names += ["seed"] if parameters.options.sample else []
        details.tokens |= "tokens" in self._names
        details.log_probabilities |= any(name in self._names for name in PROBABILITIES)
        self._choices = 1 + max(0, details.top_tokens)
        self._width = max(1, parameters.options.num_hypotheses)
        self._id = request.id
        self._raw = bool(request.raw_input_contents)

    async def whole(self, answers: Sequence[pb.GenerateResponse]) -> oip.ModelInferResponse:
        """The response of a unary call.

        Args:
            answers: one for each text.
        """
        size = sum(1 + self._size(hypothesis.tokens) for answer in answers for hypothesis in answer.hypotheses)
        return await _write(size, lambda: self._whole(answers))

    async def piece(self, message: pb.GenerateStreamResponse) -> oip.ModelInferResponse | None:
        """What to send of a message of a stream. In the last one, outputs that can't come in pieces come whole."""
        return await _write(self._size(message.tokens), lambda: self._piece(message))

    def _size(self, tokens: Sequence[pb.Token]) -> int:
        """How many there are to write, with their alternatives."""
        return len(tokens) * self._choices

    def _whole(self, answers: Sequence[pb.GenerateResponse]) -> oip.ModelInferResponse:
        response = self._response()
        for name in self._names:
            self._write(response, name, [_row(name, answer) for answer in answers])
        return response

    def _piece(self, message: pb.GenerateStreamResponse) -> oip.ModelInferResponse | None:
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
        response = self._response()
        response.parameters[FINAL].bool_param = final is not None
        for name, row in rows.items():
            self._write(response, name, [row])
        return response

    def _response(self) -> oip.ModelInferResponse:
        return oip.ModelInferResponse(model_name=self._name, model_version=self._version, id=self._id)

    def _write(self, response: oip.ModelInferResponse, name: str, rows: list[list[Any]]) -> None:
        output = OUTPUTS[name]
        full = [row + [output.absent] * (self._width - len(row)) for row in rows]
        write_tensor(response, name, output.datatype, full, self._raw)


async def _write(size: int, write: Callable[[], Written]) -> Written:
    return write() if size <= INLINE_TOKENS else await asyncio.to_thread(write)


def _row(name: str, answer: pb.GenerateResponse) -> list[Any]:
    return [OUTPUTS[name].of(answer, hypothesis) for hypothesis in answer.hypotheses]
