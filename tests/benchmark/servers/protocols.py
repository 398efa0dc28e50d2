"""How a text is asked for and its answer read, in the two protocols that the servers speak."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from tests.support.load import SERVICE

_LENGTH = struct.Struct("<I")  # before each element of a tensor of BYTES


@dataclass(frozen=True)
class Protocol:
    """One kind of call.

    Attributes:
        path: of the gRPC method.
        request: from a model's name, a text and the most tokens of its answer, serialised.
        text: of an answer's message.
    """

    path: str
    request: Callable[[str, str, int], bytes]
    text: Callable[[bytes], str]

    def requests(self, model: str, texts: Sequence[str], limits: Sequence[int]) -> list[bytes]:
        """One for each text."""
        return [self.request(model, text, limit) for text, limit in zip(texts, limits, strict=True)]


def _generate(model: str, text: str, limit: int) -> bytes:
    options = pb.GenerationOptions(max_new_tokens=limit)
    return pb.GenerateRequest(input=pb.Input(text=text), options=options).SerializeToString()


def _generated(answer: bytes) -> str:
    return pb.GenerateResponse.FromString(answer).hypotheses[0].text


def _infer(model: str, text: str, limit: int) -> bytes:
    element = text.encode()
    request = oip.ModelInferRequest(
        model_name=model,
        parameters={"max_new_tokens": oip.InferParameter(int64_param=limit)},
        inputs=[oip.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1, 1])],
        outputs=[oip.ModelInferRequest.InferRequestedOutputTensor(name="text")],
        raw_input_contents=[_LENGTH.pack(len(element)) + element],
    )
    return request.SerializeToString()


def _inferred(answer: bytes) -> str:
    (contents,) = oip.ModelInferResponse.FromString(answer).raw_output_contents
    (size,) = _LENGTH.unpack_from(contents)
    return contents[_LENGTH.size : _LENGTH.size + size].decode()


PROTOCOLS = {
    "generate": Protocol(f"{SERVICE}Generate", _generate, _generated),
    "infer": Protocol("/inference.GRPCInferenceService/ModelInfer", _infer, _inferred),
}
"""Dragoman's own, which the asyncio server speaks as well, and the Open Inference Protocol, which is Triton's."""
