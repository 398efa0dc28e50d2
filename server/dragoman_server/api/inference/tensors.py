"""Reads the input tensor and writes output tensors, with typed or with raw contents."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dragoman.inference import open_inference_pb2 as oip
from dragoman_server.messages.api_error import invalid

INPUT = "text"
LENGTH = struct.Struct("<I")  # precedes each BYTES element

# Parameters of tensors that are ignored.
IGNORED = {"content_type", "binary_data", "binary_data_size"}


def read_texts(request: oip.ModelInferRequest, max_texts: int) -> list[str]:
    """Reads the texts of a request's input tensor.

    Raises:
        ApiError: the tensor does not contain texts, has more than `max_texts`, or its contents do not match its shape.
    """
    if len(request.inputs) != 1 or request.inputs[0].name != INPUT:
        raise invalid("inputs", f"must be one tensor, named {INPUT!r}")
    tensor = request.inputs[0]
    check_tensor_parameters("inputs[0]", tensor.parameters)
    if tensor.datatype != "BYTES":
        raise invalid("inputs[0].datatype", "must be BYTES")
    shape = list(tensor.shape)
    if len(shape) not in (1, 2) or shape[0] < 0 or shape[1:] not in ([], [1]):
        raise invalid("inputs[0].shape", "must be [n] or [n, 1], for n texts")
    if shape[0] > max_texts:
        raise invalid(INPUT, f"has {shape[0]} elements, but a request may have at most {max_texts}")
    if not shape[0]:
        raise invalid(INPUT, "is empty")
    texts = []
    for index, element in enumerate(_elements(request, shape[0])):
        try:
            texts.append(element.decode())
        except UnicodeDecodeError:
            raise invalid(f"{INPUT}[{index}]", "is not UTF-8") from None
    return texts


def check_tensor_parameters(field: str, parameters: Iterable[str]) -> None:
    """Raises ApiError if a tensor has a parameter that can't be ignored."""
    for name in parameters:
        if name.startswith("shared_memory"):
            raise invalid(f"{field}.parameters", "refers to shared memory, which this server does not support")
        if name not in IGNORED:
            raise invalid(f"{field}.parameters", "contains an unknown parameter")


def write_tensor(
    response: oip.ModelInferResponse, name: str, datatype: str, values: Sequence[Sequence[Any]], raw: bool
) -> None:
    """Adds an output tensor to a response.

    Args:
        values: The elements: [texts, hypotheses].
        raw: Whether to write them to raw_output_contents.
    """
    shape = [len(values), len(values[0])]
    tensor = response.outputs.add(name=name, datatype=datatype, shape=shape)
    flat = [value for row in values for value in row]
    if not raw:
        getattr(tensor.contents, _CONTENTS[datatype]).extend(flat)
    elif datatype == "BYTES":
        response.raw_output_contents.append(
            b"".join(part for value in flat for part in (LENGTH.pack(len(value)), value))
        )
    else:
        response.raw_output_contents.append(struct.pack(f"<{len(flat)}{_FORMATS[datatype]}", *flat))


_CONTENTS = {"BYTES": "bytes_contents", "FP32": "fp32_contents", "UINT64": "uint64_contents"}
_FORMATS = {"FP32": "f", "UINT64": "Q"}


def _elements(request: oip.ModelInferRequest, count: int) -> Sequence[bytes]:
    """Returns the elements of the input tensor. Raises ApiError if there are not `count` of them."""
    contents = request.inputs[0].contents.bytes_contents
    if not request.raw_input_contents:
        if len(contents) != count:
            raise invalid(INPUT, f"has {len(contents)} elements, but its shape says {count}")
        return contents
    if request.inputs[0].HasField("contents"):
        raise invalid("inputs[0].contents", "must be absent if there are raw_input_contents")
    if len(request.raw_input_contents) != 1:
        raise invalid("raw_input_contents", "must have one part, as there is one input")
    return list(_split(request.raw_input_contents[0], count))


def _split(raw: bytes, count: int) -> Iterator[bytes]:
    """Yields the elements of raw contents. Raises ApiError if there are not `count` of them."""
    field = "raw_input_contents[0]"
    at = 0
    for index in range(count):
        if len(raw) - at < LENGTH.size:
            raise invalid(field, f"has {index} elements, but the tensor's shape says {count}")
        (length,) = LENGTH.unpack_from(raw, at)
        at += LENGTH.size
        if len(raw) - at < length:
            raise invalid(
                field, f"ends within element {index}; each must be preceded by its length in 4 bytes, little-endian"
            )
        yield raw[at : at + length]
        at += length
    if at < len(raw):
        raise invalid(field, f"has more elements than the tensor's shape says: {count}")
