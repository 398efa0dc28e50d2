"""The load generator for servers of either protocol."""

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from tests.support.load import SERVICE, LoadGenerator

_LENGTH = struct.Struct("<I")  # before each element of a tensor of BYTES


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


class Protocol(NamedTuple):
    """The path of a gRPC method, its request (from model, text and limit) and the text of its answer."""

    path: str
    request: Callable[[str, str, int], bytes]
    text: Callable[[bytes], str]


PROTOCOLS = {
    "generate": Protocol(f"{SERVICE}Generate", _generate, _generated),
    "infer": Protocol("/inference.GRPCInferenceService/ModelInfer", _infer, _inferred),
}
"""Dragoman's own, which the asyncio server speaks as well, and the Open Inference Protocol, which is Triton's."""


class ServerLoad(LoadGenerator):
    """Sends texts repeatedly; the same for all servers except for the message around a text.

    Args:
        address: Host and port of the server.
        server_pid: Process id of the server.
        protocol: Key of PROTOCOLS.
        model: Name of the model on the server.
        texts, limits: Texts to send, and the most tokens of their answers.
        tokenizer: Tokenizer file for counting the tokens of answers, after the measurement.
        ends: Whether an answer has an end token that counts.
    """

    def __init__(
        self,
        address: tuple[str, int],
        server_pid: int,
        protocol: str,
        model: str,
        texts: Sequence[str],
        limits: Sequence[int],
        tokenizer: Path,
        ends: bool,
    ) -> None:
        self._protocol = PROTOCOLS[protocol]
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._ends = ends
        self._lengths: dict[str, int] = {}
        requests = [self._protocol.request(model, *asked) for asked in zip(texts, limits, strict=True)]
        super().__init__(address, server_pid, self._protocol.path, requests)

    def count(self, answer: bytes) -> tuple[int, int]:
        text = self._protocol.text(answer)
        if text not in self._lengths:
            self._lengths[text] = len(self._tokenizer.encode(text, add_special_tokens=self._ends).ids)
        return self._lengths[text], 1
