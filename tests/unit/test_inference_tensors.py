"""The input tensor of the Open Inference Protocol, read; output tensors, written."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import InferInput, InferResult
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from dragoman.inference import open_inference_pb2 as oip
from dragoman_server.api.inference.tensors import read_texts, write_tensor
from dragoman_server.messages.api_error import ApiError

MOST = 5


def request(**tensor: Any) -> oip.ModelInferRequest:
    """One with two texts, but for what is given."""
    raw = tensor.pop("raw", None)
    contents = {"contents": oip.InferTensorContents(bytes_contents=[b"ab", b"c"])} if raw is None else {}
    own = {"name": "text", "datatype": "BYTES", "shape": [2]} | contents | tensor
    return oip.ModelInferRequest(inputs=[oip.ModelInferRequest.InferInputTensor(**own)], raw_input_contents=raw)


def packed(*texts: bytes) -> bytes:
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


@pytest.mark.parametrize("shape", [[2], [2, 1]])
def test_texts_come_in_either_form(shape: list[int]) -> None:
    assert read_texts(request(shape=shape), MOST) == ["ab", "c"]
    assert read_texts(request(shape=shape, raw=[packed(b"ab", b"c")]), MOST) == ["ab", "c"]


@given(st.lists(st.text(), min_size=1, max_size=MOST))
def test_texts_come_as_a_client_of_triton_packs_them(texts: list[str]) -> None:
    tensor = InferInput("text", [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode() for text in texts], dtype=object).reshape(-1, 1))
    made = request(shape=[len(texts), 1], raw=[tensor._get_content()])
    assert read_texts(made, MOST) == texts


ONE = oip.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])
NUMBERS = oip.InferTensorContents(int_contents=[1, 2])
REFUSED = {
    "none": (oip.ModelInferRequest(), "inputs must be one tensor, named 'text'"),
    "two": (oip.ModelInferRequest(inputs=[ONE, ONE]), "inputs must be one tensor, named 'text'"),
    "another name": (request(name="INPUT0"), "inputs must be one tensor, named 'text'"),
    "numbers": (request(datatype="INT32"), "inputs[0].datatype must be BYTES"),
    "contents of numbers": (request(contents=NUMBERS), "text has 0 elements, but its shape says 2"),
    "no shape": (request(shape=[]), "inputs[0].shape must be [n] or [n, 1], for n texts"),
    "a row": (request(shape=[1, 2]), "inputs[0].shape must be [n] or [n, 1], for n texts"),
    "a negative shape": (request(shape=[-1]), "inputs[0].shape must be [n] or [n, 1], for n texts"),
    "an empty tensor": (request(shape=[0]), "text is empty"),
    "too many": (request(shape=[6]), "text has 6 elements, but a request may have at most 5"),
    "far too many": (request(shape=[2**62]), f"text has {2**62} elements, but a request may have at most 5"),
    "another size": (request(shape=[3]), "text has 2 elements, but its shape says 3"),
    "not UTF-8": (
        request(contents=oip.InferTensorContents(bytes_contents=[b"a", b"\xff"])),
        "text[1] is not UTF-8",
    ),
    "both forms": (
        request(contents=oip.InferTensorContents(), raw=[packed(b"a", b"b")]),
        "inputs[0].contents must be absent if there are raw_input_contents",
    ),
    "two raw parts": (request(raw=[b"", b""]), "raw_input_contents must have one part, as there is one input"),
    "too few": (
        request(raw=[packed(b"a")]),
        "raw_input_contents[0] has 1 elements, but the tensor's shape says 2",
    ),
    "half a length": (
        request(raw=[packed(b"a") + b"\1\0"]),
        "raw_input_contents[0] has 1 elements, but the tensor's shape says 2",
    ),
    "a length too long": (
        request(raw=[packed(b"a") + b"\2\0\0\0b"]),
        "raw_input_contents[0] ends within element 1; each must be preceded by its length in 4 bytes, little-endian",
    ),
    "more": (
        request(raw=[packed(b"a", b"b", b"c")]),
        "raw_input_contents[0] has more elements than the tensor's shape says: 2",
    ),
    "shared memory": (
        request(parameters={"shared_memory_region": oip.InferParameter(string_param="mine")}),
        "inputs[0].parameters refers to shared memory, which this server does not support",
    ),
    "something else": (
        request(parameters={"colour": oip.InferParameter(string_param="red")}),
        "inputs[0].parameters contains an unknown parameter",
    ),
}


@pytest.mark.parametrize(("made", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_a_tensor_of_texts_is_refused(made: oip.ModelInferRequest, message: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_texts(made, MOST)
    assert refused.value.message == message


@given(st.binary(), st.integers(1, MOST))
def test_any_bytes_are_read_or_refused(raw: bytes, count: int) -> None:
    try:
        texts = read_texts(request(shape=[count], raw=[raw]), MOST)
    except ApiError:
        return
    assert packed(*(text.encode() for text in texts)) == raw


def test_a_client_of_triton_reads_raw_outputs() -> None:
    response = oip.ModelInferResponse()
    write_tensor(response, "text", "BYTES", [[b"a", "ä".encode()], [b"", b"c"]], raw=True)
    write_tensor(response, "score", "FP32", [[-1.5, 2.0], [0.25, math.nan]], raw=True)
    write_tensor(response, "seed", "UINT64", [[2**64 - 1, 0], [1, 2]], raw=True)
    result = InferResult(response)
    assert result.as_numpy("text").tolist() == [[b"a", "ä".encode()], [b"", b"c"]]
    np.testing.assert_array_equal(result.as_numpy("score"), np.array([[-1.5, 2.0], [0.25, np.nan]], np.float32))
    assert result.as_numpy("seed").tolist() == [[2**64 - 1, 0], [1, 2]]
    again = deserialize_bytes_tensor(serialize_byte_tensor(result.as_numpy("text")).item())
    assert response.raw_output_contents[0] == serialize_byte_tensor(again).item()
    assert not any(output.HasField("contents") for output in response.outputs)


def test_outputs_are_written_in_the_field_of_their_type() -> None:
    response = oip.ModelInferResponse()
    write_tensor(response, "text", "BYTES", [[b"a"], [b"b"]], raw=False)
    write_tensor(response, "score", "FP32", [[-1.5], [2.0]], raw=False)
    write_tensor(response, "seed", "UINT64", [[7], [8]], raw=False)
    text, score, seed = response.outputs
    assert [list(output.shape) for output in response.outputs] == [[2, 1]] * 3
    assert list(text.contents.bytes_contents) == [b"a", b"b"]
    assert list(score.contents.fp32_contents) == [-1.5, 2.0]
    assert list(seed.contents.uint64_contents) == [7, 8]
    assert not response.raw_output_contents
