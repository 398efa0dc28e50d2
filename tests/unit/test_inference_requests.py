"""Requests of the Open Inference Protocol: parameters, input and output tensors."""

import math
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import InferInput, InferResult
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.api.inference.parameters import UNAVAILABLE, Parameters, translate_field_names
from dragoman_server.api.inference.tensors import read_texts, write_tensor
from dragoman_server.messages.api_error import ApiError, invalid, unavailable

KINDS = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}


def read(**values: Any) -> Parameters:
    return Parameters({name: oip.InferParameter(**{KINDS[type(value)]: value}) for name, value in values.items()})


OPTIONS: dict[str, tuple[Any, Any]] = {
    "max_new_tokens": (5, 5),
    "time_limit": (1.5, Duration(seconds=1, nanos=500_000_000)),
    "min_new_tokens": (2, 2),
    "num_hypotheses": (3, 3),
    "beam_size": (4, 4),
    "length_normalization": ("GNMT", pb.LENGTH_NORMALIZATION_GNMT),
    "length_penalty": (0.5, 0.5),
    "coverage_penalty": (2, 2.0),
    "early_stopping": (True, True),
    "stopping": ("MAX_LENGTH", pb.STOPPING_MAX_LENGTH),
    "patience": (1.5, 1.5),
    "beam_groups": (2, 2),
    "diversity_penalty": (0.25, 0.25),
    "sample": (True, True),
    "temperature": (0.5, 0.5),
    "top_k": (7, 7),
    "top_p": (0.5, 0.5),
    "min_p": (0.125, 0.125),
    "typical_p": (0.75, 0.75),
    "seed": (9, 9),
    "prefix": ("[ab", pb.Input(text="[ab")),
    "prefix_bias": (0.5, 0.5),
    "suppressed_tokens": ("[5, 7]", [5, 7]),
    "suppressed_sequences": ('["ab", [5, 7]]', [pb.Input(text="ab"), pb.Input(token_ids=pb.TokenIds(ids=[5, 7]))]),
    "repetition_penalty": (1.5, 1.5),
    "no_repeat_ngram_size": (2, 2),
    "encoder_no_repeat_ngram_size": (2, 2),
    "stop_sequences": ('["ab", "\\n"]', ["ab", "\n"]),
    "include_stop_sequence": (True, True),
    "vocabulary": ("[5, 7]", pb.TokenIds(ids=[5, 7])),
    "use_shortlist": (False, False),
    "alternatives": (True, True),
}
DETAILS: dict[str, Any] = {"tokens": True, "log_probabilities": True, "top_tokens": 3}


def test_every_option_and_detail_has_a_parameter() -> None:
    assert OPTIONS.keys() == set(pb.GenerationOptions.DESCRIPTOR.fields_by_name)
    assert DETAILS.keys() | set(UNAVAILABLE) == set(pb.Details.DESCRIPTOR.fields_by_name)
    assert read(**DETAILS).details == pb.Details(**DETAILS)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        *((name, value, expected) for name, (value, expected) in OPTIONS.items()),
        # Clients without a type for it send a string.
        ("temperature", "0.5", 0.5),
        ("beam_size", "4", 4),
        ("sample", "true", True),
        ("seed", str(2**64 - 1), 2**64 - 1),
        ("length_normalization", "LENGTH_NORMALIZATION_NONE", pb.LENGTH_NORMALIZATION_NONE),
        ("length_normalization", "gnmt", pb.LENGTH_NORMALIZATION_GNMT),
    ],
)
def test_parameters_become_options(name: str, value: Any, expected: Any) -> None:
    options = read(**{name: value}).options
    assert [field.name for field, _ in options.ListFields()] == [name]
    found = getattr(options, name)
    assert (list(found) if isinstance(expected, list) else found) == expected


