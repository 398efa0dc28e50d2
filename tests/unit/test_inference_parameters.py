"""Parameters of the Open Inference Protocol, read as options and details."""

from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from hypothesis import given
from hypothesis import strategies as st

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.api.inference.parameters import UNAVAILABLE, Parameters, translate_field_names
from dragoman_server.messages.api_error import ApiError, invalid, unavailable

KINDS = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}


def parameter(value: Any) -> oip.InferParameter:
    return oip.InferParameter(**{KINDS[type(value)]: value})


def read(**values: Any) -> Parameters:
    return Parameters({name: parameter(value) for name, value in values.items()})


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
    "stop_sequences": ('["ab", "\\n"]', ["ab", "\n"]),
    "include_stop_sequence": (True, True),
    "vocabulary": ("[5, 7]", pb.TokenIds(ids=[5, 7])),
    "alternatives": (True, True),
}
DETAILS: dict[str, Any] = {"tokens": True, "log_probabilities": True, "top_tokens": 3}


def test_there_is_a_parameter_for_every_option_and_detail() -> None:
    assert OPTIONS.keys() == set(pb.GenerationOptions.DESCRIPTOR.fields_by_name)
    assert DETAILS.keys() | set(UNAVAILABLE) == set(pb.Details.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize("name", OPTIONS)
def test_options_have_the_names_they_have_elsewhere(name: str) -> None:
    value, expected = OPTIONS[name]
    found = read(**{name: value})
    assert [field.name for field, _ in found.options.ListFields()] == [name]
    got = getattr(found.options, name)
    assert (list(got) if isinstance(expected, list) else got) == expected


def test_details_have_the_names_they_have_elsewhere() -> None:
    assert read(**DETAILS).details == pb.Details(**DETAILS)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("temperature", "0.5", 0.5),
        ("beam_size", "4", 4),
        ("sample", "true", True),
        ("seed", str(2**64 - 1), 2**64 - 1),
        ("length_normalization", "LENGTH_NORMALIZATION_NONE", pb.LENGTH_NORMALIZATION_NONE),
        ("length_normalization", "gnmt", pb.LENGTH_NORMALIZATION_GNMT),
    ],
)
def test_clients_without_a_type_for_it_send_a_string(name: str, text: str, expected: Any) -> None:
    assert getattr(read(**{name: text}).options, name) == expected


def test_large_seeds_come_as_unsigned_numbers() -> None:
    seed = oip.InferParameter(uint64_param=2**64 - 1)
    assert Parameters({"seed": seed}).options.seed == 2**64 - 1


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
def test_what_is_not_of_its_type_is_refused(name: str, value: Any, problem: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(**{name: value})
    assert refused.value.message == f"parameters.{name} {problem}"


def test_a_parameter_without_value_is_refused() -> None:
    with pytest.raises(ApiError, match=r"parameters\.beam_size has no value"):
        Parameters({"beam_size": oip.InferParameter()})


def test_long_names_are_not_repeated_whole() -> None:
    with pytest.raises(ApiError) as refused:
        read(**{"x" * 10_000: 1})
    assert len(refused.value.message) < 200


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
def test_priorities_have_names_or_the_numbers_of_triton(value: Any, expected: pb.Priority) -> None:
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


def test_other_errors_stay_as_they_are() -> None:
    error = unavailable("not now")
    with pytest.raises(ApiError) as refused, translate_field_names():
        raise error
    assert refused.value is error