def test_large_seeds_are_unsigned_numbers() -> None:
    assert Parameters({"seed": oip.InferParameter(uint64_param=2**64 - 1)}).options.seed == 2**64 - 1


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("beam_size", 1.5, "must be a 32-bit whole number"),
        ("beam_size", True, "must be a 32-bit whole number"),
        ("beam_size", 2**31, "must be a 32-bit whole number"),
        ("beam_size", "four", "is a string, but must be a 32-bit whole number"),
        ("beam_size", "[" * 100_000, "is a string, but must be a 32-bit whole number"),
        ("seed", -1, f"must be a whole number from 0 to {2**64 - 1}"),
        ("sample", 1, "must be true or false"),
        ("tokens", "yes", "is a string, but must be true or false"),
        ("temperature", True, "must be a number"),
        ("temperature", "[0.5]", "must be a number"),
        ("length_normalization", "LOG", "must be LENGTH, GNMT or NONE"),
        ("length_normalization", 1, "must be LENGTH, GNMT or NONE"),
        ("prefix", 5, "must be a string"),
        ("time_limit", "soon", "is a string, but must be a number of seconds"),
        ("time_limit", True, "must be a number of seconds"),
        ("time_limit", float("nan"), "must be a number of seconds"),
        ("time_limit", float("inf"), "must be a number of seconds"),
        ("stop_sequences", "ab", 'is a string, but must be a JSON array of strings, such as ["a", "b"]'),
        ("stop_sequences", '"ab"', 'must be a JSON array of strings, such as ["a", "b"]'),
        ("stop_sequences", '["ab", 5]', 'must be a JSON array of strings, such as ["a", "b"]'),
        ("suppressed_tokens", '["ab"]', "must be a JSON array of token ids, such as [5, 7]"),
        ("suppressed_tokens", "[true]", "must be a JSON array of token ids, such as [5, 7]"),
        ("suppressed_tokens", f"[{2**40}]", "must be a JSON array of token ids, such as [5, 7]"),
        ("vocabulary", 5, "must be a JSON array of token ids, such as [5, 7]"),
        ("vocabulary", "5" * 2**21, "has 2097152 characters, but at most 1048576 are allowed"),
        ("suppressed_sequences", f"[{'[5], ' * 999}[5]]", "has 1000 sequences, but at most 256 are allowed"),
        (
            "suppressed_sequences",
            "[[0.5]]",
            'must be a JSON array of strings or arrays of token ids, such as ["a", [5, 7]]',
        ),
        ("alignment", True, "is not available in this protocol; use dragoman.v1.GenerationService"),
        ("colour", "red", "is not a parameter of this server"),
        ("sequence_id", 5, "is not a parameter of this server"),
        ("priority", "soon", "must be 'interactive' or 1, or 'batch' or 2"),
        ("priority", -1, "must be 'interactive' or 1, or 'batch' or 2"),
        ("priority", True, "must be 'interactive' or 1, or 'batch' or 2"),
        ("timeout", 1.5, "must be a whole number of microseconds"),
        ("timeout", -1, "must be a whole number of microseconds"),
    ],
)
def test_an_invalid_parameter_is_refused(name: str, value: Any, problem: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(**{name: value})
    assert refused.value.message == f"parameters.{name} {problem}"


def test_parameters_without_a_value_or_with_long_names_are_refused() -> None:
    with pytest.raises(ApiError, match=r"parameters\.beam_size has no value"):
        Parameters({"beam_size": oip.InferParameter()})
    with pytest.raises(ApiError) as refused:
        read(**{"x" * 10_000: 1})
    assert len(refused.value.message) < 200


def test_languages_are_those_of_every_text() -> None:
    parameters = read(source_language="de", target_language="en", beam_size=2)
    assert parameters.source("Hallo") == pb.Input(text="Hallo", source_language="de", target_language="en")
    assert parameters.options == pb.GenerationOptions(beam_size=2)
    assert read().source("Hallo") == pb.Input(text="Hallo")
    with pytest.raises(ApiError, match=r"parameters\.source_language must be a string"):
        read(source_language=5)


@pytest.mark.parametrize("field", ["input.target_language", "inputs[3].target_language"])
def test_refused_languages_have_the_names_of_parameters(field: str) -> None:
    with pytest.raises(ApiError, match=r"^parameters\.target_language is 'xx'"), translate_field_names():
        raise invalid(field, "is 'xx'")


@given(st.text(), st.sampled_from([*OPTIONS, *DETAILS, "priority", "timeout"]))
def test_any_string_is_read_or_refused(text: str, name: str) -> None:
    with suppress(ApiError):
        read(**{name: text})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, pb.PRIORITY_UNSPECIFIED),
        (1, pb.PRIORITY_INTERACTIVE),
        (2, pb.PRIORITY_BATCH),
        (9, pb.PRIORITY_BATCH),
        ("interactive", pb.PRIORITY_INTERACTIVE),
        ("batch", pb.PRIORITY_BATCH),
    ],
)
def test_priorities_are_names_or_numbers_as_in_triton(value: Any, expected: pb.Priority) -> None:
    assert read(priority=value).priority == expected


def test_timeouts_are_microseconds() -> None:
    assert read(timeout=1_500_000).timeout == 1.5
    assert read(timeout=0).timeout is None


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("options.beam_size", "parameters.beam_size"),
        ("options.prefix.text", "parameters.prefix"),
        ("options.vocabulary.ids[2]", "parameters.vocabulary[2]"),
        ("options.suppressed_sequences[1].token_ids.ids[3]", "parameters.suppressed_sequences[1][3]"),
        ("details.top_tokens", "parameters.top_tokens"),
        ("inputs", "text"),
        ("inputs[3].text", "text[3]"),
        ("input.text", "text[0]"),
        ("model", "model_name"),
        ("priority", "parameters.priority"),
    ],
)
def test_errors_name_the_fields_of_this_protocol(field: str, name: str) -> None:
    with pytest.raises(ApiError) as refused, translate_field_names():
        raise invalid(field, "is odd")
    assert refused.value.message == f"{name} is odd"
    assert isinstance(refused.value.detail, error_details_pb2.BadRequest)
    assert [violation.field for violation in refused.value.detail.field_violations] == [name]


def test_other_errors_are_not_changed() -> None:
    error = unavailable("not now")
    with pytest.raises(ApiError) as refused, translate_field_names():
        raise error
    assert refused.value is error


MAX_TEXTS = 5


def request(**tensor: Any) -> oip.ModelInferRequest:
    """A request with two texts, except for the given fields of its tensor."""
    raw = tensor.pop("raw", None)
    contents = {"contents": oip.InferTensorContents(bytes_contents=[b"ab", b"c"])} if raw is None else {}
    fields = {"name": "text", "datatype": "BYTES", "shape": [2]} | contents | tensor
    return oip.ModelInferRequest(inputs=[oip.ModelInferRequest.InferInputTensor(**fields)], raw_input_contents=raw)


def packed(*texts: bytes) -> bytes:
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


@pytest.mark.parametrize("shape", [[2], [2, 1]])
def test_texts_are_read_from_typed_and_raw_contents(shape: list[int]) -> None:
    assert read_texts(request(shape=shape), MAX_TEXTS) == ["ab", "c"]
    assert read_texts(request(shape=shape, raw=[packed(b"ab", b"c")]), MAX_TEXTS) == ["ab", "c"]


@given(st.lists(st.text(), min_size=1, max_size=MAX_TEXTS))
def test_texts_are_read_as_tritonclient_packs_them(texts: list[str]) -> None:
    tensor = InferInput("text", [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode() for text in texts], dtype=object).reshape(-1, 1))
    assert read_texts(request(shape=[len(texts), 1], raw=[tensor._get_content()]), MAX_TEXTS) == texts


TENSOR = oip.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])
STRING = oip.InferParameter(string_param="a")
ONE_TENSOR = "inputs must be one tensor, named 'text'"
ITS_SHAPE = "inputs[0].shape must be [n] or [n, 1], for n texts"
RAW = "raw_input_contents[0]"


@pytest.mark.parametrize(
    ("invalid_request", "message"),
    [
        (oip.ModelInferRequest(), ONE_TENSOR),
        (oip.ModelInferRequest(inputs=[TENSOR, TENSOR]), ONE_TENSOR),
        (request(name="INPUT0"), ONE_TENSOR),
        (request(datatype="INT32"), "inputs[0].datatype must be BYTES"),
        (request(contents=oip.InferTensorContents(int_contents=[1, 2])), "text has 0 elements, but its shape says 2"),
        (request(shape=[]), ITS_SHAPE),
        (request(shape=[1, 2]), ITS_SHAPE),
        (request(shape=[-1]), ITS_SHAPE),
        (request(shape=[0]), "text is empty"),
        (request(shape=[6]), "text has 6 elements, but a request may have at most 5"),
        (request(shape=[2**62]), f"text has {2**62} elements, but a request may have at most 5"),
        (request(shape=[3]), "text has 2 elements, but its shape says 3"),
        (request(contents=oip.InferTensorContents(bytes_contents=[b"a", b"\xff"])), "text[1] is not UTF-8"),
        (
            request(contents=oip.InferTensorContents(), raw=[packed(b"a", b"b")]),
            "inputs[0].contents must be absent if there are raw_input_contents",
        ),
        (request(raw=[b"", b""]), "raw_input_contents must have one part, as there is one input"),
        (request(raw=[packed(b"a")]), f"{RAW} has 1 elements, but the tensor's shape says 2"),
        (request(raw=[packed(b"a") + b"\1\0"]), f"{RAW} has 1 elements, but the tensor's shape says 2"),
        (
            request(raw=[packed(b"a") + b"\2\0\0\0b"]),
            f"{RAW} ends within element 1; each must be preceded by its length in 4 bytes, little-endian",
        ),
        (request(raw=[packed(b"a", b"b", b"c")]), f"{RAW} has more elements than the tensor's shape says: 2"),
        (
            request(parameters={"shared_memory_region": STRING}),
            "inputs[0].parameters refers to shared memory, which this server does not support",
        ),
        (request(parameters={"colour": STRING}), "inputs[0].parameters contains an unknown parameter"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_invalid_input_tensor_is_refused(invalid_request: oip.ModelInferRequest, message: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_texts(invalid_request, MAX_TEXTS)
    assert refused.value.message == message


@given(st.binary(), st.integers(1, MAX_TEXTS))
def test_any_raw_contents_are_read_or_refused(raw: bytes, count: int) -> None:
    with suppress(ApiError):
        texts = read_texts(request(shape=[count], raw=[raw]), MAX_TEXTS)
        assert packed(*(text.encode() for text in texts)) == raw


def test_tritonclient_reads_raw_outputs() -> None:
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


def test_typed_outputs_are_written_to_the_field_of_their_type() -> None:
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
